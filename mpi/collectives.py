"""All-reduce by the MPI library's own collectives: at once, or in the node and across nodes, in chunks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import numpy as np
from mpi4py import MPI

from mpi.engine import Task
from mpi.schedules import groups, split, two_level
from mpi.topology import Topology

#: Elements that one call may count: many MPIs take a C int.
LIMIT = 2**30
_CALLS = {"reduce_scatter": "MPI_Reduce_scatter", "allreduce": "MPI_Allreduce", "allgather": "MPI_Allgatherv"}
Traced = Callable[[str, int, int], None]


class Flat:
    """MPI_Allreduce."""

    def __init__(self, comm: MPI.Comm, traced: Traced):
        self._comm, self._traced = comm, traced

    def run(self, buffer: np.ndarray) -> None:
        self._traced("MPI_Allreduce", self._comm.size, buffer.size)
        for part in _parts(buffer):
            self._comm.Allreduce(MPI.IN_PLACE, part)

    def task(self, buffer: np.ndarray) -> Task:
        self._traced("MPI_Iallreduce", self._comm.size, buffer.size)
        yield [self._comm.Iallreduce(MPI.IN_PLACE, part) for part in _parts(buffer)]


def _parts(buffer: np.ndarray) -> list[np.ndarray]:
    # An empty buffer is one call too: all ranks meet.
    return [buffer[at : at + LIMIT] for at in range(0, max(buffer.size, 1), LIMIT)]


class TwoLevel:
    """:func:`mpi.schedules.two_level`, its steps as collectives on a communicator for each group.

    With several chunks, one is all-reduced across nodes while the next is reduce-scattered in the node.
    """

    def __init__(self, comm: MPI.Comm, topology: Topology, traced: Traced):
        self._rank, self._topology, self._traced = comm.rank, topology, traced
        self._of_group: dict[tuple[int, ...], MPI.Comm] = {}
        self._shards: list[np.ndarray] = []
        for group in groups(topology):
            if comm.rank in group:
                members = comm.group.Incl(group)
                self._of_group[group] = comm.Create_group(members)
                members.Free()

    def run(self, buffer: np.ndarray, chunks: int) -> None:
        """Sum a one-dimensional ``buffer`` in place. Collective."""
        for requests in self._task(buffer, chunks, blocking=True):
            MPI.Request.Waitall(requests)

    def task(self, buffer: np.ndarray, chunks: int) -> Task:
        """The same without waiting. One at a time: collectives meet in the order in which they were called."""
        return self._task(buffer, chunks, blocking=False)

    def _task(self, buffer: np.ndarray, chunks: int, blocking: bool) -> Task:
        counts = split(buffer.size, chunks)
        starts = list(accumulate(counts, initial=0))
        parts = [buffer[at : at + count] for at, count in zip(starts, counts, strict=False)]
        plans = [two_level(self._topology, count, self._rank) for count in counts]
        shards = self._reserve([plan[0].counts[plan[0].group.index(self._rank)] for plan in plans], buffer.dtype)
        # Every rank calls in this one order, whatever completes first.
        scatters = []
        for part, (step, *_), shard in zip(parts, plans, shards, strict=True):
            scatters.append(self._call(step, blocking, part, shard, step.counts))
            if blocking:
                scatters[-1] += self._across(plans[len(scatters) - 1], shard, chunks == 1)
        sums = scatters
        if not blocking:
            sums = []
            for plan, shard, scatter in zip(plans, shards, scatters, strict=True):
                yield scatter
                sums.append(self._across(plan, shard, False))
        gathers = []
        for part, plan, shard, total in zip(parts, plans, shards, sums, strict=True):
            if total:
                yield total
            step = plan[-1]
            kind = MPI._typedict[buffer.dtype.char]
            gathers += self._call(step, blocking, shard, [part, step.counts, step.starts, kind])
        if gathers:
            yield gathers

    def _across(self, plan, shard: np.ndarray, blocking: bool) -> list[MPI.Request]:
        """The step between nodes, on ranks that have one."""
        return self._call(plan[1], blocking, MPI.IN_PLACE, shard) if len(plan) == 3 else []

    def _call(self, step, blocking: bool, *arguments) -> list[MPI.Request]:
        comm = self._of_group[step.group]
        name = _CALLS[step.operation]
        name = name if blocking else name.replace("MPI_", "MPI_I").replace("IA", "Ia").replace("IR", "Ir")
        self._traced(name, comm.size, sum(step.counts))
        request = getattr(comm, name.removeprefix("MPI_"))(*arguments)
        return [] if blocking else [request]

    def _reserve(self, counts: list[int], dtype: np.dtype) -> list[np.ndarray]:
        if [(shard.size, shard.dtype) for shard in self._shards] != [(count, dtype) for count in counts]:
            self._shards = [np.empty(count, dtype) for count in counts]
        return self._shards

    def close(self) -> None:
        for comm in self._of_group.values():
            if comm != MPI.COMM_NULL:
                comm.Free()
        self._of_group.clear()
