"""Pairs of arms -> paired effects, or the reason why a pair is not compared.

An arm is a variant (and cell) of a study; what is compared is the median step time of its launches, block by block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import pandas as pd

from analysis import parity, stats
from analysis.load import Study, as_asked, left_out, twin_of, values, work_key
from analysis.text import counted, listed, shown

HIERARCHY, BACKEND, OPERATOR, REPEAT, OTHER = "hierarchy", "backend", "operator", "repeat", "other"

NO_NETWORK = " - says nothing about a network"
#: What a user gets untouched; a remark on a pair of back ends.
STOCK = "stock against stock"

#: pykan trains its affine parameters, whose gradient is zero: that belongs to the operator. Without an exchange it
#: changes nothing but the operator's own time, and is noted.
_OF_THE_OPERATOR = ("trainable set", "bytes on the wire")
#: Each framework has its own fusion; where a plan compares settings of the exchange, they are what is compared.
_MAY_DIFFER = {BACKEND: ("fusion", "cycle time"), OTHER: ("fusion", "overlap", "cycle time")}


@dataclass(frozen=True)
class Pair:
    """Two arms by name. ``primary`` pairs were named in the plan before anything ran; the rest is exploratory."""

    baseline: str
    candidate: str
    kind: str
    primary: bool = False


@dataclass(frozen=True)
class Result:
    """A compared pair, or one with a ``refusal``.

    Absolute step times (s) stand beside the ratio: geometric means over the same pairs, so that their quotient is it.
    """

    pair: Pair
    refusal: str = ""
    effect: stats.Effect | None = None
    baseline_s: float = math.nan
    candidate_s: float = math.nan
    logs: dict = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    world: str = ""
    placement: str = ""
    marks: tuple[str, ...] = ()


def first_config(rows: pd.DataFrame) -> dict:
    return next((config for config in rows["config"] if config), {})


def config_of(study: Study, arm: str) -> dict:
    """An arm's settings as recorded or, where it has no record yet, as planned."""
    config = first_config(study.arm(arm))
    if config:
        return config
    variants = [variant for variant in study.plan.get("variant", []) if variant.get("name") == arm]
    return study.plan.get("common", {}) | variants[0] if variants else {}


def back_end(config: dict) -> str:
    """``horovod`` or, where a transport was asked for, ``horovod over gloo``."""
    transport = config.get("transport")
    return str(config.get("backend")) + (f" over {transport}" if transport not in (None, "auto") else "")


def kind_of(study: Study, baseline: str, candidate: str) -> str:
    """What a planned pair compares, by the first setting that differs."""
    one, other = config_of(study, baseline), config_of(study, candidate)
    # A plan leaves out what is at its default: only a setting that both give can differ.
    for key, kind in (("backend", BACKEND), ("operator", OPERATOR)):
        if key in one and key in other and one[key] != other[key]:
            return kind
    if (one.get("allreduce"), other.get("allreduce")) == ("flat", "hierarchical"):
        return HIERARCHY
    return OTHER if work_key(one) != work_key(other) else REPEAT


def planned(study: Study, key: str) -> list[tuple[str, str]]:
    """The arms of the plan's ``primary`` or ``aa`` pairs; a pair of variants holds for each cell that both have."""
    names = study.launches[["variant", "cell", "arm"]].drop_duplicates()
    pairs = []
    for one, other in study.plan.get(key, []):
        cells = {name: dict(rows[["cell", "arm"]].values) for name, rows in names.groupby("variant")}
        shared = sorted(set(cells.get(one, {})) & set(cells.get(other, {})))
        pairs += [(cells[one][cell], cells[other][cell]) for cell in shared] or [(one, other)]
    return pairs


def matched(
    study: Study, vary: Iterable[str], is_baseline: Callable[[dict], bool], is_candidate: Callable[[dict], bool]
) -> list[tuple[str, str]]:
    """Arms of one placement whose settings agree but for ``vary``: each candidate with its nearest baseline."""
    repeats = {other for _, other in planned(study, "aa")}
    groups: dict[tuple, list[tuple[str, dict]]] = {}
    for arm, rows in study.launches.groupby("arm", sort=True):
        config = first_config(rows)
        placement = max(rows["placement"])
        if config and placement and arm not in repeats:
            key = (rows["study"].iloc[0], rows["cell"].iloc[0], placement, work_key(config, vary))
            groups.setdefault(key, []).append((arm, config))
    pairs = []
    for arms in groups.values():
        baselines = [(arm, config) for arm, config in arms if is_baseline(config)]
        for arm, config in arms:
            if baselines and is_candidate(config):
                pairs.append((_nearest(study, baselines, arm, config), arm))
    return sorted(pairs)


