"""Carries out exchanges that are under way at once: each is a few generators that yield the requests they wait for."""

from __future__ import annotations

from collections.abc import Callable, Generator

from mpi4py import MPI

#: Posts messages, yields their requests, and is resumed when all are complete; its buffers are its own until it ends.
Task = Generator[list[MPI.Request], None, None]


class Pending:
    """An exchange that was started. Its buffers must be left alone until it is done."""

    def __init__(self, engine: Engine, tasks: list[Task], finish: Callable[[], None]):
        self._engine, self._finish = engine, finish
        self._left = len(tasks)
        for task in tasks:
            engine._resume(self, task)

    @property
    def done(self) -> bool:
        return self._left == 0

    def test(self) -> bool:
        """Whether it is done, after moving on whatever can move. Does not wait."""
        if not self.done:
            self._engine.progress(wait=False)
        return self.done

    def wait(self) -> None:
        """Return when it is done. All exchanges of the engine go on meanwhile, so that ranks may wait in any order."""
        while not self.done:
            self._engine.progress(wait=True)

    def _ended(self) -> None:
        self._left -= 1
        if self.done:
            self._finish()


class Engine:
    """Moves all exchanges of one all-reduce on: MPI knows single messages, not which one follows which."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Pending, Task, list[MPI.Request]]] = []

    def start(self, tasks: list[Task], finish: Callable[[], None] = lambda: None) -> Pending:
        return Pending(self, tasks, finish)

    def progress(self, wait: bool) -> None:
        """Resume every task whose requests are complete; with ``wait``, only return after some request completed."""
        waiting = self._waiting
        if wait and len(waiting) == 1:
            MPI.Request.Waitall(waiting[0][2])
        else:
            requests = [request for _, _, own in waiting for request in own]
            (MPI.Request.Waitsome if wait else MPI.Request.Testsome)(requests)
        # A complete request is null. Earlier tasks first: a pipeline's first chunk is the one to get ahead.
        self._waiting = []
        for pending, task, requests in waiting:
            if any(requests):
                self._waiting.append((pending, task, requests))
            else:
                self._resume(pending, task)

    def _resume(self, pending: Pending, task: Task) -> None:
        requests = next(task, None)
        if requests is None:
            pending._ended()
        else:
            self._waiting.append((pending, task, requests))
