"""Engines, buckets, overlap, compression and transport: the same training, and the record says what ran."""

from pathlib import Path

import pytest

from hvdkan import record
from mpi.algorithms import parse

PROGRAMS = Path(__file__).parent / "programs"
# As in test_equivalence.py: 1100 samples in steps of 300, which 3 ranks and the last step never share evenly.
COMMON = "--samples 1100 --global-batch-size 300 --epochs 2 --hidden 16 --grid 5 --probe-steps 2 --threads 1"
EACH = [64, 64, 512, 128, 128, 1024]  # bytes of the parameters, the last layer's first


def both(engine):
    """A hierarchical engine and its flat twin."""
    return {
        f"{engine} {allreduce}": f"--backend mpi --allreduce {allreduce} --engine {engine}"
        for allreduce in ("flat", "hierarchical")
    }


RUNS = {
    "mpi": {
        **both("two_level"),
        **both("two_level(cross=ring,chunks=2)"),
        **both("leader"),
        "rabenseifner": "--backend mpi --allreduce flat --engine rabenseifner",
        "buckets": "--backend mpi --allreduce hierarchical --engine two_level(cross=ring,chunks=2) --fusion-mb 0",
        "after": "--backend mpi --allreduce hierarchical --engine two_level(cross=ring,chunks=2) --fusion-mb 0 "
        "--no-overlap",
        "mpi's own": "--backend mpi --fusion-mb 0.001",
        "two_level buckets": "--backend mpi --allreduce flat --fusion-mb 0.001",
        "idle ranks": "--backend mpi --fusion-mb 0 --samples 6 --global-batch-size 3 --allreduce flat --engine ring",
        "auto": "--backend mpi --allreduce auto --fusion-mb 0",
        "table": "--backend mpi --allreduce auto --allreduce-table TABLE",
    },
    "ddp": {
        "stock buckets": "--backend ddp --fusion-mb 0",
        "after": "--backend ddp --no-overlap",
        "stock fp16": "--backend ddp --compression fp16",
        "hook fp16": "--backend ddp --allreduce hierarchical --compression fp16 --fusion-mb 0",
        "builtin fp16": "--backend ddp --allreduce flat --engine builtin --compression fp16",
        "mpi stock": "--backend ddp --transport mpi",
        "mpi flat": "--backend ddp --transport mpi --allreduce flat --engine ring --fusion-mb 0",
        "mpi hierarchical": "--backend ddp --transport mpi --allreduce hierarchical --fusion-mb 0",
    },
    "horovod": {
        "during": "",
        "after": "--no-overlap",
        "fp16": "--compression fp16",
        "process_sets fp16": "--allreduce hierarchical --compression fp16",
        "han": "--allreduce hierarchical --engine han --fusion-mb 1 REAL",
        "after fp16": "--allreduce flat --engine builtin --no-overlap --compression fp16",
    },
}
NAMES = [(backend, name) for backend, runs in RUNS.items() for name in runs]
pytestmark = pytest.mark.launch


@pytest.fixture(scope="module")
def runs(mpirun, tmp_path_factory):
    """The record of each run by name, made by one launch of four ranks for each back end."""
    made = {}

    def of(backend):
        if backend not in made:
            place = tmp_path_factory.mktemp(backend)
            (place / "table.json").write_text(
                '{"schema": "1", "tables": {"2,2": [{"bytes": 64, "algorithm": "ring"}, '
                '{"bytes": 4096, "algorithm": "leader(cross=ring)"}]}}'
            )
            nodes = "--simulate-nodes 2,2"
            lines = [f"{COMMON} {flags} {nodes}".replace(f"REAL {nodes}", "") for flags in RUNS[backend].values()]
            (place / "flags").write_text("\n".join(lines).replace("TABLE", str(place / "table.json")))
            asked = {"HOROVOD_TIMELINE": "DYNAMIC"} if backend == "horovod" else {}
            done = mpirun(4, PROGRAMS / "many_runs.py", place / "flags", place / "r.jsonl", timeout=240, env=asked)
            assert done.returncode == 0, done.stderr
            found = record.read(place / "r.jsonl").records
            assert len(found) == len(lines), done.stdout + done.stderr
            made[backend] = dict(zip(RUNS[backend], found, strict=True))
        return made[backend]

    return of


