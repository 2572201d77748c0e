"""Tables of the report; the same cells go to the page and, unrounded, to CSV. Units stand in the column names."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis import stats
from analysis.comparisons import Result, first_config
from analysis.load import Study, as_asked, left_out
from analysis.scaling import Point
from analysis.text import clean, compact, listed
from hvdkan.files import replacing

#: What a spreadsheet takes for the start of a formula, full-width forms included.
_FORMULA = ("=", "+", "-", "@", "|", "＝", "＋", "－", "＠")  # noqa: RUF001


@dataclass(frozen=True)
class Table:
    """``rows`` hold numbers, text or None (shown as n/a); ``name`` is also the CSV file's."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: list[tuple]


def write_csv(table: Table, directory: Path) -> Path:
    """Write ``<name>.csv``, whole or not at all, with numbers to six digits.

    Text that a spreadsheet would run gets an apostrophe in front.
    """
    path = directory / f"{table.name}.csv"
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([guarded(column) for column in table.columns])
    writer.writerows([guarded(cell) for cell in row] for row in table.rows)
    with replacing(path) as stream:
        stream.write(text.getvalue().encode())
    return path


def guarded(cell: object) -> str:
    """A CSV cell. Only text is guarded: a negative number stays one."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return "n/a"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.6g}"
    if isinstance(cell, int):
        return str(cell)
    text = clean(cell)
    return "'" + text if text.lstrip().startswith(_FORMULA) else text


def pairs(results: list[tuple[str, Result]], name: str, caption: str, margin: float) -> Table:
    """Paired comparisons: ratio, verdict and interval first, and the reason where there is none."""
    columns = (
        "pair", "step time ratio (geometric mean)", "verdict", "ratio, 95% low", "ratio, 95% high", "faster in",
        "remarks", "candidate", "baseline", "placement", "candidate step (ms, geometric mean)",
        "baseline step (ms, geometric mean)", "pairs", "launches without a pair", "family",
        "sign-flip p", "Holm p", "blocks to settle",
    )  # fmt: skip
    rows = [(label, *_pair(result)) for label, result in results]
    return Table(name, f"{caption} Margin of equivalence {margin:.0%}.", columns, rows)


def _pair(result: Result) -> tuple:
    pair, effect = result.pair, result.effect
    family = "primary" if pair.primary else "exploratory"
    if effect is None:
        return (
            None, "not compared", None, None, None, result.refusal, pair.candidate, pair.baseline, None, None, None,
            0, None, family, None, None, None,
        )  # fmt: skip
    return (
        effect.ratio, effect.verdict, effect.low, effect.high, f"{effect.wins} of {effect.n}",
        "; ".join([*result.notes, *result.marks]), pair.candidate, pair.baseline, result.placement,
        1e3 * result.candidate_s, 1e3 * result.baseline_s, effect.n, effect.dropped, family, effect.p, effect.holm,
        effect.blocks_needed,
    )  # fmt: skip


def scaling(points: list[Point], name: str, caption: str, gain: str = "speedup") -> Table:
    columns = (
        "variant", "placement", f"{gain} (geometric mean)", f"efficiency (%, {gain} / workers)", f"{gain}, 95% low",
        f"{gain}, 95% high", "samples/s (harmonic mean)",
        "step (ms, median)", "launches", "failed", "remarks", "series", "workers", "batch",
    )  # fmt: skip
    rows = [
        (
            p.arm, p.placement, p.speedup, 100 * p.efficiency, p.low, p.high, p.samples_per_s, 1e3 * p.step_s, p.n,
            p.failed,
            "; ".join([*([f"n/a: {p.reason}"] if p.reason else []), *([p.note] if p.note else []), *p.marks]),
            p.series, p.workers, p.batch,
        )
        for p in points
    ]  # fmt: skip
    return Table(name, caption, columns, rows)


def variants(study: Study) -> Table:
    """Every arm in absolute numbers: launches, step time and its range, throughput, loss, memory."""
    columns = (
        "variant", "step (ms, median)", "lowest step (ms)", "highest step (ms)",
        "95th percentile step (ms, median)", "samples/s (harmonic mean)", "final training loss (median)",
        "test loss (median)", "launches", "failed", "back end", "operator", "placement", "peak memory (MB, median)",
        "load before (1 min, median)", "load before (1 min, highest)", "load after (1 min, median)", "remarks",
    )  # fmt: skip
    rows = []
    for arm, group in study.launches.groupby("arm", sort=True):
        usable, shown = group[group["usable"]], as_asked(group)
        step, load = stats.summary(shown["step_s"]), stats.summary(group["load_before"])
        config = first_config(group)
        medians = (stats.summary(shown[c]).median for c in ("step_p95_s", "loss", "test_loss", "memory_bytes"))
        p95, loss, test_loss, memory = medians
        rate = stats.harmonic_mean(shown["samples_per_s"].dropna())
        rows.append((
            arm, 1e3 * step.median, 1e3 * step.low, 1e3 * step.high, 1e3 * p95, rate, loss, test_loss, len(shown),
            len(group) - len(usable), config.get("backend"), config.get("operator"), max(group["placement"]),
            memory / 1e6, load.median, load.high if load.n > 1 else load.median,
            stats.summary(group["load_after"]).median, "; ".join(f"left out, {text}" for text in left_out(group)),
        ))  # fmt: skip
    return Table(
        "variants",
        "All variants in absolute numbers, over launches; load: the load average of the last minute.",
        columns,
        rows,
    )


def communication(study: Study) -> Table:
    """Exposed communication: (step with exchange - step without) / step with, measured in the same launch."""
    columns = (
        "variant", "exposed (%, median)", "lowest exposed (%)", "highest exposed (%)",
        "step with exchange (ms, median)", "step without (ms, median)", "in the exchange (ms, median)",
        "waiting for others (ms, median)", "placement", "launches",
    )  # fmt: skip
    rows = []
    for arm, group in study.as_asked[study.as_asked["exposed"].notna()].groupby("arm", sort=True):
        exposed = stats.summary(100 * group["exposed"])
        times = ("exposed_with_s", "exposed_without_s", "exchange_s", "wait_s")
        medians = [1e3 * stats.summary(group[column]).median for column in times]
        rows.append((arm, exposed.median, exposed.low, exposed.high, *medians, max(group["placement"]), exposed.n))
    caption = "Exposed communication. Slightly negative values are noise and are kept."
    return Table("communication", caption, columns, rows)


def requested(study: Study) -> Table:
    """What was asked for and what was observed to run, with the reason and the evidence."""
    columns = (
        "variant", "all-reduce asked", "all-reduce ran", "as asked (launches)", "engine asked", "engine ran",
        "transport asked", "transport ran", "placement", "reason", "evidence",
    )  # fmt: skip
    rows = []
    for arm, group in study.launches.groupby("arm", sort=True):
        ran = told(group)
        asked = next((r for r in group["requested"] if r), {})
        seen = {key: _seen(ran, key) for key in ("allreduce", "engine", "transport", "reason")}
        evidence = next((e["evidence"] for e in ran["effective"] if e.get("evidence")), None)
        rows.append((
            arm, asked.get("allreduce"), seen["allreduce"] or "not known",
            f"{int((ran['mismatch'] == '').sum())} of {len(ran)}", asked.get("engine"), seen["engine"],
            asked.get("transport"), seen["transport"], max(group["placement"]), seen["reason"] or "",
            compact(evidence, 240) if evidence else "none recorded",
        ))  # fmt: skip
    return Table("requested", "What was requested and what ran.", columns, rows)


def told(launches: pd.DataFrame) -> pd.DataFrame:
    """Launches that told what ran, and those with a measurement that did not."""
    return launches[[bool(row.effective) or bool(row.mismatch) for row in launches.itertuples()]]


def _seen(rows: pd.DataFrame, key: str) -> str:
    return listed(sorted({str(effective[key]) for effective in rows["effective"] if effective.get(key)}))


def failed(study: Study) -> Table:
    """Launches that give no measurement: counted, never averaged."""
    columns = ("variant", "block", "attempt", "status", "why", "message", "rank", "host")
    rows = []
    for row in study.launches[~study.launches["usable"]].itertuples():
        error = row.error
        message = compact(error.get("message") or "", 300)
        block = row.block if row.block >= 0 else None
        rows.append((
            row.arm, block, row.attempt, row.status, row.why_not, message, error.get("rank"), error.get("host"),
        ))  # fmt: skip
    return Table("failed", "Launches without a measurement.", columns, rows)


def damaged(study: Study) -> Table:
    return Table("damaged", "Lines that could not be read.", ("file", "line", "reason"), list(study.damaged))


def _recorded(key: str, value: object) -> str:
    """A back end without MPI, or a package that is not there, has no version."""
    if value is None:
        return "no MPI" if key == "mpi" else "none"
    return compact(value, 300)


def environments(study: Study) -> Table:
    """Each thing recorded of software and machine, with all values that occur."""
    found: dict[str, set[str]] = {}
    for environment in study.launches["environment"]:
        for key, value in environment.items():
            if key not in ("load_before", "load_after"):
                found.setdefault(clean(key), set()).add(_recorded(key, value))
    rows = [(key, listed(sorted(values), 4)) for key, values in sorted(found.items())]
    return Table("environment", "Software and machine, as recorded.", ("what", "values"), rows)
