"""Messages of all ranks in one process: every contribution arrives everywhere once, and bytes are as in theory."""

import itertools
import sys
from pathlib import Path

import pytest

from mpi import messages, primitives
from mpi.algorithms import Algorithm, AlgorithmError, every, flat_twin, parse, parse_list, schedule
from mpi.topology import Topology

sys.path.insert(0, str(Path(__file__).parent))
from simulator import Deadlock, run, sent_per_rank

OURS = [
    "ring",
    "recursive_doubling",
    "rabenseifner",
    "ring(chunks=3)",
    "leader",
    "leader(cross=recursive_doubling)",
    "leader(cross=rabenseifner,chunks=2)",
    "two_level(cross=ring)",
    "two_level(cross=recursive_doubling)",
    "two_level(cross=rabenseifner)",
    "two_level(cross=ring,chunks=4)",
]


def everywhere_once(name, topology, count, seed=0):
    """Rank r gives the bit r, so that a sum names its terms."""
    algorithm, size = parse(name), topology.size
    schedules = [schedule(algorithm, topology, count, rank) for rank in range(size)]
    buffers = [[(1 << rank) * (place + 1) for place in range(count)] for rank in range(size)]
    run(schedules, buffers, seed)
    wanted = [((1 << size) - 1) * (place + 1) for place in range(count)]
    assert all(buffer == wanted for buffer in buffers), (name, topology, count)


