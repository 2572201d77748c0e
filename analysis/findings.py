"""Findings in plain sentences: what was seen, by how much, how sure, and where it holds."""

from __future__ import annotations

import math

from analysis import stats
from analysis.comparisons import BACKEND, HIERARCHY, OPERATOR, REPEAT, Result, config_of
from analysis.load import Study
from analysis.scaling import Point, by_series
from analysis.stats import MINIMUM_BLOCKS, Effect
from analysis.text import counted, shown

#: Two blocks that disagree give intervals over many powers of ten; their ends would only look like information.
_USELESS = 100


def labels(study: Study, results: list[Result]) -> list[tuple[str, Result]]:
    """A short name for each pair; the variants' own names where two pairs would share one."""
    short = [_short(study, result) for result in results]
    return [
        (name if short.count(name) == 1 else f"{result.pair.candidate} / {result.pair.baseline}", result)
        for name, result in zip(short, results, strict=True)
    ]


def _short(study: Study, result: Result) -> str:
    pair = result.pair
    one, other = config_of(study, pair.baseline), config_of(study, pair.candidate)
    place = f" on {result.placement}" if result.placement else ""
    if pair.kind == HIERARCHY and other:
        return f"{other.get('backend')} hierarchical / flat{place}"
    if pair.kind == BACKEND and one and other:
        return f"{other.get('backend')} / {one.get('backend')}, {other.get('allreduce')}{place}"
    if pair.kind == OPERATOR and one and other:
        return f"{other.get('operator')} / {one.get('operator')}, {other.get('backend')}{place}"
    return f"{pair.candidate} / {pair.baseline}"


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
    return f"{_opening(effect)}: {_took(result, study)}, {', '.join(tail)}, {result.world}."


def _opening(effect: Effect) -> str:
    if effect.verdict == stats.NO_VERDICT:
        return f"no verdict possible from {counted(effect.n, 'block')} ({MINIMUM_BLOCKS} are needed)"
    if effect.verdict == stats.INCONCLUSIVE:
        needed = f"about {effect.blocks_needed:,} would settle it" if effect.blocks_needed else "more than 1,000 needed"
        return f"inconclusive from {counted(effect.n, 'block')} ({needed})"
    return f"{effect.verdict} ({counted(effect.n, 'block')})"


def _took(result: Result, study: Study) -> str:
    pair = result.pair
    config = config_of(study, pair.candidate)
    absolute = f"({shown(1e3 * result.candidate_s)} against {shown(1e3 * result.baseline_s)} ms)"
    ratio = f"{shown(result.effect.ratio)} times"
    if result.effect.ratio < 0.5:
        absolute = absolute[:-1] + f", {shown(1 / result.effect.ratio)} times as fast)"
    if pair.kind == HIERARCHY:
        return f"{config.get('backend')} hierarchical took {ratio} its flat twin's step time {absolute}"
    if pair.kind == REPEAT:
        return f"{pair.candidate} took {ratio} the step time of {pair.baseline}, which is the same again {absolute}"
    if pair.kind == OPERATOR:
        other = config_of(study, pair.baseline)
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
    rows = study.usable[(study.usable["workers"] > 1) & study.usable["exposed"].notna()]
    medians = rows.groupby("arm")["exposed"].median().sort_values()
    if medians.empty:
        return None
    if len(medians) == 1:
        return f"Exposed communication took {shown(100 * medians.iloc[0], 2)}% of a step ({medians.index[0]})."
    return (
        f"Exposed communication took from {shown(100 * medians.iloc[0], 2)}% of a step ({medians.index[0]}) to "
        f"{shown(100 * medians.iloc[-1], 2)}% ({medians.index[-1]})."
    )


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
    if not isinstance(blocks, int):
        return 0
    seen = set(study.launches[["variant", "block"]].itertuples(index=False, name=None))
    return sum((variant.get("name"), block) not in seen for variant in variants for block in range(1, blocks + 1))
