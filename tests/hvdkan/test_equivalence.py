"""The same global batches give the same training on every back end, engine, world size and placement."""

from pathlib import Path

import pytest

from hvdkan import record

PROGRAMS = Path(__file__).parent / "programs"
TRAIN = ("-m", "hvdkan.train")
# 1100 samples in steps of 300: the last of an epoch has 200, and 3 ranks never share evenly.
SETTINGS = ("--samples", "1100", "--global-batch-size", "300", "--epochs", "3", "--hidden", "16", "--grid", "5")
SETTINGS = (*SETTINGS, "--probe-steps", "5", "--threads", "1")
NODES = {2: "1,1", 3: "2,1", 4: "2,2"}
REASON = {2: "one worker per node", 3: None, 4: None}


#: What each back end really calls, in nodes of ``local`` workers, ``cross`` nodes.
CALLS = {
    "horovod": lambda local, cross: [
        f"reducescatter over {local}",
        f"allreduce over {cross}",
        f"allgather over {local}",
    ],
    "ddp": lambda local, cross: [
        f"all_to_all and sum over {local}",
        f"all_reduce over {cross}",
        f"all_gather over {local}",
    ],
    "mpi": lambda local, cross: [
        f"MPI_Reduce_scatter over {local}",
        f"MPI_Allreduce over {cross}",
        f"MPI_Allgatherv over {local}",
    ],
}


def run(launch, path, *flags):
    done = launch(*TRAIN, *SETTINGS, *flags, "--record", path)
    assert done.returncode == 0, done.stderr
    (found,) = record.read(path).records
    return found


@pytest.fixture(scope="session")
def single(alone, tmp_path_factory):
    return run(alone, tmp_path_factory.mktemp("single") / "r.jsonl", "--backend", "single")


def agrees(found, single):
    assert found["samples_seen"] == [1100, 1100, 1100]
    assert found["steps"] == single["steps"] == 12
    assert found["epoch_loss"] == pytest.approx(single["epoch_loss"], rel=1e-5)
    assert found["test_loss"] == pytest.approx(single["test_loss"], rel=1e-5)


@pytest.mark.launch
def test_single_learns(single):
    assert single["epoch_loss"][-1] < 0.5 * single["epoch_loss"][0]
    assert single["effective"]["allreduce"] == "none"
    assert single["placement"] == "1G1N"


@pytest.fixture(scope="session")
def twins(mpirun, tmp_path_factory):
    """The records of a flat and a hierarchical run, one after the other in one launch; each launch is made once."""
    made = {}

    def of(backend, size):
        if (backend, size) not in made:
            place = tmp_path_factory.mktemp(f"{backend}{size}")
            common = f"{' '.join(SETTINGS)} --backend {backend} --simulate-nodes {NODES[size]} --allreduce"
            (place / "flags").write_text(f"{common} flat\n{common} hierarchical\n")
            done = mpirun(size, PROGRAMS / "many_runs.py", place / "flags", place / "r.jsonl")
            assert done.returncode == 0, done.stderr
            made[backend, size] = dict(
                zip(("flat", "hierarchical"), record.read(place / "r.jsonl").records, strict=True)
            )
        return made[backend, size]

    return of


@pytest.mark.launch
@pytest.mark.parametrize("allreduce", ["flat", "hierarchical"])
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("backend", ["horovod", "ddp", "mpi"])
def test_same_curve_as_single(twins, single, backend, size, allreduce):
    found = twins(backend, size)[allreduce]
    agrees(found, single)
    effective = found["effective"]
    wanted = "flat" if REASON[size] else allreduce
    assert effective["allreduce"] == wanted
    assert effective["reason"] == (REASON[size] if allreduce == "hierarchical" else None)
    assert effective["engine"] == {"horovod": "process_sets", "ddp": "hook", "mpi": "two_level"}[backend]
    calls = [call.split(":")[0] for call in effective["evidence"]["calls"]]
    assert calls == CALLS[backend](*((2, 2) if wanted == "hierarchical" and size == 4 else (size, 1))) or size == 3
    assert found["simulated_topology"] is True
    assert found["requested"]["allreduce"] == allreduce
    assert found["placement"] == f"{size}G2N"
    assert len(found["exchange_s"]) == len(found["wait_s"]) == found["exposed"]["steps"] == 5
    # Its writer would keep a core busy while steps are timed.
    assert "HOROVOD_TIMELINE" not in found["environment"]["variables"]


@pytest.mark.launch
@pytest.mark.parametrize("backend", ["horovod", "ddp", "mpi"])
def test_stock_on_one_node(mpirun, single, tmp_path, backend):
    found = run(lambda *arguments: mpirun(2, *arguments), tmp_path / "r.jsonl", "--backend", backend)
    agrees(found, single)
    assert found["effective"]["allreduce"] == "stock"
    assert found["effective"]["evidence"].get("mca", {}).get("OMPI_MCA_coll_han_priority", "unset") == "unset"


