"""A figure of measured all-reduces: time against size, one line an algorithm, and the time that the links allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from mpi.measuring import Timing

#: Okabe and Ito's palette without yellow; dashes and markers tell apart what shares a colour, and without colour.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#555555")
_DASHES = ("-", "--", ":", "-.")
_MARKERS = "osDv^P"
_UNITS = ((2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def draw(path: Path, timings: Sequence[Timing], bound_s: Callable[[int], float | None], title: str) -> None:
    """Write the medians in the format of the name's ending; ``bound_s`` is the least time for a size in bytes."""
    # Imported here: measuring needs no matplotlib.
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    lines: dict[str, list[Timing]] = {}
    for timing in timings:
        lines.setdefault(timing.algorithm, []).append(timing)
    sizes = sorted({timing.bytes for timing in timings})
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "mpi.bench", "text.parse_math": False}):
        figure = Figure(figsize=(9.5, 5.2), layout="constrained")
        axes = figure.add_subplot()
        # As they end at the right edge, so that the legend reads like the lines.
        for place, (name, own) in enumerate(sorted(lines.items(), key=lambda line: -line[1][-1].median_s)):
            axes.plot(
                [timing.bytes for timing in own],
                [timing.median_s for timing in own],
                color=_COLOURS[place % len(_COLOURS)],
                linestyle=_DASHES[place // len(_COLOURS) % len(_DASHES)],
                marker=_MARKERS[place % len(_MARKERS)],
                markersize=3.5,
                linewidth=1.3,
                label=name,
            )
        bound = [(size, bound_s(size)) for size in sizes if bound_s(size)]
        if bound:
            axes.plot(*zip(*bound, strict=True), color="black", linewidth=2, label="least that the links allow")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _size(value)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _time(value)))
        axes.set_xlabel("size of the buffer")
        axes.set_ylabel("median time of the slowest rank")
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        axes.grid(True, color="#dddddd", linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right upper", frameon=False, fontsize=8)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _size(size: float) -> str:
    unit, name = next(((unit, name) for unit, name in _UNITS if size >= unit), _UNITS[-1])
    return f"{size / unit:g} {name}"


def _time(seconds: float) -> str:
    unit, name = next(((unit, name) for unit, name in ((1, "s"), (1e-3, "ms")) if seconds >= unit), (1e-6, "us"))
    return f"{seconds / unit:g} {name}"
