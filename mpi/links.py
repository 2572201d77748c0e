"""What the links carry, measured; and the time that no all-reduce can beat on them."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from mpi.topology import Topology

_MESSAGE_BYTES = 2**20


@dataclass(frozen=True)
class Links:
    """Bytes per second, each way at once. ``between`` is of a node's link, ``within`` of each rank of a node."""

    between: float | None
    within: float | None

    def bound_s(self, level: str, topology: Topology, size_bytes: int) -> float | None:
        """The least time to all-reduce: 2(n-1)/n of the bytes through each link, n nodes (Patarasuk and Yuan, 2009).

        Between nodes where there are several, else within. None where there is no link.
        """
        nodes = topology.members
        if level == "local" or len(nodes) == 1:
            return _bound(max(map(len, nodes)), size_bytes, self.within)
        # All local ranks share the node's link; with several groups at once, each has its part.
        groups = min(map(len, nodes)) if level == "cross" else 1
        return _bound(len(nodes), size_bytes * groups, self.between)


def _bound(members: int, size_bytes: int, bytes_per_s: float | None) -> float | None:
    return 2 * (members - 1) / members * size_bytes / bytes_per_s if bytes_per_s and members > 1 else None


def measure_links(comm: MPI.Comm, topology: Topology, repeats: int = 5) -> Links:
    """Rings of messages: through all nodes, by as many local ranks as all nodes have, and in each node. Collective."""
    rank = comm.rank
    place, local, shards = topology.local_rank(rank), topology.local_ranks(rank), min(map(len, topology.members))
    between = within = None
    if len(topology.members) > 1:
        across = tuple(node[place] for node in topology.members) if place < shards else (rank,)
        between = shards * _ring(comm, across, repeats)
    if max(map(len, topology.members)) > 1:
        within = _ring(comm, local, repeats)
    return Links(between, within)


def _ring(comm: MPI.Comm, group: tuple[int, ...], repeats: int) -> float:
    """Bytes per second that each member sends and receives, in the best of the repeats; that of the slowest group."""
    place = group.index(comm.rank)
    after, behind = group[(place + 1) % len(group)], group[place - 1]
    out, into = np.zeros(_MESSAGE_BYTES, np.uint8), np.zeros(_MESSAGE_BYTES, np.uint8)
    took = []
    for _ in range(repeats + 1):  # the first finds routes and memory
        comm.Barrier()
        begin = time.perf_counter()
        if len(group) > 1:
            comm.Sendrecv(out, after, 0, into, behind, 0)
        took.append(comm.allreduce(time.perf_counter() - begin, MPI.MAX))
    return _MESSAGE_BYTES / min(took[1:])
