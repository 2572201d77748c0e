"""Each all-reduce as a pure list of steps per rank: testable with no MPI, run by MPI, Horovod or torch alike.

A schedule works on one fused buffer of ``count`` elements. A step is one call on a group of ranks; all members of a
group meet it in the same place of their lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from mpi.topology import Topology


@dataclass(frozen=True)
class Step:
    """One collective call.

    ``reduce_scatter``: the buffer is summed over ``group``; member i keeps ``counts[i]`` elements from ``starts[i]``.
    ``allreduce``: the segment that this rank keeps (``counts`` has one entry) is summed over ``group``.
    ``allgather``: member i gives its segment; all members hold the whole buffer again.
    """

    operation: str
    group: tuple[int, ...]
    counts: tuple[int, ...]
    starts: tuple[int, ...]


def two_level(topology: Topology, count: int, rank: int) -> list[Step]:
    """Reduce-scatter within the node, all-reduce of the shards across nodes, all-gather within the node.

    There are as many shards as the smallest node has workers; the other workers of larger nodes keep none.
    With all ranks on one node it is the flat reduce-scatter and all-gather, and the middle call meets nobody.
    """
    shards = min(len(node) for node in topology.members)
    local = topology.local_ranks(rank)
    counts = (*split(count, shards), *(0 for _ in range(len(local) - shards)))
    starts = tuple(accumulate(counts, initial=0))[:-1]
    steps = [Step("reduce_scatter", local, counts, starts)]
    place = topology.local_rank(rank)
    if place < shards:
        across = tuple(sorted(node[place] for node in topology.members))
        steps.append(Step("allreduce", across, (counts[place],), (starts[place],)))
    steps.append(Step("allgather", local, counts, starts))
    return steps


def groups(topology: Topology) -> list[tuple[int, ...]]:
    """Every group of ranks that :func:`two_level` uses, in an order that is the same on all ranks."""
    return sorted({step.group for rank in range(topology.size) for step in two_level(topology, topology.size, rank)})


def split(count: int, parts: int) -> tuple[int, ...]:
    """``count`` elements in ``parts`` parts that differ by one at most, larger ones first."""
    small, larger = divmod(count, parts)
    return tuple(small + (part < larger) for part in range(parts))
