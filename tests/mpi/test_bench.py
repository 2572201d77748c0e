"""The measuring tool: arguments, what it prints and keeps, and what it sees."""

import json
from pathlib import Path

import pytest

from mpi import results
from mpi.links import Links
from mpi.measuring import Timing
from mpi.options import UsageError, read_options
from mpi.topology import Topology

PROGRAMS = Path(__file__).parent / "programs"
BENCH = ("-m", "mpi.bench")


def timing(samples_s=(1e-3,) * 9, last=(0,) * 9, **changes):
    fields = {"level": "world", "algorithm": "ring", "bytes": 4000, "count": 1000, "ranks": 4, "wrong": 0}
    return Timing(**{**fields, "samples_s": samples_s, "last": last, **changes})


def test_bandwidths_are_those_of_nccl_tests():
    one = timing((0.001, 0.002, 0.004), ranks=8, bytes=8_000_000)
    assert one.median_s == 0.002
    assert one.algorithm_bytes_per_s == pytest.approx(4e9)
    assert one.bus_bytes_per_s == pytest.approx(4e9 * 2 * 7 / 8)
    assert one.p95_s == pytest.approx(0.0038)


def test_the_bound_is_that_of_the_slower_level():
    links = Links(between=25e6, within=1e9)
    nodes = Topology.simulated((2, 2, 2, 2), 8)
    assert links.bound_s("world", nodes, 10**6) == pytest.approx(2 * 3 / 4 * 1e6 / 25e6)
    # Two groups at once share each node's link.
    assert links.bound_s("cross", nodes, 10**6) == pytest.approx(2 * 2 * 3 / 4 * 1e6 / 25e6)
    assert links.bound_s("local", nodes, 10**6) == pytest.approx(2 * 1 / 2 * 1e6 / 1e9)
    assert Links(None, 1e9).bound_s("world", Topology.simulated((4,), 4), 10**6) == pytest.approx(1.5e-3)
    assert Links(None, None).bound_s("world", Topology((0,)), 10**6) is None


def test_rows_show_units_and_the_share_of_the_bound():
    head, units = results.heading().split("\n")
    line = results.row(timing(), bound_s=2.5e-4)
    assert line.split() == ["world", "4000", "1000", "ring", "1000.0", "1000.0", "1000.0", "4.0", "6.0", "25.0", "0"]
    assert len(head) >= len(line.rstrip()) - 9
    assert "(us)" in units and "(MB/s)" in units
    kept = json.loads(results.as_json(timing(), None))
    assert kept["samples_s"] == [1e-3] * 9
    assert kept["last"] == {"0": 9}
    assert kept["of_bound"] is None


def test_stragglers_and_spikes_are_named():
    lines = results.notes([timing(last=(2, 2, 2, 2, 2, 0, 1, 3, 2))], ["a", "b", "c", "d"])
    assert lines == ["straggler: last to end most often: rank 2 (c), in 67% of 9 iterations; 25% if all were alike"]
    even = results.notes([timing(last=(0, 1, 2, 3, 0, 1, 2, 3, 1))], ["a", "b", "c", "d"])
    assert even == ["last to end most often: rank 1 (b), in 33% of 9 iterations; 25% if all were alike"]
    samples = (1e-3,) * 8 + (7e-3,)
    spiky = results.notes([timing(samples, last=(0, 1, 2, 3, 0, 1, 2, 3, 1))] * 6, ["a", "b", "c", "d"])
    assert spiky[1] == "spike: ring at 4000 B took 7000 us in iteration 8, 7 medians; rank 1 (b) was last"
    assert spiky[6] == "spikes: 6 of 54 iterations took more than 5 medians"


