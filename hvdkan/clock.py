"""Time on one rank, with the device's work finished."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


class Clock:
    """A monotonic clock that waits for the GPU, where there is one, before it is read."""

    def __init__(self, device: torch.device):
        self._synchronize = (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)

    def now(self) -> float:
        self._synchronize()
        return time.perf_counter()

    def seconds(self, work: Callable[[], object]) -> float:
        """How long one call of ``work`` takes."""
        start = self.now()
        work()
        return self.now() - start