@pytest.mark.launch
@pytest.mark.parametrize("backend", ["horovod", "ddp", "mpi"])
def test_unequal_nodes(mpirun, single, tmp_path, backend):
    flags = ("--backend", backend, "--allreduce", "hierarchical", "--simulate-nodes", "3,1")
    found = run(lambda *arguments: mpirun(4, *arguments), tmp_path / "r.jsonl", *flags)
    agrees(found, single)
    assert found["effective"]["allreduce"] == "hierarchical"


@pytest.mark.launch
def test_pykan_itself(mpirun, alone, tmp_path):
    flags = ("--operator", "pykan", "--samples", "220", "--global-batch-size", "60", "--hidden", "4", "--epochs", "2")
    one = run(alone, tmp_path / "one.jsonl", *flags, "--backend", "single")
    two = run(lambda *arguments: mpirun(2, *arguments), tmp_path / "two.jsonl", *flags, "--backend", "ddp")
    assert two["epoch_loss"] == pytest.approx(one["epoch_loss"], rel=1e-5)
    assert one["config"]["symbolic"] is True
    assert not Path("model").exists(), "pykan wrote into the working directory"


@pytest.mark.launch
@pytest.mark.parametrize("backend", ["horovod", "ddp"])
def test_torchrun(torchrun, single, tmp_path, backend):
    flags = ("--backend", backend, "--allreduce", "hierarchical", "--simulate-nodes", "2,2")
    found = run(lambda *arguments: torchrun(4, *arguments), tmp_path / "r.jsonl", *flags)
    agrees(found, single)
    assert found["effective"]["allreduce"] == "hierarchical"
    assert found["effective"]["transport"] == "gloo"
    assert found["launcher"] == "torchrun"


@pytest.mark.launch
@pytest.mark.parametrize(("backend", "allreduce"), [("horovod", "stock"), ("horovod", "flat"), ("ddp", "stock")])
def test_horovodrun(horovodrun, single, tmp_path, backend, allreduce):
    flags = ("--backend", backend, "--allreduce", allreduce)
    found = run(lambda *arguments: horovodrun(2, *arguments), tmp_path / "r.jsonl", *flags)
    agrees(found, single)
    assert found["launcher"] == "horovodrun"
    assert found["effective"]["allreduce"] == allreduce
    assert found["effective"]["transport"] == "gloo"


@pytest.mark.launch
@pytest.mark.parametrize("transport", ["mpi", "gloo"])
def test_horovods_transport(mpirun, single, tmp_path, transport):
    """At Gloo, Horovod's bytes are seen on the loopback interface."""
    flags = ("--transport", transport, "--fusion-mb", "1", "--cycle-time-ms", "2")
    before = loopback_bytes()
    found = run(lambda *arguments: mpirun(2, *arguments), tmp_path / "r.jsonl", *flags, "--hidden", "2000")
    sent = loopback_bytes() - before
    assert found["requested"]["transport"] == found["effective"]["transport"] == transport
    if transport == "gloo":  # others may use the interface too, so that only this direction is certain
        assert sent > found["grad_bytes"] * found["steps"] * 2  # two ranks each send one gradient a step
    evidence = found["effective"]["evidence"]
    assert (evidence["fusion_bytes"], evidence["cycle_time_ms"]) == (str(2**20), "2")
    assert found["environment"]["variables"]["HOROVOD_FUSION_THRESHOLD"] == str(2**20)


def loopback_bytes():
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.strip().startswith("lo:"))


@pytest.mark.launch
def test_the_flag_beats_the_variable_and_stock_is_untouched(mpirun, tmp_path):
    environment = {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}
    flags = ("--simulate-nodes", "2,2")

    def launch(*arguments):
        return mpirun(4, *arguments, env=environment)

    found = run(launch, tmp_path / "one.jsonl", *flags)
    assert found["effective"]["allreduce"] == found["requested"]["allreduce"] == "hierarchical"
    found = run(launch, tmp_path / "two.jsonl", *flags, "--allreduce", "stock")
    assert found["effective"]["allreduce"] == "stock"
    assert "HOROVOD_HIERARCHICAL_ALLREDUCE" not in found["environment"]["variables"]


@pytest.mark.launch
@pytest.mark.parametrize("backend", ["horovod", "ddp", "mpi"])
def test_a_world_of_one(alone, single, tmp_path, backend):
    found = run(alone, tmp_path / "r.jsonl", "--backend", backend)
    assert found["epoch_loss"] == pytest.approx(single["epoch_loss"], rel=1e-6)
    assert found["placement"] == "1G1N"
    assert found["exposed"] is None


@pytest.mark.launch
@pytest.mark.parametrize("allreduce", ["stock", "flat"])
@pytest.mark.parametrize("backend", ["horovod", "ddp", "mpi"])
def test_uneven_shards_are_weighted_by_samples(mpirun, backend, allreduce):
    done = mpirun(2, PROGRAMS / "uneven_gradient.py", backend, allreduce)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("gradient 513") == 2


@pytest.mark.launch
@pytest.mark.parametrize("size", [1, 2, 4, 7])
def test_test_error_is_over_distinct_samples(mpirun, size):
    done = mpirun(size, PROGRAMS / "shared_test_set.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("shared") == size