def shapes(size):
    if size <= 5:
        for cuts in itertools.product((0, 1), repeat=size - 1):
            places = [0, *(at + 1 for at, cut in enumerate(cuts) if cut), size]
            yield tuple(end - begin for begin, end in itertools.pairwise(places))
        return
    # What is odd at an odd size takes turns: one node or one rank a node, two nodes or three.
    for nodes in (2 + size // 2 % 2, 1 if size % 2 else size):
        yield tuple(size // nodes + (node < size % nodes) for node in range(nodes))
    yield (size - 1, 1) if size % 2 else (2,) * (size // 2)


@pytest.mark.parametrize("size", [*range(1, 25), *(pytest.param(n, marks=pytest.mark.slow) for n in range(25, 41))])
def test_every_contribution_once_for_1_to_40_ranks(size):
    for shape in shapes(size):
        topology = Topology.simulated(shape, size)
        for place, name in enumerate(OURS):
            # Large worlds take one count each, all of them over the sizes.
            counts = {0, 1, size - 1, size, size + 1, 2 * size - 1, 97} if size <= 6 else {(size * 7 + place) % 43}
            for count in counts:
                everywhere_once(name, topology, count, seed=place)


@pytest.mark.parametrize("labels", ["ABABABAB", "AAABBBBB", "ABBBBBBB", "ABCDEFGH", "AAAAAAAA", "BACABCAB", "ABBABBAA"])
@pytest.mark.parametrize("name", OURS)
def test_ranks_in_any_order_and_strands_in_any_order(labels, name):
    for seed, count in enumerate((0, 1, 7, 8, 9, 31)):
        everywhere_once(name, Topology.from_labels(labels), count, seed)


def schedules_of(name, topology, count):
    return [schedule(parse(name), topology, count, rank) for rank in range(topology.size)]


def test_bytes_are_those_of_theory():
    n, world = 840, Topology.simulated((8,), 8)
    each = {"ring": 2 * 7 * n // 8, "rabenseifner": 2 * 7 * n // 8, "recursive_doubling": 3 * n}
    for name, wanted in each.items():
        assert sent_per_rank(schedules_of(name, world, n), world, across=False) == [wanted] * 8, name
    rounds = {"ring": 14, "rabenseifner": 6, "recursive_doubling": 3}
    for name, wanted in rounds.items():
        assert [len(strand) for (strand,) in schedules_of(name, world, n)] == [wanted] * 8, name


@pytest.mark.parametrize("chunks", [1, 5])
def test_bytes_across_nodes_are_those_of_theory(chunks):
    """4 nodes of 2: each shard of n/2 is all-reduced across by a ring, 2(N-1)/N n over each node's link."""
    n, topology = 840, Topology.simulated((2, 2, 2, 2), 8)
    found = schedules_of(f"two_level(cross=ring,chunks={chunks})", topology, n)
    assert sent_per_rank(found, topology, across=True) == [2 * 3 * (n // 2) // 4] * 8
    assert sent_per_rank(found, topology, across=False) == [n // 2 * 2] * 8
    found = schedules_of(f"leader(cross=ring,chunks={chunks})", topology, n)
    assert sent_per_rank(found, topology, across=True) == [2 * 3 * n // 4, 0] * 4
    assert sent_per_rank(found, topology, across=False) == [n] * 8


def test_a_ring_crosses_to_each_node_once_whatever_the_order_of_ranks():
    n, topology = 840, Topology.from_labels("ABABABAB")
    found = sent_per_rank(schedules_of("ring", topology, n), topology, across=True)
    assert sorted(found) == [0] * 6 + [2 * 7 * n // 8] * 2


def test_folding_costs_two_rounds_of_everything():
    n, world = 600, Topology.simulated((6,), 6)
    found = schedules_of("recursive_doubling", world, n)
    assert [len(strand) for (strand,) in found] == [2, 4, 2, 4, 2, 2]
    assert sent_per_rank(found, world, across=False) == [n, 3 * n, n, 3 * n, 2 * n, 2 * n]


def test_counts_above_2_to_the_31():
    n, topology = 2**33 + 5, Topology.simulated((3, 2), 5)
    for name in OURS:
        found = schedules_of(name, topology, n)
        ends = {send.start + send.count for strands in found for strand in strands for s in strand for send in s.sends}
        assert max(ends) == n, name
    ring = schedules_of("ring", topology, n)
    assert sum(sent_per_rank(ring, topology, True)) + sum(sent_per_rank(ring, topology, False)) == 2 * 4 * n


def test_large_messages_are_cut_alike_on_both_sides():
    topology = Topology.simulated((2, 3), 5)
    whole = schedules_of("two_level(cross=rabenseifner)", topology, 100)
    cut = [[messages.split_large(strand, 7) for strand in strands] for strands in whole]
    assert max(send.count for strands in cut for strand in strands for s in strand for send in s.sends) == 7
    assert sent_per_rank(cut, topology, True) == sent_per_rank(whole, topology, True)
    buffers = [[1 << rank] * 100 for rank in range(5)]
    run(cut, buffers)
    assert buffers == [[31] * 100] * 5


def test_the_simulator_sees_what_is_wrong(monkeypatch):
    topology = Topology.simulated((3,), 3)
    real = primitives.PRIMITIVES["ring"]
    monkeypatch.setitem(primitives.PRIMITIVES, "ring", lambda g, r, s, c: real(g, r, s, c)[: 4 if r else 3])
    with pytest.raises(Deadlock):
        everywhere_once("ring", topology, 9)
    monkeypatch.setitem(primitives.PRIMITIVES, "ring", lambda g, r, s, c: real(g, r, s, c)[:3])
    with pytest.raises(AssertionError, match="ring"):
        everywhere_once("ring", topology, 9)
    monkeypatch.setitem(primitives.PRIMITIVES, "ring", lambda g, r, s, c: real(g, r, s, c) + real(g, r, s, c))
    with pytest.raises(AssertionError, match="ring"):
        everywhere_once("ring", topology, 9)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ring", "ring"),
        (" two_level ( cross = ring , chunks = 4 ) ", "two_level(cross=ring,chunks=4)"),
        ("two_level(chunks=4,cross=flat)", "two_level(chunks=4)"),
        ("two_level()", "two_level"),
        ("leader(cross=ring,chunks=1)", "leader"),
        ("ring(chunks=64)", "ring(chunks=64)"),
    ],
)
def test_names_are_read_and_written(text, shown):
    assert str(parse(text)) == shown
    assert parse(shown) == parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rings", "algorithm is 'rings'; it must be one of flat, ring, recursive_doubling, rabenseifner, leader, two"),
        ("", "algorithm is ''; it must be one of"),
        ("ring(cross=ring)", "algorithm ring has a parameter 'cross=ring'; it takes chunks, once each"),
        ("flat(chunks=2)", "algorithm flat has a parameter 'chunks=2'; it takes none"),
        ("two_level(depth=2)", "has a parameter 'depth=2'; it takes cross and chunks, once each"),
        ("two_level(chunks=2,chunks=3)", "has a parameter 'chunks=3'; it takes cross and chunks, once each"),
        (
            "two_level(cross=auto)",
            "cross of two_level is 'auto'; it must be one of flat, ring, recursive_doubling, rab",
        ),
        ("leader(cross=flat)", "cross of leader is 'flat'; it must be one of ring, recursive_doubling, rabenseifner"),
        ("ring(chunks=0)", "chunks of ring is '0'; it must be a whole number from 1 to 64"),
        ("ring(chunks=-1)", "chunks of ring is '-1'"),
        ("ring(chunks=65)", "chunks of ring is '65'"),
        ("ring(chunks=", "algorithm is 'ring(chunks='"),
    ],
)
def test_other_names_are_refused_in_one_line(text, message):
    with pytest.raises(AlgorithmError) as raised:
        parse(text)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_lists_of_names():
    topology = Topology.simulated((2, 2), 4)
    found = parse_list("flat,two_level(cross=ring,chunks=4), ring,flat", topology)
    assert list(map(str, found)) == ["flat", "two_level(cross=ring,chunks=4)", "ring"]
    assert parse_list("all", topology) == every(topology)
    assert {algorithm.name for algorithm in every(topology)} == {
        "flat", "ring", "recursive_doubling", "rabenseifner", "leader", "two_level",
    }  # fmt: skip
    assert not any(algorithm.hierarchical for algorithm in every(Topology.simulated((4,), 4)))


def test_twins_and_what_has_no_messages():
    assert flat_twin(parse("two_level(cross=ring,chunks=4)")) == Algorithm("ring", None, 4)
    assert flat_twin(parse("two_level(chunks=4)")) == Algorithm("flat")
    assert flat_twin(parse("ring")) == parse("ring")
    # A hierarchy told that there is one node sends what a ring sends.
    one = Topology.simulated((4,), 4)
    assert schedules_of("two_level(cross=ring)", one, 100) == schedules_of("ring", one, 100)
    with pytest.raises(AlgorithmError, match="two_level has no messages of its own"):
        schedule(parse("two_level"), one, 4, 0)
