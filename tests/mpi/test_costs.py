"""Costs counted from schedules, prices fitted to times, and the figure."""

import json

import numpy as np
import pytest
from scipy.optimize import nnls

from mpi.algorithms import parse
from mpi.costs import PARTS, parts
from mpi.figures import draw
from mpi.fit import FitError, Row, fit, held_out, least_squares, read, report, winners
from mpi.measuring import Timing
from mpi.topology import Topology

NODES = Topology.simulated((2, 2, 2, 2), 8)
N = 8000
#: A network of 25 MB/s and 50 us, memory of 2 GB/s.
PRICES = np.array([5e-6, 1e-6, 2e-6, 5e-5, 5e-10, 4e-8, 1e-10])
OURS = (
    "ring",
    "recursive_doubling",
    "rabenseifner",
    "leader",
    "two_level(cross=ring)",
    "two_level(cross=ring,chunks=4)",
)


def counted(name, topology, prices, count=N):
    found = parts(parse(name), topology, count, 4, prices)
    return dict(zip(PARTS, found, strict=True))


def priced(**prices):
    return np.array([prices.get(name, 0.0) for name in PARTS])


@pytest.mark.parametrize(
    ("name", "hops", "sent", "added"),
    [
        ("ring", 14, 2 * 7 * N // 8 * 4, 7 * N // 8 * 4),
        ("recursive_doubling", 3, 3 * N * 4, 3 * N * 4),
        ("rabenseifner", 6, 2 * 7 * N // 8 * 4, 7 * N // 8 * 4),
    ],
)
def test_within_a_node_the_chain_is_that_of_theory(name, hops, sent, added):
    """Thakur, Rabenseifner and Gropp (2005), table 1: latencies, bytes and additions."""
    found = counted(name, Topology.simulated((8,), 8), priced(hops_within=1e-6, bytes_within=1e-9))
    assert (found["hops_within"], found["bytes_within"], found["bytes_added"]) == (hops, sent, added)
    assert found["hops_between"] == found["bytes_between"] == 0
    assert found["calls"] == 1


@pytest.mark.parametrize("name", ["ring", "leader", "two_level(cross=ring)", "two_level(cross=ring,chunks=4)"])
def test_a_nodes_link_carries_what_theory_says(name):
    """2(N-1)/N of the buffer; a ring over all ranks carries 2(p-1)/p."""
    found = counted(name, NODES, priced(bytes_between=4e-8))
    assert found["bytes_between"] == (2 * 7 * N // 8 if name == "ring" else 2 * 3 * N // 4) * 4


def test_local_ranks_share_their_link():
    """All of each buffer, twice, by two ranks of each node through one link."""
    assert counted("recursive_doubling", NODES, priced(bytes_between=4e-8))["bytes_between"] == 2 * 2 * N * 4


def test_one_rank_a_node_has_hops_between_nodes_only():
    found = counted("ring", Topology.simulated((1,) * 8, 8), priced(hops_between=1e-6))
    assert (found["hops_between"], found["hops_within"], found["bytes_within"]) == (14, 0, 0)


def test_a_rank_does_one_thing_at_a_time():
    """Four chunks post four times the messages, and add as much as one does."""
    world = Topology.simulated((8,), 8)
    assert counted("ring(chunks=4)", world, priced(posted=1e-6))["posted"] == 4 * 14 * 2
    assert counted("ring(chunks=4)", world, priced(bytes_added=1e-9))["bytes_added"] == 7 * N // 8 * 4


def test_chunks_let_both_levels_work_at_once():
    even = priced(bytes_within=1.5e-8, bytes_between=1e-8)
    whole, chunked = (
        float(parts(parse(f"two_level(cross=ring,chunks={chunks})"), NODES, 40 * N, 4, even) @ even)
        for chunks in (1, 8)
    )
    size = 40 * N * 4
    within, between = 1.5e-8 * size, 1e-8 * 1.5 * size
    assert whole == pytest.approx(within + between)
    assert max(within, between) <= chunked < 0.75 * whole


def test_every_algorithm_has_a_cost_on_every_shape():
    for shape in ((1,), (3, 1), (1, 1, 3), (5,)):
        topology = Topology.simulated(shape, sum(shape))
        for name in OURS:
            for count in (0, 1, 7):
                assert parts(parse(name), topology, count, 4, PRICES) @ PRICES >= PRICES[0]


def test_least_squares_is_that_of_lawson_and_hanson():
    random = np.random.default_rng(3)
    for _ in range(50):
        table, wanted = random.normal(size=(20, 5)), random.normal(size=20)
        assert least_squares(table, wanted) == pytest.approx(nnls(table, wanted)[0], abs=1e-9)


def synthetic(sizes, noise=0.0, seed=0):
    random = np.random.default_rng(seed)
    rows = [
        Row(parse(name), size, float(parts(parse(name), NODES, size // 4, 4, PRICES) @ PRICES))
        for size in sizes
        for name in OURS
    ]
    flat = [Row(parse("flat"), row.bytes, 0.7 * row.seconds) for row in rows if str(row.algorithm) == "rabenseifner"]
    return [Row(row.algorithm, row.bytes, row.seconds * np.exp(noise * random.normal())) for row in rows + flat]


@pytest.mark.parametrize(("noise", "most"), [(0.0, 0.02), (0.05, 0.06)])
def test_a_fit_predicts_sizes_that_it_has_not_seen(noise, most):
    rows = synthetic([2**power for power in range(6, 23, 2)], noise)
    out = held_out(rows)
    assert len(out) == 4 and 2**6 not in out and 2**22 not in out
    model = fit([row for row in rows if row.bytes not in out], NODES, 4, (1e9, 20e6))
    tested = [row for row in rows if row.bytes in out]
    errors = [abs(model.seconds(row.algorithm, row.bytes) / row.seconds - 1) for row in tested]
    assert np.median(errors) < most
    assert (model.prices >= 0).all()
    assert model.prices[5] == pytest.approx(4e-8, rel=0.05)
    assert str(model.stand_ins[parse("flat")][0]) == "rabenseifner"
    decided = winners(tested, model)
    assert decided and all(measured == predicted for _, measured, predicted in decided)


def test_winners_are_named_only_where_they_differ():
    model = fit(synthetic([256, 2**20]), NODES, 4, (1e9, 20e6))
    one, two = parse("ring"), parse("two_level(cross=ring)")
    assert winners([Row(one, 2**20, 1.0), Row(two, 2**20, 1.1)], model) == []
    assert winners([Row(one, 2**20, 1.0), Row(two, 2**20, 1.3)], model) == [(2**20, "flat", "hierarchical")]


def write(path, rows, **changes):
    run = {
        "kind": "run", "schema": "1.0", "nodes": NODES.nodes, "dtype": "float32",
        "within_bytes_per_s": 1e9, "between_bytes_per_s": 2e7, **changes,
    }  # fmt: skip
    lines = [
        {"level": "world", "algorithm": str(row.algorithm), "bytes": row.bytes, "median_s": row.seconds, "wrong": 0}
        for row in rows
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in (run, *lines)))


def test_a_report_says_how_far_to_trust_it(tmp_path):
    path = tmp_path / "bench.jsonl"
    write(path, synthetic([2**power for power in range(8, 22, 2)]))
    said = report(path)
    error = float(said.split("error on 3 sizes held out, median: ")[1].split("%")[0])
    assert error < 2
    assert "flat as rabenseifner" in said
    for name in (*PARTS, *OURS):
        assert name in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no file of mpi.bench --json"),
        ("{}", "is no file of mpi.bench --json: KeyError 'kind'"),
        ('{"kind": "run", "schema": "2.0"}', "begins with no run of schema 1"),
        ("nonsense", "is no file of mpi.bench --json: JSONDecodeError"),
        ("[" * 5000, "is no file of mpi.bench --json: RecursionError"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "bench.jsonl"
    path.write_text(text)
    with pytest.raises(FitError) as raised:
        read(path)
    assert message in str(raised.value)
    with pytest.raises(FitError, match="cannot be read: No such file"):
        read(tmp_path / "none")
    with pytest.raises(FitError, match="NotReadable not a regular file"):
        read("/dev/zero")


def test_too_few_sizes_or_algorithms_are_refused(tmp_path):
    path = tmp_path / "bench.jsonl"
    write(path, synthetic([64, 128]))
    with pytest.raises(FitError, match="fewer than 3 sizes: none can be held out"):
        report(path)
    write(path, [row for row in synthetic([64, 128, 256]) if row.algorithm.calls_mpi])
    with pytest.raises(FitError, match="no algorithm whose messages are known was measured"):
        report(path)


def test_a_figure_has_a_line_for_each_algorithm_and_the_bound(tmp_path):
    timings = [
        Timing("world", name, size, size // 4, 8, (size * 1e-8,), (0,), 0)
        for name in OURS
        for size in (64, 4096, 2**20)
    ]
    path, again = tmp_path / "a.svg", tmp_path / "b.svg"
    draw(path, timings, lambda size: size * 1e-9, "All-reduce of float32, 8G4N")
    text = path.read_text()
    for shown in (*OURS, "least that the links allow", "All-reduce of float32, 8G4N", "size of the buffer"):
        assert f">{shown}<" in text
    assert "1 MiB" in text or "256 KiB" in text
    draw(again, timings, lambda size: None, "All-reduce of float32, 8G4N")
    assert "least that the links allow" not in again.read_text()
    draw(again, timings, lambda size: size * 1e-9, "All-reduce of float32, 8G4N")
    assert again.read_text() == text
