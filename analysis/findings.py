"""Findings in plain sentences: what was seen, by how much, how sure, and where it holds."""

from __future__ import annotations

import math

import pandas as pd

from analysis import stats
from analysis.comparisons import (
    BACKEND,
    HIERARCHY,
    NO_NETWORK,
    OPERATOR,
    REPEAT,
    STOCK,
    Result,
    back_end,
    config_of,
    place,
)
from analysis.load import Study, as_asked, left_out
from analysis.scaling import Point, by_series
from analysis.stats import MINIMUM_BLOCKS, Effect
from analysis.text import counted, listed, shown

NOT_COMPARED = "not compared"
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
        outcomes.setdefault(result.effect.verdict if result.effect else NOT_COMPARED, []).append(label)
    simulated = any("simulated nodes" in result.marks for _, result in chosen)
    place = " Nodes were simulated: nothing here is about a network." if simulated else ""
    if set(outcomes) <= {stats.NO_VERDICT, NOT_COMPARED}:
        blocks = max(result.effect.n if result.effect else 0 for _, result in chosen)
        if not blocks:
            return f"In short: nothing could be compared; the findings say why.{place}"
        return (
            f"In short: {stats.NO_VERDICT} from {counted(blocks, 'block')} ({MINIMUM_BLOCKS} are needed); what is here "
            f"shows that the variants run, not which is faster.{place}"
        )
    order = (stats.FASTER, stats.SLOWER, stats.NO_DIFFERENCE, stats.INCONCLUSIVE, stats.NO_VERDICT, NOT_COMPARED)
    told = [
        f"{len(outcomes[verdict])} {verdict}" + (f" ({listed(outcomes[verdict], 3)})" if verdict in order[:3] else "")
        for verdict in order
        if verdict in outcomes
    ]
    kind = "primary" if chosen[0][1].pair.primary else "exploratory"
    return f"In short, of {counted(len(chosen), f'{kind} comparison')}: {', '.join(told)}.{place}"


def refused(named: list[tuple[str, Result]]) -> list[str]:
    """One sentence for each reason why pairs are not compared."""
    reasons: dict[str, list[str]] = {}
    for label, result in named:
        if result.effect is None:
            reasons.setdefault(result.refusal, []).append(label)
    return [f"{NOT_COMPARED}: {listed(names, 6)}: {reason}." for reason, names in reasons.items()]


def worlds(named: list[tuple[str, Result]]) -> str:
    """Where the comparisons that need more than a word for it hold; empty where there is none."""
    found: dict[str, set[str]] = {}
    for _, result in named:
        if result.effect is not None and place(result.marks, result.world) != result.world:
            found.setdefault(result.world.replace(NO_NETWORK, ""), set()).add(result.placement)
    return " ".join(f"Launches on {listed(sorted(places))} ran {text}." for text, places in sorted(found.items()))


def comparison(label: str, result: Result, study: Study) -> str:
    """One sentence about a pair, its verdict first."""
    effect = result.effect
    if effect is None:
        return refused([(label, result)])[0]
    if not effect.n:
        return f"no verdict possible: {label}: no block holds both {result.pair.candidate} and {result.pair.baseline}."
    # The sentence names the all-reduce of both sides, but for pairs that go by their own names.
    notes = [note for note in result.notes if note != STOCK or label == _own_names(result)]
    tail = [_interval(effect), f"faster in {effect.wins} of {counted(effect.n, 'pair')}", *notes]
    if effect.verdict != stats.NO_VERDICT:
        tail.insert(1, f"Holm-adjusted p {shown(effect.holm, 2)}" if result.pair.primary else "exploratory")
    where = place(result.marks, result.world)
    return f"{_opening(effect)}: {_took(label, result, study)}, {', '.join(tail)}, {where}."


def _opening(effect: Effect) -> str:
    if effect.verdict == stats.NO_VERDICT:
        return f"{stats.NO_VERDICT} from {counted(effect.n, 'block')}"
    if effect.verdict == stats.INCONCLUSIVE:
        needed = f"about {effect.blocks_needed:,} would settle it" if effect.blocks_needed else "more than 1,000 needed"
        return f"inconclusive from {counted(effect.n, 'block')} ({needed})"
    return f"{effect.verdict} ({counted(effect.n, 'block')})"


def _took(label: str, result: Result, study: Study) -> str:
    pair = result.pair
    config, other = config_of(study, pair.candidate), config_of(study, pair.baseline)
    place = f" on {result.placement}" if result.placement else ""
    absolute = f"(geometric means; {shown(1e3 * result.candidate_s)} against {shown(1e3 * result.baseline_s)} ms)"
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