def test_sizes_grow_by_a_factor_and_are_read_with_units():
    options = read_options(["-b", "8", "-e", "1K", "-f", "4"])
    assert options.counts(4) == [2, 8, 32, 128]
    assert read_options(["-e", "16M"]).end == 16 * 2**20
    assert read_options(["-b", "5", "-e", "7"]).counts(4) == [1]
    assert read_options(["--simulate-nodes", "4,4"]).simulate_nodes == (4, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--begin x", "--begin is 'x'; it must be a size such as 8, 64K, 16M or 1G"),
        ("--begin 2", "sizes must begin with at least one float32 (4 bytes) and not end below"),
        ("-b 8 -e 4", "--begin is 8 and --end 4;"),
        ("--factor 1", "--factor is '1'; it must be a whole number of at least 2"),
        ("--iterations 0", "--iterations is '0'; it must be a whole number of at least 1"),
        ("--dtype int8", "--dtype is 'int8'; it must be one of float32, float64, int32"),
        ("--levels world,up", "--levels has 'up'; it must be one of world, local, cross"),
        ("--figure a.gif", "--figure is 'a.gif'; its name must end with .svg, .png or .pdf"),
        ("--simulate-nodes 2,x", "--simulate-nodes is 'x'"),
        ("--tune t --dtype float16", "--tune with --dtype float16: it is summed in float32, so tune that"),
        ("--tune t --levels local", "--tune needs --levels world"),
        ("--iter 3", "unrecognized arguments: --iter 3"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(UsageError) as raised:
        read_options(arguments.split())
    assert message in str(raised.value)


@pytest.mark.launch
def test_a_run_measures_every_size_algorithm_and_level(mpirun, tmp_path):
    kept, tuned = tmp_path / "bench.jsonl", tmp_path / "table.json"
    sizes = ("-b", "8", "-e", "4K", "-f", "16", "--iterations", "4", "--warmup", "1", "--simulate-nodes", "2,2")
    done = mpirun(4, *BENCH, *sizes, "--levels", "world,local,cross", "--json", kept, "--tune", tuned)
    assert done.returncode == 0, done.stderr
    run, *rows = map(json.loads, kept.read_text().splitlines())
    assert (run["ranks"], run["placement"], run["simulated_topology"]) == (4, "4G2N", True)
    assert "simulated on one machine: says nothing about a network" in done.stdout
    assert len([line for line in done.stdout.splitlines() if not line.startswith("#")]) == len(rows)
    assert {row["bytes"] for row in rows} == {8, 128, 2048}
    names = {
        level: [row["algorithm"] for row in rows if row["level"] == level] for level in ("world", "local", "cross")
    }
    assert len(set(names["world"])) == len(names["world"]) / 3 > 10
    assert {"flat", "leader", "two_level", "two_level(cross=ring,chunks=4)"} < set(names["world"])
    assert set(names["local"]) == set(names["cross"]) == {
        "flat", "ring", "recursive_doubling", "rabenseifner", "ring(chunks=4)",
    }  # fmt: skip
    assert all(row["wrong"] == 0 and len(row["samples_s"]) == 4 and row["bound_s"] > 0 for row in rows)
    assert all(row["ranks"] == (4 if row["level"] == "world" else 2) for row in rows)
    # The table of the run is what auto goes by in the next.
    done = mpirun(4, *BENCH, *sizes, "--algorithms", "auto", "--table", tuned)
    assert done.returncode == 0, done.stderr
    assert [line.split()[3] for line in done.stdout.splitlines() if not line.startswith("#")] == ["auto"] * 3


@pytest.mark.launch
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int64"])
def test_other_types(mpirun, dtype):
    flags = ("-b", "8", "-e", "64K", "-f", "8192", "--iterations", "3", "--dtype", dtype)
    done = mpirun(3, *BENCH, *flags, "--algorithms", "flat,ring,two_level(cross=ring)", "--simulate-nodes", "2,1")
    assert done.returncode == 0, done.stderr
    assert f"# all-reduce of {dtype}, sum, in place; 3G2N" in done.stdout


@pytest.mark.launch
def test_wrong_sums_are_counted(mpirun):
    done = mpirun(2, PROGRAMS / "broken_bench.py", "-b", "4K", "-e", "4K", "--iterations", "3", "--warmup", "0")
    assert done.returncode == 1, done.stderr
    # One rank's last element of `ring`, three times.
    assert "error: 3 elements came out wrong" in done.stderr
    wrong = {line.split()[3]: line.split()[-1] for line in done.stdout.splitlines() if not line.startswith("#")}
    assert wrong == {"flat": "0", "recursive_doubling": "0", "rabenseifner": "0", "ring(chunks=4)": "0", "ring": "3"}


@pytest.mark.launch
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--algorithms", "rings"], "error: algorithm is 'rings'; it must be one of flat, ring,"),
        (["--simulate-nodes", "3,3"], "error: --simulate-nodes 3,3 places 6 workers, but 2 are running"),
        (["--table", "none.json"], "error: none.json cannot be read: No such file or directory"),
        (["--json", "no/such/place"], "error: no/such/place cannot be written: No such file or directory"),
        (["--tune", __file__], f"error: {__file__} is no table of all-reduces: JSONDecodeError"),
    ],
)
def test_one_line_and_status_2(mpirun, arguments, message):
    done = mpirun(2, *BENCH, *arguments)
    assert done.returncode == 2
    assert next(line for line in done.stderr.splitlines() if "error:" in line).startswith(message)
    assert done.stderr.count("error:") == 1
    assert "Traceback" not in done.stderr
