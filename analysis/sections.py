"""The report as a list of sections: questions in the order a reader has them, each with its table and figure."""

from __future__ import annotations

from dataclasses import dataclass, field

from analysis import comparisons, conditions, findings, hierarchy, paper, plots, scaling, stats, tables
from analysis.comparisons import Result, first_config
from analysis.load import Study, as_asked
from analysis.plots import Figure
from analysis.tables import Table
from analysis.text import clean, counted, listed

#: The report's own words, told where a reader meets them first.
WORDS = (
    "A launch is one start of a job, a block one launch of each variant. 4G2N: 4 workers on 2 nodes. stock: the back "
    "end untouched. flat and hierarchical: the same exchange in one step over all ranks, or within each node and then "
    "across nodes; a flat twin differs from its hierarchical variant in nothing else. A/A: the same variant twice."
)
#: More sentences than this are a table; the first page has the primary ones in any case.
MOST_FINDINGS = 16


@dataclass
class Section:
    """``text`` is paragraphs, ``points`` a list, ``note`` small print; plain text, escaped where the page is made."""

    id: str
    title: str
    text: list[str] = field(default_factory=list)
    points: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    note: str = ""


def build(study: Study, margin: float = stats.MARGIN) -> list[Section]:
    """All sections of a study's report, the findings first."""
    questions = {
        "hierarchy": hierarchy.twins(study),
        "backends": hierarchy.backends(study),
        "operators": hierarchy.operators(study),
        "noise": hierarchy.repeats(study),
        "others": hierarchy.others(study),
    }
    flat = [(key, comparisons.compare(study, pair)) for key, pairs in questions.items() for pair in pairs]
    # One family over all primary pairs, whichever section shows them.
    judged = comparisons.judged([result for _, result in flat], margin)
    results: dict[str, list[Result]] = {key: [] for key in questions}
    for (key, _), result in zip(flat, judged, strict=True):
        results[key].append(result)
    named = {key: findings.labels(study, found) for key, found in results.items()}
    points = scaling.strong(study)
    sections = [
        _findings(study, named, points),
        _scaling(points),
        *_weak(study),
        _hierarchy(named["hierarchy"], margin),
        _noise(named["noise"], margin),
        _backends(named["backends"], margin),
        _operators(study, named["operators"], margin),
    ]
    if named["others"]:
        sections.append(_pairs("others", "Other comparisons of the plan", named["others"], "Other pairs", margin))
    sections += [
        _communication(study),
        Section("requested", "What was requested and what ran", _asked(study), tables=[tables.requested(study)]),
        _paper(study, points),
        _method(study, margin),
        _failed(study),
    ]
    return sections


def _findings(study: Study, named: dict, points: list[scaling.Point]) -> Section:
    said = findings.counts(study)
    if not study.launches["usable"].any():
        return Section("findings", "Findings", points=said)
    pairs = [(label, r) for key in ("hierarchy", "others", "backends", "operators") for label, r in named[key]]
    pairs.sort(key=lambda pair: not pair[1].pair.primary)
    kept = [pair for pair in pairs if pair[1].pair.primary]
    kept += pairs[len(kept) : max(len(kept), MOST_FINDINGS)]
    said += [findings.comparison(label, result, study) for label, result in kept if result.effect is not None]
    said += findings.refused(kept)
    if len(pairs) > len(kept):
        said.append(f"{counted(len(pairs) - len(kept), 'further comparison')}: see the tables below.")
    repeats = [result for _, result in named["noise"]]
    said.append(findings.noise_floor(study, repeats, pairs))
    said += [text for text in (conditions.other_work(study), conditions.drift(study, findings.floor(repeats))) if text]
    said += findings.scaling(points)[:MOST_FINDINGS]
    exposed = findings.exposed(study)
    said += [exposed] if exposed else []
    lead = findings.in_short([pair for pair in pairs if pair[1].pair.primary] or named["hierarchy"])
    return Section("findings", "Findings", [text for text in (lead, findings.worlds(kept)) if text], said, note=WORDS)


def _scaling(points: list[scaling.Point]) -> Section:
    series = scaling.by_series(points)
    alone = [label for label, group in series.items() if not scaling.is_series(group)]
    drawn = [point for point in points if point.series not in alone]
    section = Section("scaling", "Strong scaling")
    if drawn:
        section.text.append(
            "Throughput against one worker with the same settings; the ideal is the number of workers. Samples and "
            "epochs stay the same; the batch column says which rule of batch was used."
        )
        figure = plots.speedup(drawn)
        section.figures += [figure] if figure else []
        section.tables.append(tables.scaling(drawn, "scaling", "Strong scaling."))
    else:
        section.text.append("n/a: no variant was run with the same settings on two placements.")
    if alone:
        section.text.append(f"On one placement only, so not part of a series: {listed(alone, 6)}.")
    return section


