"""Records below a directory -> one frame with a row for each launch and cell; steps are reduced to their median."""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import machine, parity, shape
from analysis.text import clean, counted, number, shortened
from hvdkan import record as records
from hvdkan import regular

#: Settings that name outputs or guard a run; they change nothing of what is measured.
NOT_WORK = frozenset({"record", "save", "label", "dry_run", "timeout_s", "simulate_nodes", "study", "variant", "name"})


#: Of a plan: more is none that was run.
MOST_PLAN_BYTES, MOST_BLOCKS = 4 * 2**20, 10_000

#: What is asked for, and may turn out otherwise.
_CHOICES = ("allreduce", "engine", "transport")


class ReportError(ValueError):
    """Input a report cannot be made from; the message is one line."""


@dataclass
class Study:
    """``launches``: the latest attempt of each (study, variant, cell, block), in an order that files cannot change."""

    name: str
    launches: pd.DataFrame
    plan: dict
    damaged: list[tuple[str, int, str]] = field(default_factory=list)
    superseded: int = 0

    @property
    def usable(self) -> pd.DataFrame:
        """Launches with a measurement: status ok and finite numbers."""
        return self.launches[self.launches["usable"]]

    @property
    def as_asked(self) -> pd.DataFrame:
        """Usable launches in which ran what was asked for: no other may be shown under its variant's name."""
        return as_asked(self.launches)

    def arm(self, name: str) -> pd.DataFrame:
        return self.launches[self.launches["arm"] == name]


def load(directory: Path) -> Study:
    """Read a study. Raises :class:`ReportError` where there is nothing to report on or another major schema is met."""
    if not directory.is_dir():
        raise ReportError(f"{directory}: no such directory; give the results directory of a study")
    plan = read_plan(directory / "plan.toml")
    rows: list[dict] = []
    damaged: list[tuple[str, int, str]] = []
    try:
        # One record at a time: a study's steps need not fit in memory, their medians do.
        for file, line, record in records.stream(directory, damaged):
            try:
                rows.append(row_of(record))
            except shape.OddRecord as error:
                damaged.append((file, line, str(error)))
            except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
                # Whatever else a stranger's record holds: it costs its own row, not the report.
                damaged.append((file, line, f"no row can be made of it: {clean(error)}"))
    except records.SchemaError as error:
        raise ReportError(clean(error)) from None
    damaged = [(_relative(file, directory), line, reason) for file, line, reason in damaged]
    if not rows:
        raise ReportError(_nothing(directory, damaged))
    launches, superseded = latest(frame(rows))
    name = plan.get("study") or listed_studies(launches) or directory.resolve().name
    return Study(name, launches, plan, damaged, superseded)


def read_plan(path: Path) -> dict:
    """The study's plan, empty where there is none. Raises :class:`ReportError` for one that cannot be read."""
    if not os.path.lexists(path):
        return {}
    try:
        plan = tomllib.loads(regular.read_text(path, MOST_PLAN_BYTES))
    except RecursionError:
        raise ReportError(f"{path}: nested too deeply") from None
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ReportError(f"{path}: {clean(error)}") from None
    for key in ("primary", "aa"):
        pairs = plan.get(key, [])
        if not isinstance(pairs, list) or not all(_is_pair(pair) for pair in pairs):
            raise _refused(path, key, pairs, "a list of [baseline, candidate] variant names")
    variants = plan.get("variant", [])
    if not isinstance(variants, list) or not all(isinstance(variant, dict) for variant in variants):
        raise _refused(path, "variant", variants, "tables: [[variant]]")
    for variant in variants:
        if not isinstance(variant.get("name"), str):
            raise _refused(path, "a variant's name", variant.get("name"), "a text")
    if not isinstance(plan.get("common", {}), dict):
        raise _refused(path, "common", plan["common"], "a table: [common]")
    if not isinstance(plan.get("study", ""), str):
        raise _refused(path, "study", plan["study"], "a text")
    blocks = plan.get("blocks", 1)
    if not isinstance(blocks, int) or isinstance(blocks, bool) or not 1 <= blocks <= MOST_BLOCKS:
        raise _refused(path, "blocks", blocks, f"a whole number of at least 1 and at most {MOST_BLOCKS}")
    return plan


def _refused(path: Path, key: str, value: object, wanted: str) -> ReportError:
    return ReportError(f"{path}: {key} is {shortened(repr(value))}; it must be {wanted}")


