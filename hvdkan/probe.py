"""How much of a step is exchange: the same steps with and without it, interleaved, on a scratch copy of the model."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from hvdkan.backends.base import Backend, Wrapped
from hvdkan.clock import Clock

_BLOCK = 5


@dataclass
class Probe:
    """Seconds of each step on this rank. ``wait_s`` and ``exchange_s`` split an exchange after a barrier."""

    with_s: list[float] = field(default_factory=list)
    without_s: list[float] = field(default_factory=list)
    exchange_s: list[float] = field(default_factory=list)
    wait_s: list[float] = field(default_factory=list)


def probe(backend: Backend, wrapped: Wrapped, step: Callable[[], object], steps: int, clock: Clock) -> Probe:
    """Measure ``steps`` steps of each kind; ``step`` makes one step of the scratch copy ``wrapped``.

    Blocks of both kinds alternate, and which comes first alternates too, so that a drift of the machine cancels.
    Collective. Ranks diverge on the scratch copy: throw it away.
    """
    measured = Probe()
    # The bytes that training sends: zeros would do for the sum, but denormal or constant data can flatter a transport.
    numbers = sum(parameter.numel() for parameter in wrapped.model.parameters() if parameter.requires_grad)
    dtype = next(wrapped.model.parameters()).dtype
    gradient = torch.linspace(-1, 1, numbers, dtype=dtype, device=backend.device)

    def with_exchange(count: int) -> None:
        backend.world.barrier()
        for _ in range(count):
            measured.with_s.append(clock.seconds(step))

    def without_exchange(count: int) -> None:
        backend.world.barrier()
        for _ in range(count):
            with wrapped.paused():
                measured.without_s.append(clock.seconds(step))
            measured.wait_s.append(clock.seconds(backend.world.barrier))
            measured.exchange_s.append(clock.seconds(lambda: backend.average_(gradient)))

    with_exchange(2)
    without_exchange(2)
    measured = Probe()
    for number, start in enumerate(range(0, steps, _BLOCK)):
        count = min(_BLOCK, steps - start)
        for kind in (with_exchange, without_exchange) if number % 2 == 0 else (without_exchange, with_exchange):
            kind(count)
    return measured


def exposed(with_s: list[float], without_s: list[float]) -> dict[str, float | int]:
    """The exposed communication of a step, from times that are the maximum over ranks: (with - without) / with.

    Medians of both; the fraction is not clipped, since a small negative one says how large the noise is.
    """
    with_median, without_median = statistics.median(with_s), statistics.median(without_s)
    return {
        "with_s": with_median,
        "without_s": without_median,
        "fraction": (with_median - without_median) / with_median,
        "steps": len(with_s),
    }
