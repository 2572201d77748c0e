"""Sends the messages of our own algorithms."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache

import numpy as np
from mpi4py import MPI

from mpi.algorithms import Algorithm, schedule
from mpi.collectives import LIMIT, Traced
from mpi.engine import Engine, Task
from mpi.messages import Schedule, Strand, elements_sent, peers, split_large
from mpi.topology import Topology


class Messages:
    """One algorithm on one communicator. Schedules and scratch buffers are kept: training has few sizes."""

    def __init__(self, comm: MPI.Comm, topology: Topology, algorithm: Algorithm, traced: Traced):
        self._comm, self._topology, self._algorithm, self._traced = comm, topology, algorithm, traced
        # Making a schedule takes longer than sending a small buffer.
        self._schedule = lru_cache(maxsize=64)(self._new_schedule)
        self._scratch: dict[tuple[int, np.dtype], list[np.ndarray]] = defaultdict(list)

    def run(self, engine: Engine, buffer: np.ndarray, tag: int) -> None:
        """Sum a one-dimensional ``buffer`` in place. Collective."""
        engine.start(self.tasks(buffer, tag)).wait()

    def tasks(self, buffer: np.ndarray, tag: int) -> list[Task]:
        """The same as one task a strand, with tags from ``tag`` on."""
        strands = self._schedule(buffer.size)
        self._traced("MPI_Isend", len(peers(strands)), elements_sent(strands))
        return [self._run(strand, buffer, tag + number) for number, strand in enumerate(strands)]

    def _new_schedule(self, count: int) -> Schedule:
        strands = schedule(self._algorithm, self._topology, count, self._comm.rank)
        return [split_large(strand, LIMIT) for strand in strands] if count > LIMIT else strands

    def _run(self, strand: Strand, buffer: np.ndarray, tag: int) -> Task:
        room = scratch_count(strand)
        free = self._scratch[room, buffer.dtype]
        scratch = free.pop() if free else np.empty(room, buffer.dtype)
        yield from run_strand(self._comm, strand, buffer, scratch, tag)
        free.append(scratch)


def run_strand(comm: MPI.Comm, strand: Strand, buffer: np.ndarray, scratch: np.ndarray, tag: int) -> Task:
    """Exchange the messages of ``strand`` on a one-dimensional ``buffer``, in place.

    ``scratch`` has the element type of ``buffer`` and room for what a round adds (:func:`scratch_count`).
    """
    for step in strand:
        requests, sums, used = [], [], 0
        for peer, start, count, add in step.receives:
            into = buffer[start : start + count]
            if add:
                arrived = scratch[used : used + count]
                used += count
                sums.append((into, arrived))
                into = arrived
            requests.append(comm.Irecv(into, peer, tag))
        for peer, start, count in step.sends:
            requests.append(comm.Isend(buffer[start : start + count], peer, tag))
        if requests:
            yield requests
        for total, arrived in sums:
            np.add(total, arrived, out=total)


def scratch_count(strand: Strand) -> int:
    """Elements that the largest round adds."""
    return max((sum(receive.count for receive in step.receives if receive.add) for step in strand), default=0)