def _is_pair(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(isinstance(name, str) for name in pair)


def _relative(file: str, directory: Path) -> str:
    path = Path(file)
    return str(path.relative_to(directory)) if path.is_relative_to(directory) else file


def _nothing(directory: Path, damaged: list) -> str:
    if damaged:
        file, line, reason = damaged[0]
        return (
            f"{directory}: no readable record; {counted(len(damaged), 'damaged line')}, first {file}:{line}: {reason}"
        )
    return f"{directory}: no records; looked for {', '.join(records.PATTERNS)}"


def listed_studies(launches: pd.DataFrame) -> str:
    return ", ".join(sorted({name for name in launches["study"] if name}))


def row_of(record: dict) -> dict:
    """One record as a flat row; times in seconds, sizes in bytes, NaN where nothing was measured.

    Raises :class:`analysis.shape.OddRecord` for one of which no row can be made.
    """
    shape.check(record)
    config = record["config"] or {}
    requested, effective = record["requested"] or {}, record["effective"] or {}
    error, ranks = record.get("error") or {}, record.get("ranks") or []
    exposed = record.get("exposed") or {}
    losses = record.get("epoch_loss") or []
    steps = _array(record.get("step_s"))
    environment = record.get("environment") or {}
    cores, busy = machine.size(record, environment.get("threads"))
    workers, nodes = _size(record, ranks)
    variant = clean(record["variant"] or _unnamed(config, record.get("placement")))
    cell = clean(record["cell"] or "main")
    row = {
        "study": clean(record["study"] or ""),
        "variant": variant,
        "cell": cell,
        "arm": variant if cell == "main" else f"{variant} / {cell}",
        "block": record["block"],
        "attempt": int(number(record["attempt"])) if math.isfinite(number(record["attempt"])) else 1,
        "place": number(record["order"]),
        "run_id": clean(record["run_id"] or ""),
        "started_at": clean(record.get("started_at") or ""),
        "status": clean(record["status"]),
        "error": error if isinstance(error, dict) else {"message": str(error)},
        "config": config,
        "requested": requested,
        "effective": effective,
        # A failed launch need not have come to know what runs; one with a measurement must say it.
        "mismatch": mismatch(_asked(requested, config), effective, workers)
        if effective or record["status"] == "ok"
        else "",
        "backend": clean(config.get("backend", "")),
        "operator": clean(config.get("operator", "")),
        "placement": clean(record.get("placement") or ""),
        "workers": workers,
        "nodes": nodes,
        "hosts": len(record.get("ranks_per_host") or {}),
        "simulated": record.get("simulated_topology") is True,
        "emulated": record.get("emulated") is True,
        "oversubscribed": record.get("oversubscribed") is True,
        "exclusive": clean(record.get("exclusive", "unknown")),
        "steps": len(steps),
        "step_s": _median(steps),
        "step_p95_s": float(np.percentile(steps, 95)) if len(steps) else math.nan,
        "exchange_s": _median(_array(record.get("exchange_s"))),
        "wait_s": _median(_array(record.get("wait_s"))),
        "samples_per_s": number(record.get("samples_per_s")),
        "exposed": number(exposed.get("fraction")),
        "exposed_with_s": number(exposed.get("with_s")),
        "exposed_without_s": number(exposed.get("without_s")),
        "loss": number(losses[-1]) if losses else math.nan,
        "test_loss": number(record.get("test_loss")),
        "memory_bytes": number(record.get("peak_memory_bytes")),
        "parameters": number((record.get("parameters") or {}).get("all")),
        "settings": parity.settings(record),
        "environment": environment,
        "cores": cores,
        "busy": busy,
        "load_before": machine.load(environment, "load_before"),
        "load_after": machine.load(environment, "load_after"),
    }
    row["why_not"] = _why_not(row, losses)
    row["usable"] = not row["why_not"]
    return row


def _asked(requested: dict, config: dict) -> dict:
    """What was asked for; what ``requested`` leaves out is asked for by the settings."""
    return {key: config.get(key) if requested.get(key) is None else requested[key] for key in _CHOICES}


def mismatch(requested: dict, effective: dict, workers: int) -> str:
    """How what ran differs from what was asked for, empty if it does not. ``auto`` and an unset value ask for nothing.

    An engine is asked for by name and may answer with its parameters, ``two_level`` with ``two_level(cross=ring)``.
    """
    if not effective:
        return "what ran is not recorded"
    found = []
    for key in _CHOICES:
        asked, ran = requested.get(key), effective.get(key)
        if asked in (None, "auto") or ran == asked:
            continue
        if ran in (None, "none") and workers == 1 and asked != "hierarchical":
            continue
        if key == "engine" and asked == twin_of(effective):
            continue
        if key == "engine" and str(ran).split("(")[0] == str(asked).split("(")[0] and "(" not in str(asked):
            continue
        found.append(f"{key} {asked} asked for, {'what ran is not recorded' if ran is None else f'{ran} ran'}")
    reason = effective.get("reason")
    return clean("; ".join(found) + (f" ({reason})" if found and reason else ""))


def twin_of(effective: dict) -> str | None:
    """The hierarchical engine whose flat twin ran under a name of its own, such as `ring`."""
    evidence = effective.get("evidence")
    return evidence.get("twin_of") if isinstance(evidence, dict) else None


def _why_not(row: dict, losses: list) -> str:
    if row["status"] != "ok":
        message = row["error"].get("kind") or row["error"].get("message")
        return f"{row['status']}: {clean(message)}" if message else row["status"]
    if any(not abs(number(loss)) <= shape.MOST_LOSS for loss in losses):
        return "a loss is not finite"
    if not row["steps"]:
        return "no step was timed"
    if not row["step_s"] >= shape.TIMES[0]:
        return "a step time is not a positive number"
    return ""


def _array(values: object) -> np.ndarray:
    """Times as numbers, NaN where one cannot be a time."""
    if not isinstance(values, list):
        return np.empty(0)
    try:
        found = np.array(values, dtype=float)
    except (TypeError, ValueError, OverflowError):
        return np.full(len(values), math.nan)
    if found.ndim != 1:
        return np.full(len(values), math.nan)
    return np.where(np.abs(found) <= shape.TIMES[1], found, math.nan)


def _median(values: np.ndarray) -> float:
    """NaN when any value is: a launch with a broken clock is not averaged away."""
    return float(np.median(values)) if len(values) else math.nan


def _size(record: dict, ranks: list) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,6})G(\d{1,6})N", str(record.get("placement") or ""))
    workers, nodes = (int(match[1]), int(match[2])) if match else (0, 0)
    return (len(ranks) or workers), nodes