def _nearest(study: Study, baselines: list[tuple[str, dict]], arm: str, config: dict) -> str:
    """Of several baselines the one over the same transport, then the one with the same engine."""

    def distance(other: tuple[str, dict]) -> tuple:
        transports = _effective(study.arm(other[0]), "transport") != _effective(study.arm(arm), "transport")
        return transports, other[1].get("engine") != config.get("engine"), other[0]

    return min(baselines, key=distance)[0]


def with_primary(study: Study, kind: str, derived: list[tuple[str, str]]) -> list[Pair]:
    """The plan's primary pairs of this kind, then the derived ones that it does not name."""
    named = [pair for pair in planned(study, "primary") if kind_of(study, *pair) == kind]
    known = {frozenset(pair) for pair in planned(study, "primary")}
    pairs = [Pair(*pair, kind, primary=True) for pair in named]
    return pairs + [Pair(*pair, kind) for pair in derived if frozenset(pair) not in known]


def compare(study: Study, pair: Pair) -> Result:
    """Measure a pair. Refused where an arm did not run as asked, or where the two did not do the same work."""
    arms = [study.arm(pair.baseline), study.arm(pair.candidate)]
    for name, rows in zip((pair.baseline, pair.candidate), arms, strict=True):
        if rows.empty:
            return Result(pair, f"no launch of {name}")
        if not rows["usable"].any():
            return Result(pair, f"no usable launch of {name}: {listed(sorted(set(rows['why_not'])), 2)}")
    otherwise = [text for rows in arms for text in left_out(rows)]
    baseline, candidate = (as_asked(rows) for rows in arms)
    if baseline.empty or candidate.empty:
        return Result(pair, f"what ran is not what was asked for ({listed(otherwise)})")
    allowed = (
        _OF_THE_OPERATOR
        if pair.kind == OPERATOR and candidate["workers"].max() == 1
        else _MAY_DIFFER.get(pair.kind, ())
    )
    refusal = _differences(baseline, candidate, allowed) or _transport_refusal(pair, baseline, candidate)
    if refusal:
        return Result(pair, refusal)
    seconds = values(baseline, "step_s"), values(candidate, "step_s")
    both, logs = pd.concat([baseline, candidate]), stats.paired_log_ratios(*seconds)
    return Result(
        pair,
        effect=stats.measure(*seconds),
        baseline_s=stats.geometric_mean([seconds[0][block] for block in logs]),
        candidate_s=stats.geometric_mean([seconds[1][block] for block in logs]),
        logs=logs,
        notes=(*_notes(pair, baseline, candidate), *(f"left out, {text}" for text in otherwise)),
        world=world(both),
        placement=candidate["placement"].iloc[0],
        marks=marks(both),
    )


def judged(results: list[Result], margin: float = stats.MARGIN) -> list[Result]:
    """Results with verdicts; Holm's adjustment runs over all primary pairs, a refused one included, and no others."""
    primary = [index for index, result in enumerate(results) if result.pair.primary]
    p_values = [results[index].effect.p if results[index].effect else float("nan") for index in primary]
    adjusted = dict(zip(primary, stats.holm(p_values), strict=True))
    return [
        result
        if result.effect is None
        else replace(
            result,
            effect=stats.decide(
                result.effect,
                margin=margin,
                holm_p=adjusted.get(index),
                family=len(primary) if index in adjusted else 1,
            ),
        )
        for index, result in enumerate(results)
    ]


def _differences(baseline: pd.DataFrame, candidate: pd.DataFrame, allowed: tuple[str, ...] = ()) -> str:
    """Work parity of every block that holds both arms, as candidate against baseline; empty when all agree."""
    others = {(row.study, row.block): row.settings for row in candidate.itertuples()}
    for row in baseline.itertuples():
        other = others.get((row.study, row.block))
        found = parity.differences(other, row.settings, allowed) if other else []
        if found:
            return f"not the same work in block {row.block}: {listed(found)} differ"
    return ""


