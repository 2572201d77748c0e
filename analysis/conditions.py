"""Under which conditions the launches ran, as far as records tell: other work on the machine, and drift over time."""

from __future__ import annotations

import math

import numpy as np

from analysis import stats
from analysis.load import Study
from analysis.text import counted, shown

#: A load average beyond a study's own threads by less than this may be its launchers' and its helpers'.
_SLACK = 1.0


def other_work(study: Study) -> str:
    """A sentence where the load shows that something else ran beside the launches; empty where it need not have.

    Launches of a study follow each other, so what they leave behind is at most the load of the largest.
    """
    rows = study.launches[study.launches["load_before"].notna()]
    if rows.empty:
        return ""
    own = rows["busy"].max()
    beyond = rows[rows["load_before"] > own + _SLACK]
    if beyond.empty:
        return ""
    return (
        f"Other work on the machine: before {len(beyond):,} of {counted(len(rows), 'launch')} the load average "
        f"(1 minute) was above {shown(float(own + _SLACK))}, more than the {counted(int(own), 'busy thread')} of the "
        f"study's own largest launch leave behind (median {shown(float(rows['load_before'].median()))}, highest "
        f"{shown(float(rows['load_before'].max()))}, on {counted(int(rows['cores'].max()), 'core')})."
    )


def drift(study: Study, floor: float) -> str:
    """A sentence where steps of the last half of the blocks differ from those of the first by more than ``floor``.

    ``floor`` is a standard deviation of log ratios; NaN where no noise floor is known: then the margin of equivalence.
    """
    logs = drifts(study)
    if not len(logs):
        return ""
    known, mean = math.isfinite(floor), float(np.mean(logs))
    floor = floor if known else math.log1p(stats.MARGIN)
    if abs(mean) <= floor:
        return ""
    named = "the noise floor" if known else "the margin"
    spread = f", range {shown(math.exp(min(logs)))} to {shown(math.exp(max(logs)))}" if len(logs) > 1 else ""
    return (
        f"Drift: steps of the last half of the blocks took {shown(math.exp(mean))} times those of the first half "
        f"(geometric mean over {counted(len(logs), 'variant')}{spread}), more than {named} of "
        f"{shown(100 * math.expm1(floor), 2)}%. Ratios within a block are free of it; absolute times are not."
    )


def drifts(study: Study) -> list[float]:
    """For each arm with launches in both halves the log ratio of its mean step times, last half over first."""
    rows = study.as_asked
    rows = rows[(rows["block"] >= 0) & (rows["step_s"] > 0)]
    found = []
    for _, group in rows.groupby("study"):
        blocks = sorted(set(group["block"]))
        half = len(blocks) // 2
        first, last = set(blocks[:half]), set(blocks[len(blocks) - half :])
        for _, arm in group.groupby("arm"):
            logs = np.log(arm["step_s"])
            early, late = logs[arm["block"].isin(first)], logs[arm["block"].isin(last)]
            if len(early) and len(late):
                found.append(float(late.mean() - early.mean()))
    return found
