"""Our own all-reduce over mpi4py: one entry point, communicators made once and freed once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from mpi.schedules import Step, groups, two_level
from mpi.topology import Topology

ALGORITHMS = ("flat", "two_level")
_CALLS = {"reduce_scatter": "MPI_Reduce_scatter", "allreduce": "MPI_Allreduce", "allgather": "MPI_Allgatherv"}
DTYPES = ("float32", "float64", "int32", "int64")


class Allreduce:
    """Sums a buffer over all ranks, in place. Collective over ``comm`` to make, to call and to close.

    ``flat`` is the MPI library's own all-reduce; ``two_level`` runs :func:`mpi.schedules.two_level`. ``traced`` is told
    each call of MPI with its number of ranks and of elements.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        topology: Topology,
        algorithm: str = "two_level",
        traced: Callable[[str, int, int], None] = lambda call, members, elements: None,
    ):
        if algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm is {algorithm!r}; it must be one of {', '.join(ALGORITHMS)}")
        if topology.size != comm.size:
            raise ValueError(f"the topology places {topology.size} ranks, the communicator has {comm.size}")
        self.algorithm = algorithm
        self._traced = traced
        self._topology = topology
        # A private context: our messages never meet those of another library on the same ranks.
        self._comm = comm.Dup()
        self._of_group: dict[tuple[int, ...], MPI.Comm] = {}
        if algorithm == "two_level":
            for group in groups(topology):
                self._add_group(group)
        self._shard = np.empty(0)

    def _add_group(self, group: tuple[int, ...]) -> None:
        if self._comm.rank in group:
            members = self._comm.group.Incl(group)
            self._of_group[group] = self._comm.Create_group(members)
            members.Free()

    def __call__(self, buffer: np.ndarray) -> np.ndarray:
        """Sum ``buffer`` (contiguous; any shape; the same size and type on all ranks) over the ranks, in place."""
        if buffer.dtype.name not in DTYPES:
            raise TypeError(f"all-reduce of {buffer.dtype.name}; the types are {', '.join(DTYPES)}")
        if not buffer.flags.c_contiguous:
            raise ValueError("all-reduce of an array that is not contiguous")
        flat = buffer.reshape(-1)
        if self.algorithm == "flat":
            self._traced("MPI_Allreduce", self._comm.size, flat.size)
            self._comm.Allreduce(MPI.IN_PLACE, flat)
            return buffer
        for step in two_level(self._topology, flat.size, self._comm.rank):
            self._run(step, flat)
        return buffer

    def _run(self, step: Step, buffer: np.ndarray) -> None:
        comm = self._of_group[step.group]
        self._traced(_CALLS[step.operation], comm.size, sum(step.counts))
        if step.operation == "reduce_scatter":
            self._shard = self._reserved(step.counts[comm.rank], buffer.dtype)
            comm.Reduce_scatter(buffer, self._shard, step.counts)
        elif step.operation == "allreduce":
            comm.Allreduce(MPI.IN_PLACE, self._shard)
        else:
            kind = MPI._typedict[buffer.dtype.char]
            comm.Allgatherv(self._shard, [buffer, step.counts, step.starts, kind])

    def _reserved(self, count: int, dtype: np.dtype) -> np.ndarray:
        if self._shard.size != count or self._shard.dtype != dtype:
            return np.empty(count, dtype)
        return self._shard

    def close(self) -> None:
        """Free the communicators; MPI has some 65,000 of them in a process's life."""
        for comm in (*self._of_group.values(), self._comm):
            if comm != MPI.COMM_NULL:
                comm.Free()
        self._of_group.clear()

    def __enter__(self) -> Allreduce:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