@pytest.fixture(scope="module")
def single(alone, tmp_path_factory):
    path = tmp_path_factory.mktemp("single") / "r.jsonl"
    done = alone("-m", "hvdkan.train", *COMMON.split(), "--backend", "single", "--record", path)
    assert done.returncode == 0, done.stderr
    return record.read(path).records[0]


@pytest.mark.parametrize(("backend", "name"), NAMES)
def test_the_same_curve_as_single(runs, single, backend, name):
    found = runs(backend)[name]
    assert found["status"] == "ok"
    if name == "idle ranks":
        assert found["samples_seen"] == [6, 6]
        return
    tolerance = 3e-3 if "fp16" in name else 1e-5
    assert found["epoch_loss"] == pytest.approx(single["epoch_loss"], rel=tolerance)


def effective(runs, backend, name):
    found = runs(backend)[name]["effective"]
    return found["allreduce"], found["engine"], found["evidence"].get("twin_of")


def exchange(runs, backend, name):
    return runs(backend)[name]["effective"]["evidence"]["exchange"]


def test_engines_of_the_mpi_back_end(runs):
    cross = "two_level(cross=ring,chunks=2)"
    assert effective(runs, "mpi", f"{cross} hierarchical") == ("hierarchical", cross, None)
    assert effective(runs, "mpi", f"{cross} flat") == ("flat", "ring(chunks=2)", cross)
    assert effective(runs, "mpi", "leader hierarchical") == ("hierarchical", "leader", None)
    assert effective(runs, "mpi", "leader flat") == ("flat", "ring", "leader")
    assert effective(runs, "mpi", "two_level hierarchical") == ("hierarchical", "two_level", None)
    assert effective(runs, "mpi", "two_level flat") == ("flat", "two_level", None)
    assert effective(runs, "mpi", "rabenseifner") == ("flat", "rabenseifner", None)
    assert effective(runs, "mpi", "mpi's own") == ("stock", "flat", None)


def test_messages_are_seen_to_be_sent(runs):
    """A leader talks to its node and the other leader, a ring's member to two neighbours."""
    (call,) = runs("mpi")["leader hierarchical"]["effective"]["evidence"]["calls"]
    assert call.startswith("MPI_Isend over 2")
    (call,) = runs("mpi")["rabenseifner"]["effective"]["evidence"]["calls"]
    assert call.startswith("MPI_Isend over 2")
    assert runs("mpi")["mpi's own"]["effective"]["evidence"]["calls"] == ["MPI_Allreduce over 4: 64"]