def _unnamed(config: dict, placement: str | None) -> str:
    names = (config.get("backend"), config.get("operator"), config.get("allreduce"), placement)
    return "-".join(str(name) for name in names if name) or "unnamed"


def frame(rows: list[dict]) -> pd.DataFrame:
    """Rows as a frame sorted by identity. A run outside a study has no block and becomes a block of its own."""
    rows = sorted(rows, key=lambda row: (row["started_at"], row["run_id"]))
    for index, row in enumerate(rows):
        if not isinstance(row["block"], int) or isinstance(row["block"], bool):
            row["block"] = -1 - index
    launches = pd.DataFrame({name: _column([row[name] for row in rows]) for name in rows[0]})
    return launches.sort_values(["study", "variant", "cell", "block", "attempt"], kind="stable", ignore_index=True)


def _column(values: list) -> pd.Series:
    kind = "object" if values and isinstance(values[0], str | dict) else None
    return pd.Series(values, dtype=kind)


def latest(launches: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The last attempt of each (study, variant, cell, block), and how many earlier ones it replaced."""
    kept = launches.drop_duplicates(["study", "variant", "cell", "block"], keep="last").reset_index(drop=True)
    return kept, len(launches) - len(kept)


def as_asked(launches: pd.DataFrame) -> pd.DataFrame:
    """Usable launches in which ran what was asked for."""
    return launches[launches["usable"] & (launches["mismatch"] == "")]


def left_out(launches: pd.DataFrame) -> list[str]:
    """Usable launches that :func:`as_asked` leaves out, each arm by name with what ran instead."""
    otherwise = launches[launches["usable"] & (launches["mismatch"] != "")]
    return sorted({f"{row.arm}: {row.mismatch}" for row in otherwise.itertuples()})


def values(launches: pd.DataFrame, column: str) -> dict[tuple[str, int], float]:
    """A measurement of usable launches by (study, block); several launches of one block give their median."""
    usable = launches[launches["usable"]]
    return usable.groupby(["study", "block"])[column].median().to_dict()


def work_key(config: dict, without: Iterable[str] = ()) -> tuple:
    """Hashable settings of a run but for ``without`` and those that change no work; equal keys are comparable."""
    skipped = NOT_WORK | set(without)
    return tuple(sorted((key, repr(value)) for key, value in config.items() if key not in skipped))
