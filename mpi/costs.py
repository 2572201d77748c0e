"""What a schedule costs: its messages played through links and processors that each do one thing at a time.

The time of an all-reduce is the longest chain of what must wait for what, and it is counted from the messages
themselves: no algorithm has a formula here. Along that chain lie so many latencies, bytes and additions; each has a
price (the alpha, beta and gamma of Thakur, Rabenseifner and Gropp, 2005), by level, and the time is their sum.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np

from mpi.algorithms import Algorithm, schedule
from mpi.messages import Schedule
from mpi.topology import Topology

#: What is counted on the longest chain, and has a price in seconds each.
PARTS = ("calls", "posted", "hops_within", "hops_between", "bytes_within", "bytes_between", "bytes_added")
_CALL, _POST, _HOP, _BYTES, _ADD = 0, 1, 2, 4, 6
#: A moment: seconds, and what was counted on the chain that leads to it.
_Moment = tuple[float, tuple[float, ...]]


def chain(schedules: Sequence[Schedule], topology: Topology, itemsize: int, prices: Sequence[float]) -> np.ndarray:
    """Parts [7] on the longest chain of ``schedules`` (one a rank) at these prices; their product is the time.

    A rank posts its messages one by one and adds what arrived; a node's link to others carries one message at a time
    each way, and so does a rank's way to the others of its node.
    """
    return np.array(_Player(schedules, topology, itemsize, prices).play()[1])


def parts(algorithm: Algorithm, topology: Topology, count: int, itemsize: int, prices: Sequence[float]) -> np.ndarray:
    """:func:`chain` of an algorithm on ``count`` elements."""
    schedules = [schedule(algorithm, topology, count, rank) for rank in range(topology.size)]
    return chain(schedules, topology, itemsize, prices)


class _Player:
    def __init__(self, schedules: Sequence[Schedule], topology: Topology, itemsize: int, prices: Sequence[float]):
        self._schedules, self._nodes = schedules, topology.nodes
        self._itemsize, self._prices = itemsize, tuple(map(float, prices))
        start: _Moment = (self._prices[_CALL], (1.0, *(0.0,) * (len(PARTS) - 1)))
        self._start = self._end = start
        self._free: dict[tuple, _Moment] = defaultdict(lambda: start)
        self._wires: dict[tuple[int, int, int], deque[_Moment]] = defaultdict(deque)
        self._waiting: dict[tuple[int, int], tuple[int, _Moment]] = {}
        self._order = 0
        self._due: list = []

    def play(self) -> _Moment:
        """The moment at which the last rank has its sum."""
        for rank, strands in enumerate(self._schedules):
            for strand in range(len(strands)):
                self._later(self._start, self._begin, rank, strand, 0)
        # In the order of time, so that a link serves who comes first.
        while self._due:
            _, _, moment, action, *where = heapq.heappop(self._due)
            action(moment, *where)
        assert not self._waiting, "a schedule that waits for ever has no cost"
        return self._end

    def _later(self, moment: _Moment, action, *where: int) -> None:
        self._order += 1
        heapq.heappush(self._due, (moment[0], self._order, moment, action, *where))

    def _begin(self, moment: _Moment, rank: int, strand: int, place: int) -> None:
        if place == len(self._schedules[rank][strand]):
            self._end = max(self._end, moment)
            return
        step = self._schedules[rank][strand][place]
        posted = len(step.sends) + len(step.receives)
        moment = self._after(max(moment, self._free["cpu", rank]), {_POST: posted})
        self._free["cpu", rank] = sent = moment
        reached = []
        for peer, _, count in step.sends:
            between = self._nodes[rank] != self._nodes[peer]
            ways = (("out", self._nodes[rank]), ("in", self._nodes[peer])) if between else (("out of rank", rank),)
            gone = self._after(
                max(moment, *(self._free[way] for way in ways)), {_BYTES + between: count * self._itemsize}
            )
            for way in ways:
                self._free[way] = gone
            sent = max(sent, gone)
            self._wires[rank, peer, strand].append(self._after(gone, {_HOP + between: 1}))
            reached.append((peer, strand))
        self._waiting[rank, strand] = (place, sent)
        for key in ((rank, strand), *reached):
            self._await(*key)

    def _await(self, rank: int, strand: int) -> None:
        """Go on when all is here that the rank's round waits for, if it is on its way."""
        if (rank, strand) not in self._waiting:
            return
        place, moment = self._waiting[rank, strand]
        receives = self._schedules[rank][strand][place].receives
        needed: dict[int, int] = defaultdict(int)
        for receive in receives:
            needed[receive.peer] += 1
        if any(len(self._wires[peer, rank, strand]) < number for peer, number in needed.items()):
            return
        del self._waiting[rank, strand]
        for receive in receives:
            moment = max(moment, self._wires[receive.peer, rank, strand].popleft())
        self._later(moment, self._add, rank, strand, place)

    def _add(self, moment: _Moment, rank: int, strand: int, place: int) -> None:
        step = self._schedules[rank][strand][place]
        added = sum(receive.count for receive in step.receives if receive.add)
        if added:
            moment = self._after(max(moment, self._free["cpu", rank]), {_ADD: added * self._itemsize})
            self._free["cpu", rank] = moment
        self._later(moment, self._begin, rank, strand, place + 1)

    def _after(self, moment: _Moment, counted: dict[int, float]) -> _Moment:
        seconds, chained = moment
        values = list(chained)
        for part, number in counted.items():
            values[part] += number
            seconds += number * self._prices[part]
        return seconds, tuple(values)