def _effective(rows: pd.DataFrame, key: str) -> str:
    found = {str(effective[key]).split("(")[0] for effective in rows["effective"] if effective.get(key)}
    return " and ".join(sorted(found))


def _engines(rows: pd.DataFrame) -> str:
    """Engines by the name of the pair of twins that they belong to."""
    found = {twin_of(effective) or effective.get("engine") for effective in rows["effective"]}
    return " and ".join(sorted({str(engine).split("(")[0] for engine in found if engine}))


def _is_stock(rows: pd.DataFrame) -> bool:
    return first_config(rows).get("allreduce") == "stock"


def _transport_refusal(pair: Pair, baseline: pd.DataFrame, candidate: pd.DataFrame) -> str:
    one, other = _effective(baseline, "transport"), _effective(candidate, "transport")
    if one == other or pair.kind == OTHER or (pair.kind == BACKEND and _is_stock(baseline) and _is_stock(candidate)):
        return ""
    return f"transports differ ({other or 'not recorded'} against {one or 'not recorded'})"


def _notes(pair: Pair, baseline: pd.DataFrame, candidate: pd.DataFrame) -> list[str]:
    notes = []
    if pair.kind == BACKEND:
        one, other = _effective(baseline, "transport"), _effective(candidate, "transport")
        if _is_stock(baseline) and _is_stock(candidate):
            notes.append(STOCK)
        if candidate["workers"].max() == 1:
            notes.append("one worker, so nothing is exchanged")
        else:
            notes.append(f"both over {one}" if one == other else f"transports differ: {other} against {one}")
    if pair.kind == OPERATOR:
        notes += _trainable(baseline, candidate)
    if pair.kind == HIERARCHY:
        one, other = _engines(baseline), _engines(candidate)
        if one != other:
            notes.append(f"engines differ: {other} against {one}, so these are no twins")
        one, other = _calls(baseline), _calls(candidate)
        if one and other and one != other:
            notes.append(f"calls differ ({other} against {one}), so these are no exact twins")
    return notes


def _trainable(baseline: pd.DataFrame, candidate: pd.DataFrame) -> list[str]:
    """Operators that train different numbers of parameters, as pykan with its symbolic branch does."""
    trained = {
        first_config(rows).get("operator"): rows["settings"].iloc[0]["trainable set"] for rows in (candidate, baseline)
    }
    if None in trained.values() or len(set(trained.values())) < 2:
        return []
    return [" and ".join(f"{operator} trains {shown(n)} parameters" for operator, n in trained.items())]


def _calls(rows: pd.DataFrame) -> str:
    """The names of the calls that were seen to run, in their order: ``reduce_scatter over 4: 1440`` without sizes."""
    found = set()
    for effective in rows["effective"]:
        evidence = effective.get("evidence")
        calls = evidence.get("calls") if isinstance(evidence, dict) else None
        if isinstance(calls, list) and calls:
            found.add(", ".join(str(call).split(" over")[0] for call in calls))
    return " or ".join(sorted(found))


def marks(rows: pd.DataFrame) -> tuple[str, ...]:
    """What every figure that touches these launches must say."""
    found = [
        ("simulated nodes", "simulated"),
        ("emulated nodes", "emulated"),
        ("more threads than cores", "oversubscribed"),
    ]
    return tuple(text for text, column in found if rows[column].any())


def world(rows: pd.DataFrame) -> str:
    """Where a sentence about these launches holds."""
    nodes = int(rows["nodes"].max())
    if rows["simulated"].any():
        hosts = max(1, int(rows["hosts"].max()))
        where = "one host" if hosts == 1 else f"{hosts} hosts"
        text = f"on {counted(nodes, 'simulated node')} of {where}{NO_NETWORK}"
    elif rows["emulated"].any():
        text = "on this emulated cluster"
    else:
        text = "on one node" if nodes <= 1 else "on this cluster"
    return text + (", with more threads than cores" if rows["oversubscribed"].any() else "")


def place(marked: Iterable[str], text: str) -> str:
    """:func:`world` in a few words, for where it has been told in full."""
    return "on simulated nodes" if "simulated nodes" in marked else text.split(", with ")[0]
