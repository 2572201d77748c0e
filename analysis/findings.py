"""Findings in plain sentences: what was seen, by how much, how sure, and where it holds."""

from __future__ import annotations

import math

import pandas as pd

from analysis import stats
from analysis.comparisons import BACKEND, HIERARCHY, OPERATOR, REPEAT, Result, back_end, config_of
from analysis.load import Study, as_asked, left_out
from analysis.scaling import Point, by_series
from analysis.stats import MINIMUM_BLOCKS, Effect
from analysis.text import counted, listed, shown

#: Two blocks that disagree give intervals over many powers of ten; their ends would only look like information.
_USELESS = 100


def labels(study: Study, results: list[Result]) -> list[tuple[str, Result]]:
    """A short name for each pair; the variants' own names where two pairs would share one."""
    short = [_short(study, result) for result in results]
    return [
        (name if short.count(name) == 1 else _own_names(result), result)
        for name, result in zip(short, results, strict=True)
    ]


def _own_names(result: Result) -> str:
    return f"{result.pair.candidate} / {result.pair.baseline}"


def _short(study: Study, result: Result) -> str:
    pair = result.pair
    one, other = config_of(study, pair.baseline), config_of(study, pair.candidate)
    place = f" on {result.placement}" if result.placement else ""
    if pair.kind == HIERARCHY and other:
        return f"{back_end(other)} hierarchical / flat{place}"
    if pair.kind == BACKEND and one and other:
        return f"{back_end(other)} / {back_end(one)}, {other.get('allreduce')}{place}"
    if pair.kind == OPERATOR and one and other:
        return f"{other.get('operator')} / {one.get('operator')}, {other.get('backend')}{place}"
    return _own_names(result)


def in_short(chosen: list[tuple[str, Result]]) -> str:
    """One sentence before all others: how the comparisons that matter most came out. Empty where there are none."""
    if not chosen:
        return ""
    outcomes: dict[str, list[str]] = {}
    for label, result in chosen:
        outcomes.setdefault(result.effect.verdict if result.effect else "not compared", []).append(label)
    if set(outcomes) <= {stats.NO_VERDICT, "not compared"}:
        return (
            f"In short: no verdict yet. A verdict takes {MINIMUM_BLOCKS} blocks; what is here shows that the variants "
            "run, not which is faster."
        )
    order = (stats.FASTER, stats.SLOWER, stats.NO_DIFFERENCE, stats.INCONCLUSIVE, stats.NO_VERDICT, "not compared")
    told = [
        f"{len(outcomes[verdict])} {verdict}" + (f" ({listed(outcomes[verdict], 3)})" if verdict in order[:3] else "")
        for verdict in order
        if verdict in outcomes
    ]
    simulated = any("simulated nodes" in result.marks for _, result in chosen)
    place = " Nodes were simulated: nothing here is about a network." if simulated else ""
    kind = "primary" if chosen[0][1].pair.primary else "exploratory"
    return f"In short, of {counted(len(chosen), f'{kind} comparison')}: {', '.join(told)}.{place}"


def comparison(label: str, result: Result, study: Study) -> str:
    """One sentence about a pair, its verdict first."""
    effect = result.effect
    if effect is None:
        return f"not compared: {label}: {result.refusal}."
    if not effect.n:
        return f"no verdict possible: {label}: no block holds both {result.pair.candidate} and {result.pair.baseline}."
    tail = [_interval(effect), f"faster in {effect.wins} of {counted(effect.n, 'pair')}", *result.notes]
    if effect.verdict != stats.NO_VERDICT:
        tail.insert(1, f"Holm-adjusted p {shown(effect.holm, 2)}" if result.pair.primary else "exploratory")
    return f"{_opening(effect)}: {_took(label, result, study)}, {', '.join(tail)}, {result.world}."


def _opening(effect: Effect) -> str:
    if effect.verdict == stats.NO_VERDICT:
        return f"no verdict possible from {counted(effect.n, 'block')} ({MINIMUM_BLOCKS} are needed)"
    if effect.verdict == stats.INCONCLUSIVE:
        needed = f"about {effect.blocks_needed:,} would settle it" if effect.blocks_needed else "more than 1,000 needed"
        return f"inconclusive from {counted(effect.n, 'block')} ({needed})"
    return f"{effect.verdict} ({counted(effect.n, 'block')})"


def _took(label: str, result: Result, study: Study) -> str:
    pair = result.pair
    config, other = config_of(study, pair.candidate), config_of(study, pair.baseline)
    place = f" on {result.placement}" if result.placement else ""
    absolute = f"({shown(1e3 * result.candidate_s)} against {shown(1e3 * result.baseline_s)} ms)"
    ratio = f"{shown(result.effect.ratio)} times"
    if result.effect.ratio < 0.5:
        absolute = absolute[:-1] + f", {shown(1 / result.effect.ratio)} times as fast)"
    if pair.kind == REPEAT:
        return f"{pair.candidate} took {ratio} the step time of {pair.baseline}, which is the same again {absolute}"
    if label == _own_names(result):
        return f"{pair.candidate} took {ratio} the step time of {pair.baseline} {absolute}"
    if pair.kind == HIERARCHY:
        return f"{back_end(config)} hierarchical{place} took {ratio} its flat twin's step time {absolute}"
    if pair.kind == BACKEND:
        one, two = (f"{back_end(of)} {of.get('allreduce')}" for of in (config, other))
        return f"{one}{place} took {ratio} the step time of {two} {absolute}"
    if pair.kind == OPERATOR:
        return f"{config.get('operator')} took {ratio} the step time of {other.get('operator')} {absolute}"
    return f"{pair.candidate} took {ratio} the step time of {pair.baseline} {absolute}"