def noise_floor(study: Study, repeats: list[Result], compared: list[tuple[str, Result]]) -> str:
    """The spread of launches that differ in nothing, and for which comparisons it is a yardstick."""
    measured = [result for result in repeats if _spread(result) is not None]
    if not measured:
        return "Noise floor: n/a, no A/A pair has two blocks."
    told = [
        f"{_said_spread(result)} for {_kind_of_arm(study, result.pair.baseline)} ({result.pair.candidate} / "
        f"{result.pair.baseline}, {counted(result.effect.n, 'block')})"
        for result in measured
    ]
    kinds = {_kind_of_arm(study, result.pair.baseline) for result in measured}
    sides = [
        (label, {_kind_of_arm(study, arm) for arm in (result.pair.baseline, result.pair.candidate)})
        for label, result in compared
        if result.effect is not None and result.effect.n
    ]
    held = [label for label, both in sides if both <= kinds]
    said = (
        "Noise floor: the step time ratio of two launches that differ in nothing has a standard deviation of "
        f"{listed(told, 6)}."
    )
    if not held:
        return f"{said} No comparison here is of such launches, so none can be held against it."
    others = len(sides) - len(held)
    missing = f"; for {counted(others, 'other comparison')} no A/A pair was run" if others else ""
    return f"{said} A smaller difference in a single pair of {listed(held, 6)} is noise{missing}."


def floor(repeats: list[Result]) -> float:
    """The widest spread of log ratios among A/A pairs, NaN where none has two blocks."""
    return max((spread for spread in map(_spread, repeats) if spread is not None), default=math.nan)


def _spread(result: Result) -> float | None:
    return result.effect.spread if result.effect is not None and result.effect.n > 1 else None


def _said_spread(result: Result) -> str:
    spread = math.exp(result.effect.spread)
    return f"{shown(100 * (spread - 1), 2)}%" if spread < 1.5 else f"a factor of {shown(spread, 2)}"


def _kind_of_arm(study: Study, arm: str) -> str:
    """What must be alike for a noise floor to hold: ``mpi on 4G2N``, with the operator where it is not ours."""
    config, rows = config_of(study, arm), study.arm(arm)
    operator = config.get("operator")
    told = back_end(config) + (f" {operator}" if operator not in (None, "spline") else "")
    return f"{told} on {max(rows['placement'])}" if len(rows) else told


def scaling(points: list[Point]) -> list[str]:
    """Per series, the throughput and efficiency at its largest placement."""
    sentences = []
    for label, group in by_series(points).items():
        known = [p for p in group if not math.isnan(p.efficiency) and p.workers > 1]
        if known:
            last = known[-1]
            marks = f", with {' and '.join(last.marks)}" if last.marks else ""
            sentences.append(
                f"{label} reached {shown(last.speedup)} times one worker's throughput on {last.placement} (geometric "
                f"mean{_over_blocks(last)}), {shown(100 * last.efficiency)}% efficiency{marks}."
            )
    return sentences


def _over_blocks(point: Point) -> str:
    """The 95% interval, or the range where there are too few blocks for a verdict."""
    n = len(point.speedups)
    if n >= MINIMUM_BLOCKS:
        return f" of {n:,} blocks, 95% interval {shown(point.low)} to {shown(point.high)}"
    if n > 1:
        return f" of {n:,} blocks, range {shown(min(point.speedups))} to {shown(max(point.speedups))}"
    return ", 1 block"


def exposed(study: Study) -> str | None:
    """The range of exposed communication over variants with more than one worker."""
    rows = measured_exchange(study)
    shares = {arm: list(100 * group["exposed"]) for arm, group in as_asked(rows).groupby("arm", sort=True)}
    otherwise = left_out_sentence(rows)
    if not shares:
        return f"Exposed communication: n/a. {otherwise}" if otherwise else None
    medians = sorted((stats.summary(values).median, arm) for arm, values in shares.items())
    ends = [_share(median, arm, shares[arm]) for median, arm in dict.fromkeys((medians[0], medians[-1]))]
    said = f"Exposed communication: {' up to '.join(ends)}; medians over launches."
    return f"{said} {otherwise}".rstrip()


def _share(median: float, arm: str, values: list[float]) -> str:
    n = len(values)
    low, high = stats.median_interval(values) if n >= MINIMUM_BLOCKS else (min(values), max(values))
    kind = "95% interval" if n >= MINIMUM_BLOCKS else "range"
    ends = f"{kind} {shown(low, 2)} to {shown(high, 2)}%, " if n > 1 else ""
    return f"{shown(median, 2)}% of a step ({arm}, {ends}{counted(n, 'launch')})"


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