def _weak(study: Study) -> list[Section]:
    if "weak" not in study.name.lower():
        return []
    try:
        points = scaling.weak(study)
    except scaling.LabelRefused as error:
        return [Section("weak", "Growing work", [f"This study is {error}."])]
    table = tables.scaling(points, "weak", "Weak scaling: the same samples per worker.", "throughput / one worker's")
    return [Section("weak", "Weak scaling", tables=[table])]


def _pairs(key: str, title: str, named: list[tuple[str, Result]], what: str, margin: float) -> Section:
    section = Section(key, title)
    if not named:
        section.text.append("n/a: the study has no such pair of variants.")
        return section
    figure = plots.forest(named, key, what, margin)
    section.figures += [figure] if figure else []
    refused = [f"{label}: {result.refusal}." for label, result in named if result.refusal]
    if refused:
        section.text.append(f"{counted(len(refused), 'pair')} refused:")
        section.points += refused
    section.tables.append(tables.pairs(named, key, f"{what}.", margin))
    return section


def _hierarchy(named: list[tuple[str, Result]], margin: float) -> Section:
    section = _pairs("hierarchy", "Flat against hierarchical", named, "Hierarchical over its flat twin", margin)
    if any("simulated nodes" in result.marks for _, result in named):
        section.text.insert(
            0,
            "The nodes are simulated on one host: the two-level algorithm really ran, over memory on both levels. This "
            "shows its cost in calls and copies and says nothing about a network.",
        )
    return section


def _noise(named: list[tuple[str, Result]], margin: float) -> Section:
    section = _pairs("noise", "Noise floor (A/A)", named, "The same variant launched twice in each block", margin)
    section.text.insert(
        0,
        "How far apart launches come out that differ in nothing. It holds for launches of the same kind on the same "
        "placement; the findings say for which.",
    )
    return section


def _backends(named: list[tuple[str, Result]], margin: float) -> Section:
    section = _pairs("backends", "Horovod against DDP", named, "Horovod over DDP", margin)
    section.text.insert(
        0,
        "Frameworks are compared at equal transport. Stock against stock is what a user gets untouched: where the "
        "transports differ there, the difference may be the transport's and not the framework's.",
    )
    return section


def _operators(study: Study, named: list[tuple[str, Result]], margin: float) -> Section:
    section = _pairs("operators", "Operator speed", named, "Operator over pykan", margin)
    arms = dict.fromkeys(arm for _, result in named for arm in (result.pair.baseline, result.pair.candidate))
    rows = []
    for arm in arms:
        group = study.arm(arm)
        usable = as_asked(group)
        label = f"{first_config(group).get('operator')} ({arm})"
        rows.append(plots.Row(label, [1e3 * v for v in usable["step_s"]], comparisons.marks(usable)))
    otherwise = findings.left_out_sentence(study.usable[study.usable["arm"].isin(list(arms))])
    section.text += [otherwise] if otherwise else []
    figure = plots.dots(rows, "operator-times", "Time of a training step", "step (ms)", log=True)
    section.figures += [figure] if figure else []
    return section


def _communication(study: Study) -> Section:
    section = Section("communication", "Exposed communication")
    table = tables.communication(study)
    otherwise = findings.left_out_sentence(findings.measured_exchange(study))
    if not table.rows:
        section.text.append("n/a: no launch measured steps with and without the exchange.")
        section.text += [otherwise] if otherwise else []
        return section
    section.text.append(
        "The share of a step that the exchange costs: (step with exchange - the same step without) / step with, "
        "measured by interleaved steps on a scratch copy of the model. Overlapped communication does not count."
    )
    section.text += [otherwise] if otherwise else []
    rows = [
        plots.Row(arm, list(100 * group["exposed"]), comparisons.marks(group))
        for arm, group in as_asked(findings.measured_exchange(study)).groupby("arm", sort=True)
    ]
    figure = plots.dots(rows, "exposed", "Exposed communication", "% of a step")
    section.figures += [figure] if figure else []
    section.tables.append(table)
    return section


