"""Figures as SVG to put inside a page. Every launch is a point, and every figure says how many it rests on."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import matplotlib
from matplotlib.figure import Figure as Canvas

from analysis.comparisons import Result
from analysis.scaling import Point, by_series
from analysis.stats import summary
from analysis.text import clean, counted, listed, shortened

#: Okabe and Ito's palette without yellow, told apart with colour-blind eyes; markers repeat the distinction.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
#: A figure with more rows is no figure; the table holds them all.
MOST_ROWS = 24

_STYLE = {
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.7,
    "svg.fonttype": "none",
    "svg.hashsalt": "hvdkan",
    "text.parse_math": False,
    "legend.frameon": False,
}
_WIDTH = 4.4


@dataclass(frozen=True)
class Figure:
    """An SVG document with ids of its own, a caption, and in ``alt`` what it shows for those who cannot see it."""

    name: str
    svg: str
    caption: str
    alt: str
    launches: int


@dataclass
class Row:
    """One line of a dot plot: a label, one value a launch, and flags that must be seen beside it."""

    label: str
    values: Sequence[float]
    marks: tuple[str, ...] = field(default=())


def speedup(points: list[Point], name: str = "scaling") -> Figure | None:
    """Speedup over one worker against workers, both axes logarithmic, with the ideal line. None without a series."""
    series = {label: [p for p in group if p.speedups] for label, group in by_series(points).items()}
    series = {label: group for label, group in series.items() if len({p.placement for p in group}) > 1}
    if not series:
        return None
    shown, left_out = dict(list(series.items())[: len(COLOURS)]), list(series)[len(COLOURS) :]
    workers = sorted({p.workers for group in shown.values() for p in group})
    with matplotlib.rc_context(_STYLE):
        canvas, axes = _axes(3.1 + 0.2 * len(shown))
        axes.plot(workers, workers, color="#777777", linestyle="--", linewidth=1, label="ideal")
        for index, (label, group) in enumerate(shown.items()):
            # Series at the same place are moved apart, or only the last would be seen.
            shift = 1.025 ** (index - (len(shown) - 1) / 2)
            style = {"color": COLOURS[index], "marker": MARKERS[index]}
            axes.plot([p.workers * shift for p in group], [p.speedup for p in group], label=clean(label), **style)
            for p in group:
                if p.workers > 1:
                    at = [p.workers * shift] * len(p.speedups)
                    axes.plot(at, p.speedups, linestyle="", alpha=0.4, markersize=4, **style)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(workers, [_places(shown, n) for n in workers])
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.minorticks_off()
        axes.set_xlabel("workers (placement)")
        axes.set_ylabel("throughput / one worker's")
        canvas.legend(loc="outside lower left", fontsize=8.5)
        svg = _svg(canvas, name)
    # A repeat of a pair in one block is a launch too, but its ratio is one point.
    launches = sum(p.n for group in shown.values() for p in group)
    marks = {mark for group in shown.values() for p in group for mark in p.marks}
    caption = (
        f"Strong scaling; faint points are single blocks, the line their geometric mean. {_rests(launches, marks)}"
    )
    if left_out:
        caption += f" Not drawn: {listed(left_out)}."
    ends = [f"{label} {group[-1].speedup:.2f} at {group[-1].placement}" for label, group in shown.items()]
    return Figure(name, svg, caption, f"Speedup against workers, with the ideal line: {listed(ends)}", launches)


def forest(results: list[tuple[str, Result]], name: str, what: str, margin: float) -> Figure | None:
    """Ratios of step times with their 95% intervals, one row a pair, one faint point a block. None without a pair."""
    measured = [(label, result) for label, result in results if result.effect is not None and result.effect.n]
    if not measured:
        return None
    drawn = measured[:MOST_ROWS]
    with matplotlib.rc_context(_STYLE):
        canvas, axes = _axes(1.1 + 0.52 * len(drawn))
        axes.axvspan(1 / (1 + margin), 1 + margin, color="#e8e8e8", zorder=0, linewidth=0)
        axes.axvline(1, color="#555555", linewidth=1)
        for index, (label, result) in enumerate(drawn):
            effect, colour = result.effect, COLOURS[index % 3]
            ratios = [math.exp(log) for log in result.logs.values()]
            axes.plot(ratios, [index] * len(ratios), "o", color=colour, alpha=0.4, markersize=4.5)
            if effect.n > 1:
                axes.plot([effect.low, effect.high], [index, index], color=colour, linewidth=1.6)
            axes.plot([effect.ratio], [index], "D", color=colour, markersize=6)
            _label(axes, index, label, effect.n, result.marks)
        _rows(axes, len(drawn))
        axes.set_xscale("log")
        _readable_ratios(axes, *_extent([result for _, result in drawn]))
        axes.set_xlabel("step time ratio: left of 1 is faster")
        ends = axes.get_xlim()
        svg = _svg(canvas, name)
    launches = 2 * sum(result.effect.n for _, result in drawn)
    marks = {mark for _, result in drawn for mark in result.marks}
    caption = (
        f"{what}; one point a block, a diamond their geometric mean, a bar its 95% interval (from 2 blocks on), "
        f"grey the margin of {margin:.0%} within which a difference does not matter. {_rests(launches, marks)}"
    )
    if any(r.effect.low < ends[0] or r.effect.high > ends[1] for _, r in drawn):
        caption += " Bars that reach the edge go on beyond it."
    if len(measured) > len(drawn):
        caption += f" {len(measured) - len(drawn)} more pairs are in the table."
    said = [f"{label} {result.effect.ratio:.2f}" for label, result in drawn]
    return Figure(name, svg, caption, f"{what}, ratio of step times: {listed(said)}", launches)


def dots(rows: list[Row], name: str, what: str, axis: str, log: bool = False) -> Figure | None:
    """One value a launch in each row, its median as a bar. None where no row has a value."""
    rows = [Row(row.label, [v for v in row.values if math.isfinite(v)], row.marks) for row in rows]
    filled = [row for row in rows if row.values]
    if not filled:
        return None
    drawn = filled[:MOST_ROWS]
    medians = [summary(row.values).median for row in drawn]
    with matplotlib.rc_context(_STYLE):
        canvas, axes = _axes(1.1 + 0.5 * len(drawn))
        for index, (row, median) in enumerate(zip(drawn, medians, strict=True)):
            axes.plot(row.values, [index] * len(row.values), "o", color=COLOURS[0], alpha=0.45, markersize=5)
            axes.plot([median], [index], "|", color="black", markersize=13, markeredgewidth=1.8)
            _label(axes, index, row.label, len(row.values), row.marks)
        _rows(axes, len(drawn))
        if log and min(min(row.values) for row in drawn) > 0:
            axes.set_xscale("log")
            _readable_ratios(axes, *_ends([v for row in drawn for v in row.values]))
        axes.set_xlabel(axis)
        svg = _svg(canvas, name)
    launches = sum(len(row.values) for row in drawn)
    caption = (
        f"{what}; one point a launch, a bar at the median. {_rests(launches, {m for r in drawn for m in r.marks})}"
    )
    if len(filled) > len(drawn):
        caption += f" {len(filled) - len(drawn)} more rows are in the table."
    said = [f"{row.label} {median:.3g}" for row, median in zip(drawn, medians, strict=True)]
    return Figure(name, svg, caption, f"{what}, median {axis}: {listed(said)}", launches)


def _axes(height: float):
    canvas = Canvas(figsize=(_WIDTH, height), layout="constrained")
    return canvas, canvas.subplots()


def _label(axes, row: int, label: str, n: int, marks: tuple[str, ...]) -> None:
    """A row's name above its points, where a phone has room for it, with the number of launches and what marks them."""
    said = f"n = {n}" + "".join(f", {_SHORT.get(mark, mark)}" for mark in marks)
    name = shortened(label, 50)
    said = f"{name} ({said})" if len(name) + len(said) < 48 else f"{name}\n({said})"
    axes.annotate(
        said,
        (0, row),
        xycoords=("axes fraction", "data"),
        xytext=(0, 7),
        textcoords="offset points",
        fontsize=8.5,
        linespacing=1.05,
        va="bottom",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5},
    ).set_in_layout(False)


