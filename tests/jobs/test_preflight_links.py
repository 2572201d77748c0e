"""Links between nodes: which pairs stand out, as numbers; tests/cluster has them over a real network."""

import pytest

from jobs.preflight import links
from jobs.preflight.links import Pair

GOOD = (20e-6, 1e9, 1e9)


def pairs(hosts, odd=()):
    """All pairs of hosts ``good``, but those in ``odd``: {("a", "b"): (latency, there, back)}."""
    odd = dict(odd)
    return [
        Pair(first, second, *odd.get((first, second), GOOD))
        for place, first in enumerate(hosts)
        for second in hosts[place + 1 :]
    ]


def stand_out(found):
    slow, late = links.suspicious(found, False)
    return [(pair.first, pair.second) for pair in found if pair in slow or pair in late]


@pytest.mark.parametrize(
    ("hosts", "odd", "expected"),
    [
        ("abcd", {}, []),
        # One bad link.
        ("abcd", {("b", "c"): (20e-6, 0.4e9, 1e9)}, [("b", "c")]),
        ("abcd", {("b", "c"): (20e-6, 1e9, 0.4e9)}, [("b", "c")]),
        ("abcd", {("b", "c"): (41e-6, 1e9, 1e9)}, [("b", "c")]),
        # Not twice as bad.
        ("abcd", {("b", "c"): (40e-6, 0.5e9, 1e9)}, []),
        # One bad node: half of the pairs, and the better of the middle values is what they are held against.
        (
            "abcd",
            dict.fromkeys([("a", "c"), ("b", "c"), ("c", "d")], (60e-6, 0.4e9, 0.4e9)),
            [("a", "c"), ("b", "c"), ("c", "d")],
        ),
        (
            "abcd",
            dict.fromkeys([("a", "c"), ("b", "c"), ("c", "d")], (60e-6, 1e9, 1e9)),
            [("a", "c"), ("b", "c"), ("c", "d")],
        ),
        (
            "abcd",
            dict.fromkeys([("a", "c"), ("b", "c"), ("c", "d")], (20e-6, 1e9, 0.4e9)),
            [("a", "c"), ("b", "c"), ("c", "d")],
        ),
        # Of three nodes one is on most pairs: the best one is the measure.
        ("abc", dict.fromkeys([("a", "c"), ("b", "c")], (60e-6, 1e9, 1e9)), [("a", "c"), ("b", "c")]),
        # All bad alike: nothing stands out.
        ("abcd", {(x, y): (1e-3, 1e6, 1e6) for x in "abc" for y in "bcd"}, []),
        ("ab", {("a", "b"): (1.0, 1.0, 1.0)}, []),
        ("a", {}, []),
    ],
)
def test_pairs_that_stand_out(hosts, odd, expected):
    assert stand_out(pairs(hosts, odd)) == expected


def test_slow_and_late_are_two_things():
    found = pairs("abcd", {("a", "b"): (20e-6, 0.4e9, 1e9), ("c", "d"): (41e-6, 1e9, 1e9)})
    assert links.suspicious(found, False) == ([found[0]], [found[-1]])


def test_a_better_link_does_not_make_the_others_bad():
    assert stand_out(pairs("abcde", {("a", "b"): (1e-6, 9e9, 9e9)})) == []


def test_lines_name_both_hosts_and_the_node_that_all_have():
    odd = dict.fromkeys([("a", "c"), ("b", "c")], (20e-6, 2.5e6, 1e9)) | {("c", "d"): (20e-6, 1e9, 2.5e6)}
    first, *rest = links.judge(pairs("abcd", odd))
    assert (first.level, first.text) == ("ok", "6 pairs of nodes, medians: latency 20 us, 8 Gbit/s")
    assert [(one.check, one.level, one.text) for one in rest] == [
        ("link", "warning", "a - c: 20 Mbit/s there, 8 Gbit/s back; medians: 8 Gbit/s, 20 us"),
        ("link", "warning", "b - c: 20 Mbit/s there, 8 Gbit/s back; medians: 8 Gbit/s, 20 us"),
        ("link", "warning", "c - d: 8 Gbit/s there, 20 Mbit/s back; medians: 8 Gbit/s, 20 us"),
    ]
    assert all(one.remedy.startswith("see to the link of c and the interface") for one in rest)


def test_one_bad_pair_is_both_hosts_matter():
    (_, one) = links.judge(pairs("abcd", {("b", "c"): (90e-6, 1e9, 1e9)}))
    assert one.text == "b - c: latency 90 us; medians: 8 Gbit/s, 20 us"
    assert one.remedy.startswith("see to both links and the interface")


def test_one_pair_has_nothing_to_be_held_against():
    (one,) = links.judge(pairs("ab"))
    assert one.text.endswith("1 pair of nodes, the best: latency 20 us, 8 Gbit/s; nothing to hold it against")
    assert links.judge([]) == []


@pytest.mark.parametrize("shared", ["simulated", "emulated"])
def test_nodes_of_one_machine_say_so_and_its_scheduler_is_no_bad_link(shared):
    odd = {("a", "b"): (0.9e-3, 1e9, 1e9), ("b", "c"): (1.1e-3, 1e9, 1e9), ("c", "d"): (20e-6, 0.4e9, 1e9)}
    first, *rest = links.judge(pairs("abcd", odd), shared)
    assert first.text.endswith(f"; {shared} nodes of one machine: this says nothing about a real network")
    assert [one.text.partition(":")[0] for one in rest] == ["b - c", "c - d"]
    assert all(one.text.endswith(f" ({shared} nodes)") for one in rest)


def test_a_second_look_keeps_the_best_of_both():
    assert Pair("a", "b", 3.0, 5.0, 9.0).better(Pair("a", "b", 2.0, 7.0, 8.0)) == Pair("a", "b", 2.0, 7.0, 9.0)
    assert Pair("a", "b", 3.0, 5.0, 9.0).bandwidth == 5.0
