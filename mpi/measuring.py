"""Times all-reduces: every algorithm in turn within each iteration, so that what drifts meets all of them alike."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from mpi.algorithms import Algorithm
from mpi.allreduce import Allreduce
from mpi.topology import Topology

#: All buffers of a size together, at most and about: more than the caches hold, since one reused buffer flatters.
_ROTATED_BYTES = 32 * 2**20
#: A prime: the pattern of the data lines up with no block.
_PERIOD = 1009


@dataclass(frozen=True)
class Timing:
    """One algorithm at one size. ``samples_s`` has the slowest rank's seconds of each iteration."""

    level: str
    algorithm: str
    bytes: int
    count: int
    ranks: int
    samples_s: tuple[float, ...]
    #: The rank that ended last, for each iteration: the one that waited least for the others.
    last: tuple[int, ...]
    #: Elements that came out wrong, over all ranks, timed iterations and warm-up.
    wrong: int

    @property
    def median_s(self) -> float:
        return float(np.median(self.samples_s))

    @property
    def p95_s(self) -> float:
        return float(np.percentile(self.samples_s, 95))

    @property
    def algorithm_bytes_per_s(self) -> float:
        return self.bytes / self.median_s

    @property
    def bus_bytes_per_s(self) -> float:
        """What each rank must at least send and receive, by time; comparable over numbers of ranks (as nccl-tests)."""
        return self.algorithm_bytes_per_s * 2 * (self.ranks - 1) / self.ranks

    def spikes(self, factor: float = 5) -> list[tuple[int, float]]:
        """Iterations that took more than ``factor`` medians, and their seconds."""
        return [(at, took) for at, took in enumerate(self.samples_s) if took > factor * self.median_s]


class Bench:
    """Algorithms on the groups of one level, made once. ``world`` spans all groups, which run at the same time.

    ``comm`` and ``topology`` are those of this rank's group.
    """

    def __init__(
        self,
        world: MPI.Comm,
        comm: MPI.Comm,
        topology: Topology,
        algorithms: Sequence[Algorithm],
        level: str = "world",
        table=None,
    ):
        self._world, self._comm, self._level = world, comm, level
        self._all = [Allreduce(comm, topology, algorithm, checked=False, table=table) for algorithm in algorithms]

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            for allreduce in self._all:
                allreduce.close()

    def measure(self, count: int, dtype: str, iterations: int, warmup: int) -> list[Timing]:
        """Time all algorithms on ``count`` elements, summed in place. Collective; the same answer on all ranks."""
        buffers = _Buffers(self._comm, count, dtype)
        took, waited = np.zeros((2, iterations, len(self._all)))
        for iteration in range(-warmup, iterations):
            for turn in range(len(self._all)):
                place = (turn + iteration) % len(self._all)
                buffer = buffers.next(place)
                self._world.Barrier()
                begin = time.perf_counter()
                self._all[place](buffer, dtype=dtype)
                end = time.perf_counter()
                # Who was last: clocks of hosts differ, and times do not tell, as who leaves a barrier first takes
                # longest. But the last one does not wait.
                self._world.Barrier()
                if iteration >= 0:
                    took[iteration, place] = end - begin
                    waited[iteration, place] = time.perf_counter() - end
        buffers.check()
        of_ranks, waits = np.array(self._world.allgather(took)), np.array(self._world.allgather(waited))
        wrong = np.array([buffers.wrong[place] for place in range(len(self._all))])
        self._world.Allreduce(MPI.IN_PLACE, wrong)
        return [
            Timing(
                self._level,
                allreduce.algorithm,
                count * buffers.itemsize,
                count,
                self._comm.size,
                tuple(of_ranks[:, :, place].max(axis=0)),
                tuple(waits[:, :, place].argmin(axis=0).tolist()),
                int(wrong[place]),
            )
            for place, allreduce in enumerate(self._all)
        ]


class _Buffers:
    """Buffers in rotation, filled with small whole numbers: their sum is exact in any order, in any type."""

    def __init__(self, comm: MPI.Comm, count: int, dtype: str):
        kind = np.dtype(np.uint16 if dtype == "bfloat16" else dtype)
        self.itemsize = kind.itemsize
        number = int(np.clip(_ROTATED_BYTES // max(1, count * kind.itemsize), 2, 64))
        patterns = [(np.arange(_PERIOD) * 7 + rank * 5) % 11 - 5 for rank in range(comm.size)]
        self._given, self._wanted = (
            np.resize(_of_type(pattern, dtype), count) for pattern in (patterns[comm.rank], sum(patterns))
        )
        self._buffers = [np.empty(count, kind) for _ in range(number)]
        self._used_by: list[int] = []
        self.wrong: Counter[int] = Counter()

    def next(self, user: int) -> np.ndarray:
        """The next buffer, its data in place, for what ``user`` will sum. Checks what was summed a turn ago."""
        if len(self._used_by) == len(self._buffers):
            self.check()
        if not self._used_by:
            for buffer in self._buffers:
                buffer[:] = self._given
        self._used_by.append(user)
        return self._buffers[len(self._used_by) - 1]

    def check(self) -> None:
        for user, buffer in zip(self._used_by, self._buffers, strict=False):
            self.wrong[user] += int(np.count_nonzero(buffer != self._wanted))
        self._used_by.clear()


def _of_type(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)