_SHORT = {"simulated nodes": "simulated", "emulated nodes": "emulated", "more threads than cores": "oversubscribed"}


def _rows(axes, n: int) -> None:
    axes.set_ylim(n - 0.6, -0.8)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def _ends(values: list[float]) -> tuple[float, float]:
    return min(values) / 1.05, max(values) * 1.05


def _extent(results: list[Result]) -> tuple[float, float]:
    """All points and 1; intervals too, but none may squeeze the points into a corner."""
    points = [math.exp(log) for result in results for log in result.logs.values()]
    bars = [end for r in results for end in (r.effect.low, r.effect.high) if math.isfinite(end)]
    low, high = _ends([1.0, *points])
    return max(low / 2, _ends([low, *bars])[0]), min(high * 2, _ends([high, *bars])[1])


def _readable_ratios(axes, low: float, high: float) -> None:
    """At most about six plain numbers on a logarithmic axis, which would else show powers of ten or nothing."""
    axes.set_xlim(low, high)
    if high / low < 4:
        step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 10**9) if (high - low) / s <= 7)
        ticks = [round(step * k, 6) for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
        if high > 5 or len(ticks) < 2:
            ticks = [float(f"{v:.3g}") for v in (low, math.sqrt(low * high), high)]
    else:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        parts = (1, 2, 5) if high / low < 200 else (1,)
        ticks = [part * 10.0**d for d in decades for part in parts if low <= part * 10.0**d <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def _places(series: dict[str, list[Point]], workers: int) -> str:
    return "\n".join(
        sorted({shortened(p.placement, 20) for group in series.values() for p in group if p.workers == workers})
    )


def _rests(launches: int, marks: set[str]) -> str:
    flags = f" With {listed(sorted(marks))}." if marks else ""
    return f"Rests on {counted(launches, 'launch')}.{flags}"


def _svg(canvas: Canvas, name: str) -> str:
    """The drawing alone: no XML head, no fixed size, and ids that no other figure of the page has."""
    stream = io.StringIO()
    with warnings.catch_warnings():
        # A glyph that matplotlib cannot measure is still drawn by the reader's fonts.
        warnings.filterwarnings("ignore", message="Glyph")
        canvas.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(
        r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1), count=1
    )
    return prefixed(text, name)


def prefixed(svg: str, prefix: str) -> str:
    """Every id and every reference to one with ``prefix-`` in front."""
    svg = re.sub(r'(<[^<>]*?\s)id="([^"]*)"', rf'\1id="{prefix}-\2"', svg)
    svg = re.sub(r'href="#([^"]*)"', rf'href="#{prefix}-\1"', svg)
    return re.sub(r"url\(#([^)]*)\)", rf"url(#{prefix}-\1)", svg)
