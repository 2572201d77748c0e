"""The paper's numbers beside ours: another machine, other samples, so for orientation and not as a comparison."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import NamedTuple

from analysis import stats
from analysis.comparisons import back_end, first_config
from analysis.load import Study, work_key
from analysis.scaling import Point
from analysis.tables import Table

#: Depend on where the ranks are, and not on the settings alone.
_PLACED = ("exposed", "memory_bytes")


def numbers() -> dict:
    return tomllib.loads((Path(__file__).parent / "paper.toml").read_text(encoding="utf-8"))


def beside(study: Study, points: list[Point]) -> Table:
    """One row a number of the paper's; ours are a column for each back end and operator, with the stock all-reduce.

    NaN where it was not measured, or where several settings (widths, batches) fit and none can be chosen.
    """
    paper = numbers()
    strong, overhead, sizes = paper["strong"], paper["communication"], paper["model_scaling"]
    stock = _stock(study)
    rows = []
    for placement, value in zip(strong["placement"], strong["efficiency_percent"], strict=True):
        ours = [100 * _point(points, arms, placement, "efficiency") for arms in stock.values()]
        rows.append((f"efficiency at {placement} (%)", value, *ours))
    for placement, value in strong["throughput_samples_per_s"].items():
        ours = [_point(points, arms, placement, "samples_per_s") for arms in stock.values()]
        rows.append((f"throughput at {placement} (samples/s)", value, *ours))
    rows.append(
        ("speedup at 8G4N", strong["speedup_8"], *[_point(points, a, "8G4N", "speedup") for a in stock.values()])
    )
    for placement, value in zip(overhead["placement"], overhead["overhead_percent"], strict=True):
        ours = [100 * _median(study, arms, placement, "exposed") for arms in stock.values()]
        rows.append((f"communication at {placement} (% of a step)", value, *ours))
    for width, value in sizes["parameters_derived"].items():
        ours = [_counted(_median(study, arms, "", "parameters", [int(width)])) for arms in stock.values()]
        rows.append((f"parameters at width {width}, frozen ones included", value, *ours))
    for width, value in sizes["final_loss"].items():
        ours = [_median(study, arms, "", "loss", [int(width)]) for arms in stock.values()]
        rows.append((f"final training loss at width {width}", value, *ours))
    for width, value in sizes["peak_memory_gb"].items():
        ours = [_median(study, arms, "", "memory_bytes", [int(width)]) / 1e9 for arms in stock.values()]
        rows.append((f"peak memory at width {width} (GB; the paper's of a GPU)", value, *ours))
    caption = (
        f"Paper: {paper['platform']}. Ours: another machine, other samples and epochs, stock all-reduce; the paper's "
        "batch and its way to measure communication are not stated. Efficiency and speedup are geometric means over "
        "blocks, throughput is a harmonic mean, all else the median over launches. n/a: not measured, or several "
        "settings fit."
    )
    columns = ("quantity", "paper (DDP, pykan, A100)", *(f"ours: {name}" for name in stock))
    return Table("paper", caption, columns, rows)


def unmeasured(study: Study) -> list[str]:
    """Placements of the paper of which this study has no usable launch."""
    return [p for p in numbers()["strong"]["placement"] if p not in set(study.usable["placement"])]


def _counted(value: float) -> int | None:
    return None if math.isnan(value) else round(value)


def _stock(study: Study) -> dict[str, list[str]]:
    """Arms that a number of the paper may stand beside, by back end (with the transport asked for) and operator."""
    found: dict[str, list[str]] = {}
    for arm, rows in study.as_asked.groupby("arm", sort=True):
        config = first_config(rows)
        if config.get("allreduce") == "stock" and config.get("operator") != "mlp":
            found.setdefault(f"{back_end(config)}, {config.get('operator')}", []).append(arm)
    return dict(sorted(found.items()))


def _point(points: list[Point], arms: list[str], placement: str, what: str) -> float:
    values = [getattr(p, what) for p in points if p.arm in arms and p.placement == placement]
    values = [value for value in values if math.isfinite(value)]
    return values[0] if len(values) == 1 else math.nan


def _median(study: Study, arms: list[str], placement: str, column: str, hidden: list[int] | None = None) -> float:
    """The median over launches of one set of settings; NaN where none fits or several do."""
    rows = study.as_asked[study.as_asked["arm"].isin(arms)]
    if placement:
        rows = rows[rows["placement"] == placement]
    if hidden is not None:
        rows = rows[[config.get("hidden") == hidden for config in rows["config"]]]
    fitting = {_settings(row, column) for row in rows.itertuples()}
    return stats.summary(rows[column]).median if len(fitting) == 1 else math.nan


def _settings(row: NamedTuple, column: str) -> tuple:
    """What must be one for a number to be given: a loss depends on the samples per step, others on the placement."""
    where = (row.placement, row.simulated, row.emulated) if column in _PLACED else ()
    return work_key(row.config), where, row.settings["global batch"] if column == "loss" else None
