"""Gradients in one buffer, cut into buckets that are exchanged while backward still computes the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch

from hvdkan.backends.base import Fused

#: MiB of a bucket by default: smaller gradients, such as those of most KANs, are one bucket and one call.
DEFAULT_MIB = 1.0


def cut(sizes: Sequence[int], most: int) -> list[range]:
    """Buckets of consecutive parameters, the last parameters first: backward comes by them in this order.

    ``sizes`` and ``most`` count the same thing. A parameter is never cut: one larger than ``most`` is a bucket.
    """
    buckets, end, filled = [], len(sizes), 0
    for number in reversed(range(len(sizes))):
        if number + 1 < end and filled + sizes[number] > most:
            buckets.append(range(number + 1, end))
            end, filled = number + 1, 0
        filled += sizes[number]
    return [*buckets, range(0, end)]


class Buckets(Fused):
    """A bucket's exchange starts in backward once its last gradient is there, or after backward without ``overlap``.

    ``start`` begins to average a part of the buffer and returns what can be tested and waited for. Buckets start in
    one order on all ranks, whatever order gradients come in: each waits for the start of those before it. A single
    bucket is averaged by ``average_``, after backward.
    """

    def __init__(self, model, optimizer, average_: Callable, start: Callable, bucket_bytes: int, overlap: bool):
        super().__init__(model, optimizer, average_)
        self._start = start
        counts = [parameter.numel() for parameter in self.parameters]
        buckets = cut([count * self.buffer.element_size() for count in counts], bucket_bytes)
        ends = list(accumulate(counts, initial=0))
        self._parts = [self.buffer[ends[bucket.start] : ends[bucket.stop]] for bucket in buckets]
        self._lengths = [len(bucket) for bucket in buckets]
        self._missing: list[int] = []
        self._started: list = []
        self._overlap = overlap and len(buckets) > 1
        self._watching = False
        self._started_in_backward = 0
        if self._overlap:
            for number, bucket in enumerate(buckets):
                for place in bucket:
                    self.parameters[place].register_post_accumulate_grad_hook(self._hook(number))

    @property
    def whole(self) -> bool:
        return len(self._parts) == 1

    def evidence(self) -> dict[str, Any]:
        sizes = [part.numel() * part.element_size() for part in self._parts]
        return super().evidence() | {
            "buckets": len(sizes),
            "bytes": sizes,
            "overlap": self._started_in_backward > 0,
            "started_in_backward": self._started_in_backward,
        }

    def backward(self, loss: torch.Tensor) -> None:
        if self._started:
            raise RuntimeError("a second backward before exchange(): the first one's gradients are under way")
        self._missing = list(self._lengths)
        self._watching = self._overlap
        try:
            super().backward(loss)
        finally:
            self._watching = False

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        def arrived(_: torch.Tensor) -> None:
            if not self._watching:
                return
            self._missing[number] -= 1
            while len(self._started) < len(self._parts) and self._missing[len(self._started)] == 0:
                self._start_next()
            # MPI moves on inside its calls only; the test of one moves all that are under way.
            any(not one.test() for one in self._started)

        return arrived

    def _start_next(self) -> None:
        self._started.append(self._start(self._parts[len(self._started)]))

    def exchange(self) -> None:
        if self.whole:
            super().exchange()
            return
        self._started_in_backward = len(self._started)
        while len(self._started) < len(self._parts):
            self._start_next()
        for one in self._started:
            one.wait()
        self._started.clear()

    @contextmanager
    def paused(self) -> Iterator[None]:
        overlap, self._overlap = self._overlap, False
        try:
            with super().paused():
                yield
        finally:
            self._overlap = overlap
