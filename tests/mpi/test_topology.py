import pytest

from mpi.topology import Topology, TopologyError, workers_per_host


@pytest.mark.parametrize(
    ("labels", "placement", "local", "cross"),
    [
        ("AAAABBBB", "8G2N", [0, 1, 2, 3, 0, 1, 2, 3], [(0, 4), (1, 5), (2, 6), (3, 7)] * 2),
        (
            "ABABABAB",
            "8G2N",
            [0, 0, 1, 1, 2, 2, 3, 3],
            [(0, 1), (0, 1), (2, 3), (2, 3), (4, 5), (4, 5), (6, 7), (6, 7)],
        ),
        (
            "AAABBBBB",
            "8G2N",
            [0, 1, 2, 0, 1, 2, 3, 4],
            [(0, 3), (1, 4), (2, 5), (0, 3), (1, 4), (2, 5), (6,), (7,)],
        ),
        ("ABBBBBBB", "8G2N", [0, 0, 1, 2, 3, 4, 5, 6], [(0, 1), (0, 1), (2,), (3,), (4,), (5,), (6,), (7,)]),
        ("ABCDEFGH", "8G8N", [0] * 8, [tuple(range(8))] * 8),
        ("AAAAAAAA", "8G1N", list(range(8)), [(rank,) for rank in range(8)]),
    ],
)
def test_place_of_every_rank(labels, placement, local, cross):
    topology = Topology.from_labels(labels)
    assert topology.placement == placement
    assert [topology.local_rank(rank) for rank in range(8)] == local
    assert [topology.cross_ranks(rank) for rank in range(8)] == cross
    for rank in range(8):
        assert topology.cross_ranks(rank)[topology.cross_rank(rank)] == rank
        assert topology.local_ranks(rank)[topology.local_rank(rank)] == rank


def test_degenerate_hierarchies_have_a_reason():
    assert Topology.from_labels("AA").degenerate == "one node"
    assert Topology.from_labels("AB").degenerate == "one worker per node"
    assert Topology.from_labels("AAB").degenerate is None
    assert Topology.from_labels("A").degenerate == "one node"


def test_simulated_nodes_must_hold_all_ranks():
    assert Topology.simulated((2, 1), 3).nodes == (0, 0, 1)
    with pytest.raises(TopologyError, match="--simulate-nodes 2,2 places 4 workers, but 3 are running"):
        Topology.simulated((2, 2), 3)


def test_twin_has_one_node_and_the_same_ranks():
    twin = Topology.from_labels("ABAB").as_one_node()
    assert twin.placement == "4G1N"


def test_workers_per_host_counts_ranks():
    assert workers_per_host(["a 1", "b 2", "a 1"]) == {"a": 2, "b": 1}
