"""Which pairs a study allows: hierarchical against flat, back end against back end, operator against operator, A/A."""

from __future__ import annotations

from analysis import comparisons as compared
from analysis.comparisons import Pair
from analysis.load import Study, work_key


def twins(study: Study) -> list[Pair]:
    """Each hierarchical arm against its flat twin: the same settings but for the algorithm."""
    derived = compared.matched(
        study,
        ("allreduce", "engine"),
        lambda config: config.get("allreduce") == "flat",
        lambda config: config.get("allreduce") == "hierarchical",
    )
    return compared.with_primary(study, compared.HIERARCHY, derived)


def backends(study: Study, baseline: str = "ddp", candidate: str = "horovod") -> list[Pair]:
    """Two back ends with the same all-reduce; the settings that only one of them has may differ.

    A candidate over several transports is compared over each; a comparison at unequal ones says so or is refused.
    """
    derived = compared.matched(
        study,
        ("backend", "engine", "transport", "fusion_mb", "cycle_time_ms"),
        lambda config: config.get("backend") == baseline,
        lambda config: config.get("backend") == candidate,
    )
    return compared.with_primary(study, compared.BACKEND, derived)


def operators(study: Study) -> list[Pair]:
    """Faster operators against pykan itself."""
    derived = compared.matched(
        study,
        ("operator", "symbolic"),
        lambda config: config.get("operator") == "pykan",
        lambda config: config.get("operator") in ("spline", "matrix"),
    )
    return compared.with_primary(study, compared.OPERATOR, derived)


def repeats(study: Study) -> list[Pair]:
    """The plan's A/A pairs; without any, arms that differ in nothing but their name."""
    named = compared.planned(study, "aa")
    if not named:
        groups: dict[tuple, list[str]] = {}
        for arm, rows in study.launches.groupby("arm", sort=True):
            config = compared.first_config(rows)
            if config:
                key = (rows["study"].iloc[0], rows["cell"].iloc[0], max(rows["placement"]), work_key(config))
                groups.setdefault(key, []).append(arm)
        named = [(arms[0], other) for arms in groups.values() for other in arms[1:]]
    return [Pair(*pair, compared.REPEAT) for pair in named]


def others(study: Study) -> list[Pair]:
    """Primary pairs of the plan that fit none of the questions above."""
    return [
        Pair(*pair, compared.OTHER, primary=True)
        for pair in compared.planned(study, "primary")
        if compared.kind_of(study, *pair) in (compared.OTHER, compared.REPEAT)
    ]