def _asked(study: Study) -> list[str]:
    told = tables.told(study.launches)
    wrong = told[told["mismatch"] != ""]
    if wrong.empty:
        return [f"{counted(len(told), 'launch')} told what ran: all as asked for."]
    text = f"{len(wrong):,} of {counted(len(told), 'launch')} did not run as asked for and count as nothing else: "
    return [text + listed(sorted({f"{row.arm}: {row.mismatch}" for row in wrong.itertuples()}), 6) + "."]


def _paper(study: Study, points: list[scaling.Point]) -> Section:
    numbers = paper.numbers()
    text = [
        f"{numbers['title']} ({', '.join(numbers['authors'])}). Its numbers come from another machine and other "
        "samples: they stand here for orientation, and a ratio of the two would mean nothing."
    ]
    return Section("paper", "The paper's numbers beside ours", text, tables=[paper.beside(study, points)])


def _method(study: Study, margin: float) -> Section:
    rows, usable = study.launches, len(study.usable)
    otherwise = usable - len(study.as_asked)
    blocks = rows.loc[rows["block"] >= 0, "block"].nunique()
    text = [
        f"{counted(len(rows), 'launch')} in {counted(blocks, 'block')}; {usable} gave a measurement"
        + (f", {otherwise} of them of something else than was asked for" if otherwise else "")
        + (f"; {counted(study.superseded, 'earlier attempt')} replaced by a later one" if study.superseded else "")
        + ". A launch is one start of the job and the unit of replication; a block is one launch of each variant.",
        "A step's time is the slowest rank's, after warm-up; a launch's is the median over its steps. Variants are "
        "compared by log ratios within a block: geometric mean (of the times beside ratios too), Student's t interval, "
        "exact sign-flip test, Holm's adjustment over the plan's primary pairs only. A "
        f"verdict takes {stats.MINIMUM_BLOCKS} blocks. Differences "
        f"within {margin:.0%} do not matter in practice: the verdict for an interval within them is no practical "
        f"difference. {_equivalence(study)} Rates are averaged harmonically, all else is the median "
        "over launches.",
    ]
    section = Section("method", "How it was measured, and what was not tested", text)
    section.points = _untested(study)
    section.tables = [tables.variants(study), tables.environments(study)]
    return section


def _equivalence(study: Study) -> str:
    family = len(comparisons.planned(study, "primary"))
    if family < 2:
        return "It is the 95% interval."
    return (
        f"For the {family} primary pairs it is one at level {1 - stats.ALPHA / family:.2%} (Bonferroni's adjustment), "
        "wider than the 95% interval that is shown; for other pairs it is the 95% interval."
    )


def _untested(study: Study) -> list[str]:
    usable = study.usable
    said = []
    if usable.empty:
        return ["Everything: no launch gave a measurement."]
    if usable["simulated"].any():
        said.append(
            "Networks: nodes were simulated on one host, so latency and bandwidth between nodes were not tested."
        )
    elif usable["nodes"].max() <= 1:
        said.append("Networks: all launches ran on one node.")
    if usable["emulated"].any():
        said.append("Real clusters: nodes were emulated on one machine.")
    devices = sorted({clean(settings["device"]) for settings in usable["settings"] if settings["device"]})
    if not any(device.startswith("cuda") for device in devices):
        said.append(f"GPUs: all workers computed on {listed(devices) or 'an unknown device'}.")
    if usable["oversubscribed"].any():
        n = int(usable["oversubscribed"].sum())
        said.append(
            f"Free cores: {counted(n, 'launch')} had more threads than cores; they waited for each other's turn."
        )
    if conditions.other_work(study):
        said.append("A quiet machine: other work ran beside the launches, as the findings say.")
    elif (usable["exclusive"] != "True").any():
        said.append("A quiet machine: it is not known that nothing else ran beside the launches.")
    placements = paper.unmeasured(study)
    if placements:
        said.append(f"Placements of the paper without a launch here: {listed(placements)}.")
    return said


def _failed(study: Study) -> Section:
    section = Section("failed", "Failed and damaged")
    failed, damaged = tables.failed(study), tables.damaged(study)
    if not failed.rows:
        section.text.append("No launch failed.")
    if not damaged.rows:
        section.text.append("No line was damaged.")
    missing = findings.missing_launches(study)
    if missing:
        section.text.append(f"{counted(missing, 'launch')} of the plan without a record.")
    section.tables = [table for table in (failed, damaged) if table.rows]
    return section
