"""What :mod:`mpi.bench` prints and keeps: a table in the manner of nccl-tests, notes, and JSON Lines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from mpi.measuring import Timing

SCHEMA = "1.0"
_HEAD = ("level", "size", "count", "algorithm", "min", "median", "p95", "algbw", "busbw", "of bound", "wrong")
_UNIT = ("", "(B)", "(elements)", "", "(us)", "(us)", "(us)", "(MB/s)", "(MB/s)", "(%)", "(elements)")
_WIDTHS = (5, 10, 10, 40, 10, 10, 10, 9, 9, 8, 10)


def heading() -> str:
    return "\n".join("# " + _line(cells) for cells in (_HEAD, _UNIT))


def row(timing: Timing, bound_s: float | None) -> str:
    cells = (
        timing.level,
        str(timing.bytes),
        str(timing.count),
        timing.algorithm,
        *(f"{seconds * 1e6:.1f}" for seconds in (min(timing.samples_s), timing.median_s, timing.p95_s)),
        *(f"{rate / 1e6:.1f}" for rate in (timing.algorithm_bytes_per_s, timing.bus_bytes_per_s)),
        "-" if bound_s is None else f"{100 * bound_s / timing.median_s:.1f}",
        str(timing.wrong),
    )
    return "  " + _line(cells)


def _line(cells: Sequence[str]) -> str:
    return " ".join(
        cell.ljust(width) if place in (0, 3) else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=True))
    ).rstrip()


def as_json(timing: Timing, bound_s: float | None) -> str:
    return json.dumps(
        {
            "kind": "timing",
            "level": timing.level,
            "algorithm": timing.algorithm,
            "bytes": timing.bytes,
            "count": timing.count,
            "ranks": timing.ranks,
            "min_s": min(timing.samples_s),
            "median_s": timing.median_s,
            "p95_s": timing.p95_s,
            "algorithm_bytes_per_s": timing.algorithm_bytes_per_s,
            "bus_bytes_per_s": timing.bus_bytes_per_s,
            "bound_s": bound_s,
            "of_bound": None if bound_s is None else bound_s / timing.median_s,
            "wrong": timing.wrong,
            "last": {str(rank): times for rank, times in sorted(Counter(timing.last).items())},
            "samples_s": timing.samples_s,
        }
    )


def notes(timings: Iterable[Timing], hosts: Sequence[str]) -> list[str]:
    """The rank that ends last most often, and iterations far beyond their median. ``hosts`` has one a rank."""
    timings = list(timings)
    last = Counter(rank for timing in timings for rank in timing.last)
    (rank, times), total = last.most_common(1)[0], last.total()
    alike, share = 1 / len(hosts), times / total
    lines = [
        f"last to end most often: rank {rank} ({hosts[rank]}), in {share:.0%} of {total} iterations; "
        f"{alike:.0%} if all were alike"
    ]
    if len(hosts) > 1 and share > alike + (1 - alike) / 3:
        lines[0] = f"straggler: {lines[0]}"
    spikes = sorted(
        ((took / timing.median_s, took, at, timing) for timing in timings for at, took in timing.spikes()),
        key=lambda spike: -spike[0],
    )
    for factor, took, at, timing in spikes[:5]:
        lines.append(
            f"spike: {timing.algorithm} at {timing.bytes} B took {took * 1e6:.0f} us in iteration {at}, "
            f"{factor:.0f} medians; rank {timing.last[at]} ({hosts[timing.last[at]]}) was last"
        )
    if len(spikes) > 5:
        lines.append(f"spikes: {len(spikes)} of {total} iterations took more than 5 medians")
    return lines
