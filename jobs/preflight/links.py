"""Every pair of nodes, one pair at a time: latency and bandwidth, so that one bad link has a name."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from jobs.preflight.findings import Finding, counted, ok, warning
from mpi.topology import Topology

if TYPE_CHECKING:
    from mpi4py import MPI

PING_BYTES, BULK_BYTES = 8, 2 << 20
#: The most and the fewest repeats, and the seconds after which the fewest are enough.
_PINGS, _FEWEST_PINGS, _BULKS, _FEWEST_BULKS, _BUDGET_S = 200, 20, 7, 3, 0.25
#: A link that looks bad is measured again, since a busy node looks bad for a moment; a bad link stays bad. Latency
#: takes little time, and is what a busy node spoils: it is looked at more often, with growing pauses.
_SECOND_LOOKS, _OF_BANDWIDTH = 10, 2
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5
#: Where nodes share a machine, shorter latencies are its scheduler's and not a link's.
_OF_SCHEDULER_S = 1e-3
_CLOCK_ROUNDS = 20
_POLL_S = 0.002
_TAG = 4711
#: With fewer pairs than this, one bad node is on most of them: the best pair is then what others are held against.
_FEW = 6


@dataclass(frozen=True)
class Pair:
    """What was measured between the first ranks of two nodes: one-way latency, bytes a second there and back."""

    first: str
    second: str
    latency_s: float
    there: float
    back: float

    @property
    def bandwidth(self) -> float:
        """That of the slower direction."""
        return min(self.there, self.back)

    def better(self, other: Pair) -> Pair:
        """The best of two measurements of one pair."""
        return Pair(
            self.first,
            self.second,
            min(self.latency_s, other.latency_s),
            max(self.there, other.there),
            max(self.back, other.back),
        )


# --- judge ---


def reference(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Latency and bandwidth that a pair is held against: the medians (of two middle ones the better), or the best."""
    latencies, rates = [pair.latency_s for pair in pairs], [pair.bandwidth for pair in pairs]
    if len(pairs) < _FEW:
        return min(latencies), max(rates)
    return statistics.median_low(latencies), statistics.median_high(rates)


def suspicious(pairs: Sequence[Pair], shared: bool) -> tuple[list[Pair], list[Pair]]:
    """Those with less than half the usual bandwidth, and those with more than twice the usual latency.

    ``shared``: the nodes are simulated or emulated, on one machine.
    """
    if len(pairs) < 2:
        return [], []
    latency, rate = reference(pairs)
    latest = max(2 * latency, _OF_SCHEDULER_S if shared else 0)
    slow = [pair for pair in pairs if pair.bandwidth < rate / 2]
    return slow, [pair for pair in pairs if pair.latency_s > latest]


def judge(pairs: Sequence[Pair], shared: str = "") -> list[Finding]:
    """A line for all pairs, and one for each that stands out; ``shared``: nodes are "simulated" or "emulated"."""
    if not pairs:
        return []
    latency, rate = reference(pairs)
    usual = "the best" if len(pairs) < _FEW else "medians"
    slow, late = suspicious(pairs, bool(shared))
    bad = [pair for pair in pairs if pair in slow or pair in late]
    found = []
    for pair in bad:
        said = []
        if pair in slow:
            said.append(f"{bits(pair.there)} there, {bits(pair.back)} back")
        if pair in late:
            said.append(f"latency {pair.latency_s * 1e6:.0f} us")
        text = f"{pair.first} - {pair.second}: {', '.join(said)}; {usual}: {bits(rate)}, {latency * 1e6:.0f} us"
        found.append(warning("link", text + (f" ({shared} nodes)" if shared else ""), _remedy(bad, pair)))
    text = f"{counted(len(pairs), 'pair')} of nodes, {usual}: latency {latency * 1e6:.0f} us, {bits(rate)}"
    if len(pairs) == 1:
        text += "; nothing to hold it against"
    if shared:
        text += f"; {shared} nodes of one machine: this says nothing about a real network"
    return [ok("links", text), *found]


def _remedy(bad: Sequence[Pair], pair: Pair) -> str:
    """Whose link to look at: a node that stands in several of the bad pairs."""
    often = Counter(host for one in bad for host in (one.first, one.second))
    host = max((pair.first, pair.second), key=lambda host: often[host])
    whose = f"the link of {host}" if often[host] > 1 else "both links"
    return f"see to {whose} and the interface taken there (OMPI_MCA_btl_tcp_if_include, UCX_NET_DEVICES)"


def bits(rate: float) -> str:
    """Bytes a second as people speak of links."""
    value = rate * 8
    unit, scale = ("Gbit/s", 1e9) if value >= 1e9 else ("Mbit/s", 1e6)
    return f"{value / scale:.3g} {unit}"


# --- measure ---