@pytest.mark.parametrize(
    ("backend", "name", "overlap"),
    [
        ("mpi", "buckets", True),
        ("mpi", "after", False),
        ("ddp", "stock buckets", True),
        ("ddp", "mpi flat", True),
        ("ddp", "hook fp16", False),
    ],
)
def test_buckets_of_single_parameters(runs, backend, name, overlap):
    found = exchange(runs, backend, name)
    width = 2 if "fp16" in name else 1
    assert found["buckets"] == 6
    assert sorted(found["bytes"]) == sorted(size // width for size in EACH)
    assert found["overlap"] is overlap
    assert runs(backend)[name]["exchange_of"].endswith("in pieces")


def test_overlap_changes_no_bit(runs):
    assert runs("mpi")["buckets"]["epoch_loss"] == runs("mpi")["after"]["epoch_loss"]
    assert runs("mpi")["buckets"]["test_loss"] == runs("mpi")["after"]["test_loss"]


def test_fusion_fills_buckets(runs):
    assert exchange(runs, "mpi", "two_level buckets")["bytes"] == [896, 1024]
    assert exchange(runs, "mpi", "two_level flat")["bytes"] == [1920]


def test_without_overlap_ddp_has_one_bucket(runs):
    found = exchange(runs, "ddp", "after")
    assert (found["buckets"], found["overlap"]) == (1, False)


def test_horovod_without_overlap(runs):
    """Counted as training went: exchanges that were under way when backward had ended."""
    for name, started in (("during", 6), ("after", 0)):
        found = exchange(runs, "horovod", name)
        assert (found["tensors"], found["started_in_backward"], found["overlap"]) == (6, started, started > 0)


@pytest.mark.parametrize("name", ["during", "after", "process_sets fp16"])
def test_horovods_timeline_is_split(runs, name):
    found = runs("horovod")[name]["effective"]["evidence"]["timeline"]
    assert 1 <= found["steps"] <= 5
    assert found["waiting_s"] > 0
    assert 0 < found["exchanging_s"] < 1
    # One buffer needs no fusion buffer.
    assert (found["copying_s"] > 0) is (name != "process_sets fp16")


@pytest.mark.parametrize(("backend", "name"), [pair for pair in NAMES if "fp16" in pair[1]])
def test_compressed_gradients_are_half_as_long(runs, backend, name):
    found = runs(backend)[name]
    assert found["grad_bytes"] == sum(exchange(runs, backend, name)["bytes"]) == sum(EACH) // 2
    assert exchange(runs, backend, name)["compression"] == "fp16"
    assert exchange(runs, backend, name)["wire_dtype"] == "float16"
    assert found["epoch_loss"] != runs(backend)["after"]["epoch_loss"]


def test_auto_is_measured_at_start(runs):
    found = runs("mpi")["auto"]
    assert found["requested"]["allreduce"] == "auto"
    evidence = found["effective"]["evidence"]
    assert {parse(name).name for name in evidence["table"].values()} <= {
        "flat", "ring", "recursive_doubling", "rabenseifner", "leader", "two_level",
    }  # fmt: skip
    assert set(evidence["chosen"]) == {"64", "128", "512", "1024"}
    assert found["effective"]["engine"] == evidence["chosen"]["1024"]
    assert found["effective"]["allreduce"] in ("flat", "hierarchical")


def test_auto_chooses_from_a_file(runs):
    found = runs("mpi")["table"]["effective"]
    assert (found["allreduce"], found["engine"]) == ("hierarchical", "leader")
    assert found["evidence"]["table"] == {"64": "ring", "4096": "leader"}
    assert found["evidence"]["chosen"] == {"1920": "leader"}


def test_han_on_one_node_is_flat(runs):
    found = runs("horovod")["han"]["effective"]
    assert (found["allreduce"], found["engine"], found["reason"]) == ("flat", "builtin", "one node")
    assert found["evidence"]["twin_of"] == "han"


def test_mpi_reads_hans_priority(mpirun):
    done = mpirun(2, PROGRAMS / "han.py", "hierarchical")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("priority 100 of none: None") == 2


def test_ddp_over_mpi(runs):
    for name, allreduce, engine in (
        ("mpi stock", "stock", "flat"), ("mpi flat", "flat", "ring"), ("mpi hierarchical", "hierarchical", "two_level"),
    ):  # fmt: skip
        found = runs("ddp")[name]["effective"]
        assert (found["allreduce"], found["engine"], found["transport"]) == (allreduce, engine, "mpi")
        assert all(call.startswith("MPI_") for call in found["evidence"]["calls"])


REFUSED = {
    "--backend mpi --allreduce auto --allreduce-table /nowhere": "--allreduce-table: /nowhere cannot be read",
    "--allreduce flat --fusion-mb 1": "--fusion-mb has no meaning with --engine process_sets",
    "--allreduce flat --engine torus": "--engine is 'torus', but this Horovod ignores it without NCCL and GPUs",
    "--allreduce flat --engine han --simulate-nodes 1,1": "'han', but Open MPI acts on real nodes only",
    "--allreduce flat --engine han --transport gloo": "'han', but the transport is gloo, not MPI",
}


def test_what_cannot_run_is_refused_on_all_ranks(mpirun, tmp_path):
    (tmp_path / "flags").write_text("\n".join(f"{COMMON} {flags}" for flags in REFUSED))
    done = mpirun(2, PROGRAMS / "many_runs.py", tmp_path / "flags", tmp_path / "r.jsonl", timeout=60)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == len(REFUSED), done.stderr
    for line, words in zip(errors, REFUSED.values(), strict=True):
        assert words in line
    assert done.stdout.count("ran 2") == 2 * len(REFUSED)


def test_ddp_over_mpi_needs_mpi(torchrun):
    done = torchrun(2, "-m", "hvdkan.train", *COMMON.split(), "--backend", "ddp", "--transport", "mpi", timeout=60)
    assert done.returncode != 0
    assert "--transport is 'mpi', but torchrun offers no MPI; it must be auto or gloo" in done.stderr
