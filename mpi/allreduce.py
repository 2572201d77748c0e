"""Our own all-reduce over mpi4py: one entry point, communicators made once and freed once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from mpi.algorithms import MOST_CHUNKS, NAMES, Algorithm, parse
from mpi.collectives import Flat, TwoLevel
from mpi.elements import SUMMED_IN, narrowed, refused, widened
from mpi.engine import Engine, Pending
from mpi.topology import Topology, named
from mpi.tuning import Table, measured
from mpi.wire import Messages

ALGORITHMS = tuple(name for name in NAMES if name != "auto")
#: Exchanges under way at once; those beyond wait for the oldest. Their messages are told apart by tag.
MOST_PENDING = 128


class AllreduceError(ValueError):
    """Buffers that cannot be reduced, or that differ between ranks; one line, the same on all ranks where checked."""


class Allreduce:
    """Sums or averages a buffer over all ranks. Collective over ``comm`` to make, to call and to close.

    ``algorithm`` is a name that :func:`mpi.algorithms.parse` reads. All ranks end with the same bits. ``traced`` is
    told each call of MPI with its number of ranks and of elements, messages of ours as one call with all peers.

    `auto` chooses by the size in bytes from ``table``, or from one measured here and now (:mod:`mpi.tuning`).

    While ``checked`` is true (as it is at first; set it on all ranks alike), ranks first compare what they call with,
    and where it differs or cannot be reduced all of them raise the same AllreduceError. Unchecked, ranks that differ
    may wait for each other for ever.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        topology: Topology,
        algorithm: str | Algorithm = "two_level",
        traced: Callable[[str, int, int], None] = lambda call, members, elements: None,
        *,
        checked: bool = True,
        table: Table | None = None,
    ):
        asked = parse(algorithm) if isinstance(algorithm, str) else algorithm
        if topology.size != comm.size:
            raise ValueError(f"the topology places {topology.size} ranks, the communicator has {comm.size}")
        self.algorithm = str(asked)
        self.checked = checked
        self._topology, self._traced = topology, traced
        # A private context: our messages never meet those of another library on the same ranks.
        self._comm = comm.Dup()
        self._engine = Engine()
        self._pending: deque[Pending] = deque()
        self._started = 0
        self._flat = Flat(self._comm, traced)
        self._two_level: TwoLevel | None = None
        self._messages: dict[Algorithm, Messages] = {}
        if asked.name == "auto":
            table = table or measured(comm, topology)
            self._choose = table.choose
        else:
            self._choose = lambda size_bytes: asked
        for one in dict.fromkeys(table.rows.values()) if asked.name == "auto" else [asked]:
            self._prepare(one)

    def _prepare(self, algorithm: Algorithm) -> None:
        """Make what carries ``algorithm`` out. Collective."""
        if not algorithm.calls_mpi:
            self._messages[algorithm] = Messages(self._comm, self._topology, algorithm, self._traced)
        elif algorithm.name == "two_level" and self._two_level is None:
            self._two_level = TwoLevel(self._comm, self._topology, self._traced)

    # --- what is called ---

    def __call__(
        self, buffer: np.ndarray, out: np.ndarray | None = None, op: str = "sum", dtype: str | None = None
    ) -> np.ndarray:
        """Reduce ``buffer`` (contiguous; any shape) over the ranks, in place or into ``out``, which is returned.

        ``op`` is `sum`, or `mean` for floating point types. ``dtype="bfloat16"`` says that uint16 elements are
        bfloat16. Raises AllreduceError before any exchange.
        """
        name, out = self._accepted(buffer, out, op, dtype)
        # Not beside what was started: another rank may have ended that already, and all must make the same calls.
        self._leave_pending(0)
        work = self._work(buffer, out, name)
        algorithm = self._choose(work.nbytes)
        if algorithm in self._messages:
            self._messages[algorithm].run(self._engine, work, self._next_tag())
        elif algorithm.name == "flat":
            self._flat.run(work)
        else:
            self._two_level.run(work, algorithm.chunks)
        self._finish(work, out, op, name)
        return out

    def start(
        self, buffer: np.ndarray, out: np.ndarray | None = None, op: str = "sum", dtype: str | None = None
    ) -> Pending:
        """Begin what a call does and return; ranks start in the same order. It moves on in ``test`` and ``wait``.

        Buffers must be left alone until it is done. With ``checked``, the comparison itself waits for all ranks.
        """
        name, out = self._accepted(buffer, out, op, dtype)
        return self._start(buffer, out, op, name)

    def _start(self, buffer: np.ndarray, out: np.ndarray, op: str, name: str) -> Pending:
        work = self._work(buffer, out, name)
        algorithm = self._choose(work.nbytes)
        # Collectives on the groups' communicators must meet in one order on all ranks: one exchange at a time.
        alone = algorithm.calls_mpi and algorithm.name == "two_level"
        self._leave_pending(0 if alone else MOST_PENDING - 1)
        if algorithm in self._messages:
            tasks = self._messages[algorithm].tasks(work, self._next_tag())
        else:
            tasks = [self._two_level.task(work, algorithm.chunks) if alone else self._flat.task(work)]
        pending = self._engine.start(tasks, lambda: self._finish(work, out, op, name))
        self._pending.append(pending)
        return pending

    def _leave_pending(self, most: int) -> None:
        """End the oldest exchanges, whatever newer ones did: tags come round in the order of starts."""
        while self._pending and (len(self._pending) > most or self._pending[0].done):
            self._pending.popleft().wait()

    def _next_tag(self) -> int:
        self._started += 1
        return self._started % MOST_PENDING * MOST_CHUNKS

    def close(self) -> None:
        """End what is under way and free the communicators; MPI has some 65,000 of them in a process's life."""
        self._leave_pending(0)
        if self._two_level is not None:
            self._two_level.close()
        if self._comm != MPI.COMM_NULL:
            self._comm.Free()

    def __enter__(self) -> Allreduce:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # other ranks may never answer
            self._pending.clear()
        self.close()

    # --- buffers ---

    def _accepted(
        self, buffer: np.ndarray, out: np.ndarray | None, op: str, dtype: str | None
    ) -> tuple[str, np.ndarray]:
        """The name of the element type, and the array that gets the result. Raises AllreduceError."""
        name = dtype or buffer.dtype.name
        out = buffer if out is None else out
        reason = refused(buffer, out, op, name)
        if self.checked:
            self._compare(reason, f"{op} of {buffer.size} x {name}")
        elif reason is not None:
            raise AllreduceError(reason)
        return name, out

    def _compare(self, reason: str | None, call: str) -> None:
        """Raise the same error on all ranks where one refuses or ranks differ. Collective."""
        told = self._comm.allgather((reason, call))
        for rank, (other, _) in enumerate(told):
            if other is not None:
                raise AllreduceError(f"rank {rank}: {other}")
        calls = [other for _, other in told]
        if len(set(calls)) > 1:
            who = {one: [rank for rank, other in enumerate(calls) if other == one] for one in calls}
            shown = "; ".join(f"{one} on {named(ranks)}" for one, ranks in who.items())
            raise AllreduceError(f"ranks call all-reduce with different buffers: {shown}")

    def _work(self, buffer: np.ndarray, out: np.ndarray, name: str) -> np.ndarray:
        """The one-dimensional array to sum in place: ``out`` itself, or a wider copy."""
        if SUMMED_IN[name].itemsize > buffer.itemsize:
            return widened(buffer, name)
        if out is not buffer:
            np.copyto(out, buffer)
        return out.reshape(-1)

    def _finish(self, work: np.ndarray, out: np.ndarray, op: str, name: str) -> None:
        if op == "mean":
            work /= self._comm.size
        if work.itemsize > out.itemsize:
            narrowed(work, name, out)