def measure(
    comm: MPI.Comm, topology: Topology, hosts: Sequence[str], shared: bool, beat: Callable[[str], None]
) -> list[Pair]:
    """Measure every pair of nodes between their first ranks. Collective; the pairs on all ranks.

    ``hosts[rank]`` names a rank's node; ``shared`` is that of :func:`suspicious`; ``beat`` is told what comes next.
    """
    leaders = [members[0] for members in topology.members]
    pairs = _look(comm, list(combinations(leaders, 2)), hosts, beat)
    for number in range(_SECOND_LOOKS):
        slow, late = suspicious(list(pairs.values()), shared)
        bulk = number < _OF_BANDWIDTH
        keys = [key for key, pair in pairs.items() if pair in late or (bulk and pair in slow)]
        if not keys:
            break
        time.sleep(min(_PAUSE_S * 2**number, _LONGEST_PAUSE_S))
        again = _look(comm, keys, hosts, beat, [key for key in keys if bulk and pairs[key] in slow])
        pairs |= {key: pairs[key].better(pair) for key, pair in again.items()}
    return list(pairs.values())


def _look(comm, keys, hosts, beat, bulk=None) -> dict[tuple[int, int], Pair]:
    """Latency of the pairs of ranks ``keys``, and bandwidth of those in ``bulk`` (None: of all; others get 0)."""
    mine = {}
    for first, second in keys:
        beat(f"the link between {hosts[first]} and {hosts[second]}")
        if comm.rank in (first, second):
            peer, with_bulk = second if comm.rank == first else first, bulk is None or (first, second) in bulk
            latency, there, back = _one(comm, peer, comm.rank == first, with_bulk)
            if comm.rank == first:
                mine[first, second] = Pair(hosts[first], hosts[second], latency, there, back)
        wait_quietly(comm)
    beat("the links' results")
    gathered = {key: pair for part in comm.allgather(mine) for key, pair in part.items()}
    # In the same order on all ranks, who go on by it.
    return {key: gathered[key] for key in keys}


def wait_quietly(comm: MPI.Comm) -> None:
    """A barrier whose waiting ranks leave their core to those that measure."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(_POLL_S)


def _one(comm, peer: int, leads: bool, with_bulk: bool) -> tuple[float, float, float]:
    """Latency, bytes a second to the peer and from it; known to the rank that leads."""
    ping, bulk = np.zeros(PING_BYTES, np.uint8), np.zeros(BULK_BYTES, np.uint8)
    latency = _send(comm, peer, ping, ping, _PINGS, _FEWEST_PINGS) / 2 if leads else _receive(comm, peer, ping, ping)
    if not with_bulk:
        return latency, 0.0, 0.0
    answer = np.zeros(PING_BYTES, np.uint8)
    there = _send(comm, peer, bulk, answer, _BULKS, _FEWEST_BULKS) if leads else _receive(comm, peer, bulk, answer)
    back = _receive(comm, peer, bulk, answer) if leads else _send(comm, peer, bulk, answer, _BULKS, _FEWEST_BULKS)
    seconds = np.array([back])
    if leads:
        comm.Recv(seconds, peer, _TAG)
    else:
        comm.Send(seconds, peer, _TAG)
    if not leads:
        return 0.0, 0.0, 0.0
    return latency, BULK_BYTES / there, BULK_BYTES / seconds[0]


def _send(comm, peer: int, buffer: np.ndarray, answer: np.ndarray, most: int, fewest: int) -> float:
    """Send and await the answer, until often enough; the median time of it. The first, which connects, is left out."""
    taken: list[float] = []
    origin = time.perf_counter()
    for number in range(most + 1):
        start = time.perf_counter()
        last = number == most or (number >= fewest and start - origin > _BUDGET_S)
        buffer[0] = last
        comm.Send(buffer, peer, _TAG)
        comm.Recv(answer, peer, _TAG)
        if number:
            taken.append(time.perf_counter() - start)
        if last:
            break
    return statistics.median(taken)


def _receive(comm, peer: int, buffer: np.ndarray, answer: np.ndarray) -> float:
    last = False
    while not last:
        comm.Recv(buffer, peer, _TAG)
        last = bool(buffer[0])
        comm.Send(answer, peer, _TAG)
    return 0.0


def offsets(comm: MPI.Comm, topology: Topology, hosts: Sequence[str]) -> list[tuple[str, float, float]]:
    """Each node's host, its wall clock minus rank 0's, and how far that may be wrong. Collective; filled on rank 0."""
    found = [(hosts[0], 0.0, 0.0)]
    for members in topology.members:
        leader = members[0]
        if comm.rank == 0 and leader != 0:
            found.append((hosts[leader], *_offset(comm, leader)))
        elif comm.rank == leader and leader != 0:
            _tell(comm)
        wait_quietly(comm)
    return found


def _offset(comm, peer: int) -> tuple[float, float]:
    """By the shortest of some round trips: the peer read its clock half way through it, within half of it."""
    best = (0.0, float("inf"))
    theirs = np.zeros(1)
    for _ in range(_CLOCK_ROUNDS):
        before, start = wall(), time.perf_counter()
        comm.Send(theirs, peer, _TAG)
        comm.Recv(theirs, peer, _TAG)
        half = (time.perf_counter() - start) / 2
        best = min(best, (theirs[0] - before - half, half), key=lambda one: one[1])
    return float(best[0]), float(best[1])


def _tell(comm) -> None:
    mine = np.zeros(1)
    for _ in range(_CLOCK_ROUNDS):
        comm.Recv(mine, 0, _TAG)
        mine[0] = wall()
        comm.Send(mine, 0, _TAG)


def wall() -> float:
    """The clock that nodes should agree on."""
    return time.time()
