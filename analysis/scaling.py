"""Strong and weak scaling from launches that agree in everything but the number and place of workers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pandas as pd

from analysis import parity, stats
from analysis.comparisons import first_config, marks
from analysis.load import Study, as_asked, left_out, values, work_key
from analysis.text import listed, shown

#: What more workers may change. With a batch per rank, steps and global batch follow their number.
_FOLLOWS_WORKERS = (
    "steps", "batch per rank", "global batch", "bytes on the wire", "affinity", "placement", "seed",
)  # fmt: skip
ABOVE_IDEAL = "above 100%: more cache per sample, or a slow one-worker run"


class LabelRefused(ValueError):
    """A study does not have the property its name claims."""


@dataclass(frozen=True)
class Point:
    """One arm of a series. ``speedups`` holds one ratio a block; what cannot be given is NaN with its ``reason``."""

    series: str
    arm: str
    placement: str
    workers: int
    nodes: int
    batch: str
    n: int
    failed: int
    samples_per_s: float
    step_s: float
    speedup: float = math.nan
    low: float = math.nan
    high: float = math.nan
    efficiency: float = math.nan
    speedups: tuple[float, ...] = ()
    reason: str = ""
    note: str = ""
    marks: tuple[str, ...] = ()


def strong(study: Study) -> list[Point]:
    """Every arm against the one-worker runs with the same settings, in order of series, workers, nodes."""
    return _points(study, ("simulate_nodes", "seed"), per_worker=False)


def weak(study: Study) -> list[Point]:
    """The same with the work growing with the workers: ``speedup`` is then throughput over one worker's.

    Raises :class:`LabelRefused`, naming the values, where samples per worker differ within a series.
    """
    for group in _groups(study, ("simulate_nodes", "seed", "samples")).values():
        loads: dict[float, str] = {}
        for _arm, rows in group:
            samples, workers = first_config(rows).get("samples"), int(rows["workers"].max())
            loads.setdefault(samples / workers if samples and workers else math.nan, max(rows["placement"]))
        if len(loads) > 1:
            said = listed(
                [f"{shown(int(load) if load.is_integer() else load)} at {place}" for load, place in loads.items()]
            )
            raise LabelRefused(f"not called weak scaling: samples per worker differ ({said})")
    return _points(study, ("simulate_nodes", "seed", "samples"), per_worker=True)


def is_series(points: list[Point]) -> bool:
    return len({point.placement for point in points}) > 1


def by_series(points: list[Point]) -> dict[str, list[Point]]:
    series: dict[str, list[Point]] = {}
    for point in points:
        series.setdefault(point.series, []).append(point)
    return series


def _groups(study: Study, vary: tuple[str, ...]) -> dict[tuple, list[tuple[str, pd.DataFrame]]]:
    groups: dict[tuple, list] = {}
    for arm, rows in study.launches.groupby("arm", sort=True):
        config = first_config(rows)
        if config and max(rows["placement"]) and rows["workers"].max() > 0:
            key = (rows["study"].iloc[0], rows["cell"].iloc[0], work_key(config, vary))
            groups.setdefault(key, []).append((arm, rows))
    return groups


def _points(study: Study, vary: tuple[str, ...], per_worker: bool) -> list[Point]:
    groups = list(_groups(study, vary).values())
    labels = series_labels([first_config(group[0][1]) for group in groups], vary)
    points = []
    for label, group in zip(labels, groups, strict=True):
        ones = [rows for _, rows in group if rows["workers"].max() == 1]
        base = pd.concat(ones) if ones else None
        points += [_point(label, arm, rows, base, per_worker) for arm, rows in group]
    return sorted(points, key=lambda point: (point.series, point.workers, point.nodes, point.arm))


def _point(label: str, arm: str, rows: pd.DataFrame, base: pd.DataFrame | None, per_worker: bool) -> Point:
    config, workers = first_config(rows), int(rows["workers"].max())
    failed, otherwise = len(rows) - int(rows["usable"].sum()), listed(left_out(rows), 1)
    # What was not asked for has no place in a series, not even with its absolute numbers. Only one worker, which
    # exchanges nothing whatever was asked for, stays the reference, and says so.
    kept = as_asked(rows) if workers > 1 else rows[rows["usable"]]
    rates = [rate for rate in values(kept, "samples_per_s").values() if math.isfinite(rate)]
    plain = Point(
        series=label,
        arm=arm,
        placement=max(rows["placement"]),
        workers=workers,
        nodes=int(rows["nodes"].max()),
        batch=_batch(config, rows),
        n=len(kept),
        failed=failed,
        samples_per_s=stats.harmonic_mean(rates),
        step_s=stats.summary(kept["step_s"]).median,
        marks=marks(rows),
    )
    allowed = (*_FOLLOWS_WORKERS, "samples", "samples seen") if per_worker else _FOLLOWS_WORKERS
    left = f"left out, {otherwise}" if otherwise and workers > 1 else ""
    reason = _reason(kept, otherwise, base, allowed)
    if reason:
        return replace(plain, reason=reason, note="" if kept.empty else left)
    if workers == 1:
        note = "the reference" + (f"; one worker exchanges nothing ({otherwise})" if otherwise else "")
        return replace(plain, speedup=1.0, efficiency=1.0, speedups=(1.0,) * len(rates), note=note)
    # paired_log_ratios is candidate over baseline: of rates, that is the speedup.
    logs = list(stats.paired_log_ratios(values(base, "samples_per_s"), values(kept, "samples_per_s")).values())
    if not logs:
        return replace(plain, reason="no block holds both this and a one-worker run", note=left)
    ratios = [math.exp(log) for log in logs]
    low, high = stats.interval(logs)
    speedup = stats.geometric_mean(ratios)
    return replace(
        plain,
        speedup=speedup,
        low=math.exp(low),
        high=math.exp(high),
        efficiency=speedup / workers,
        speedups=tuple(ratios),
        note="; ".join(text for text in (ABOVE_IDEAL if speedup > workers else "", left) if text),
    )


def _reason(kept: pd.DataFrame, otherwise: str, base: pd.DataFrame | None, allowed: tuple[str, ...]) -> str:
    if kept.empty:
        return otherwise or "no usable launch"
    if base is None:
        return "no one-worker run with the same settings"
    if not base["usable"].any():
        return "no usable one-worker run"
    reference = base[base["usable"]]["settings"].iloc[0]
    found = parity.differences(reference, kept["settings"].iloc[0], allowed)
    return f"not the same work as the one-worker run: {listed(found)}" if found else ""


def _batch(config: dict, rows: pd.DataFrame) -> str:
    if config.get("global_batch_size"):
        return f"{config['global_batch_size']:,} in all"
    sizes = {settings["batch per rank"] for settings in rows["settings"]} - {None}
    return f"{listed(sorted(shown(size) for size in sizes))} a worker" if sizes else "n/a"


def series_labels(configs: list[dict], vary: tuple[str, ...] = ()) -> list[str]:
    """``horovod stock``, and the settings that tell apart series of the same back end and all-reduce."""
    bases = [" ".join(str(config.get(key, "")) for key in ("backend", "allreduce")) for config in configs]
    labels = []
    for base, config in zip(bases, configs, strict=True):
        rivals = [other for name, other in zip(bases, configs, strict=True) if name == base]
        keys = [
            key for key in dict(work_key(config, vary)) if any(repr(r.get(key)) != repr(config[key]) for r in rivals)
        ]
        told = [f"{key} {_value(config[key])}" for key in keys]
        labels.append(", ".join([base, *told]))
    return labels


def _value(value: object) -> str:
    return "x".join(str(item) for item in value) if isinstance(value, list) else str(value)