def _interval(effect: Effect) -> str:
    if math.isnan(effect.low):
        return "95% interval n/a (it takes 2 blocks)"
    if effect.high / effect.low > _USELESS:
        return f"95% interval too wide to be of use (ends differ by a factor above {_USELESS})"
    return f"95% interval {shown(effect.low)} to {shown(effect.high)}"


def noise_floor(results: list[Result]) -> str:
    """The spread of launches that differ in nothing: what is smaller cannot be told from noise."""
    measured = [result for result in results if result.effect is not None and result.effect.n > 1]
    if not measured:
        return "Noise floor: n/a, no A/A pair has two blocks."
    widest = max(measured, key=lambda result: result.effect.spread)
    spread = math.exp(widest.effect.spread)
    said = f"of {shown(100 * (spread - 1), 2)}%" if spread < 1.5 else f"that is a factor of {shown(spread, 2)}"
    return (
        f"Noise floor: between two launches that differ in nothing ({widest.pair.candidate}, {widest.pair.baseline}) "
        f"the step time ratio varies with a standard deviation {said} "
        f"({counted(widest.effect.n, 'block')}); a smaller difference in a single pair is noise."
    )


def scaling(points: list[Point]) -> list[str]:
    """Per series, the efficiency at its largest placement."""
    sentences = []
    for label, group in by_series(points).items():
        known = [p for p in group if not math.isnan(p.efficiency) and p.workers > 1]
        if known:
            last = known[-1]
            marks = f", with {' and '.join(last.marks)}" if last.marks else ""
            blocks = counted(len(last.speedups), "block")
            sentences.append(
                f"{label} reached {shown(last.speedup)} times one worker's throughput on {last.placement} "
                f"({shown(100 * last.efficiency)}% efficiency, {blocks}{marks})."
            )
    return sentences


def exposed(study: Study) -> str | None:
    """The range of exposed communication over variants with more than one worker."""
    rows = measured_exchange(study)
    medians = as_asked(rows).groupby("arm")["exposed"].median().sort_values()
    otherwise = left_out_sentence(rows)
    if medians.empty:
        return f"Exposed communication: n/a. {otherwise}" if otherwise else None
    first, last = (f"{shown(100 * medians.iloc[at], 2)}%" for at in (0, -1))
    if len(medians) == 1:
        said = f"Exposed communication took {first} of a step ({medians.index[0]})."
    else:
        said = (
            f"Exposed communication took from {first} of a step ({medians.index[0]}) to {last} ({medians.index[-1]})."
        )
    return f"{said} {otherwise}".rstrip()


def measured_exchange(study: Study) -> pd.DataFrame:
    """Usable launches of several workers that measured steps with and without the exchange."""
    return study.usable[(study.usable["workers"] > 1) & study.usable["exposed"].notna()]


def left_out_sentence(launches: pd.DataFrame) -> str:
    """Which launches are not shown under their name, since something else ran; empty where all ran as asked."""
    otherwise = left_out(launches)
    return f"Left out, since something else ran: {listed(otherwise, 6)}." if otherwise else ""


def counts(study: Study) -> list[str]:
    """What the report rests on, and what is missing from it."""
    launches, usable = len(study.launches), int(study.launches["usable"].sum())
    sentences = []
    if usable == 0:
        sentences.append(
            f"All {counted(launches, 'launch')} failed: there is nothing to measure. See the last section."
        )
    elif usable < launches:
        sentences.append(
            f"{launches - usable:,} of {counted(launches, 'launch')} failed; they are counted, not averaged."
        )
    missing = missing_launches(study)
    if missing:
        sentences.append(f"{counted(missing, 'launch')} of the plan {'has' if missing == 1 else 'have'} no record yet.")
    if study.damaged:
        sentences.append(f"{counted(len(study.damaged), 'line')} of the records could not be read.")
    names = sorted(set(study.launches["study"]))
    if len(names) > 1:
        sentences.append(f"Records of {len(names)} studies are mixed here; launches are paired within a study only.")
    return sentences


def missing_launches(study: Study) -> int:
    """Launches that the plan asks for and no record tells of, failed or not."""
    variants, blocks = study.plan.get("variant", []), study.plan.get("blocks", 0)
    seen = set(study.launches[["variant", "block"]].itertuples(index=False, name=None))
    return sum((variant["name"], block) not in seen for variant in variants for block in range(1, blocks + 1))
