"""Nobody waits for ever: a job without progress is ended, whatever its ranks are waiting in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Watchdog:
    """Calls ``expired(stage)`` from a thread of its own once ``timeout_s`` have passed without :meth:`beat`.

    A thread, because a rank that waits inside MPI or Horovod answers no signal until the call returns.
    """

    def __init__(self, timeout_s: float, expired: Callable[[str], None]):
        self._timeout_s, self._expired = timeout_s, expired
        self._last = time.monotonic()
        self._stage = "starting"
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def beat(self, stage: str) -> None:
        """There is progress; ``stage`` names what comes next."""
        self._last, self._stage = time.monotonic(), stage

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(min(1.0, self._timeout_s / 4)):
            if time.monotonic() - self._last > self._timeout_s:
                self._expired(self._stage)
                return
