"""Time and memory on one rank, with the device's work finished."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable

import torch


class Clock:
    """A monotonic clock that waits for the GPU, where there is one, before it is read."""

    def __init__(self, device: torch.device):
        self._device = device
        self._synchronize = (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)

    def now(self) -> float:
        self._synchronize()
        return time.perf_counter()

    def peak_memory(self) -> int:
        """Bytes so far: allocated on a GPU, or resident in the process on a CPU."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    def seconds(self, work: Callable[[], object]) -> float:
        """How long one call of ``work`` takes."""
        start = self.now()
        work()
        return self.now() - start
