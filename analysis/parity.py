"""Work parity: two launches are compared only if they did the same work under the same conditions."""

from __future__ import annotations

from collections.abc import Iterable

from analysis.text import clean, compact

_MISSING = "not recorded"


def settings(record: dict) -> dict[str, object]:
    """What must agree between two compared launches, by the name a refusal uses, in the order it looks."""
    config = record["config"] or {}
    return {
        "samples": config.get("samples"),
        "samples seen": _tuple(record.get("samples_seen")),
        "epochs": config.get("epochs"),
        "steps": record.get("steps"),
        "batch per rank": record.get("batch_per_rank"),
        "global batch": record.get("global_batch"),
        "bytes on the wire": record.get("grad_bytes"),
        "dtype": config.get("dtype"),
        "trainable set": (record.get("parameters") or {}).get("trainable"),
        "optimiser form": _optimiser(config),
        "threads": (record.get("environment") or {}).get("threads", config.get("threads")),
        "affinity": affinity(record.get("ranks") or []),
        "task": config.get("task"),
        "noise": config.get("noise"),
        "seed": config.get("seed"),
        "hidden": _tuple(config.get("hidden")),
        "grid": config.get("grid"),
        "spline order": config.get("order"),
        "placement": record.get("placement"),
        "device": (record.get("ranks") or [{}])[0].get("device", config.get("device")),
    }


def differences(one: dict[str, object], other: dict[str, object], allowed: Iterable[str] = ()) -> list[str]:
    """Every setting that differs, as ``samples (20,000 against 80,000)``. Empty when the two may be compared."""
    return [
        f"{name} ({_worded(value)} against {_worded(other.get(name))})"
        for name, value in one.items()
        if name not in allowed and value != other.get(name)
    ]


def affinity(ranks: list[dict]) -> tuple | None:
    """Which ranks share which cores, with cores renumbered in the order ranks name them, node by node.

    Absolute numbers differ between two equal allocations on shared nodes; one core each and one core for all must not
    look the same.
    """
    if not ranks or any(not isinstance(rank, dict) or rank.get("cores") is None for rank in ranks):
        return None
    seen: dict[object, dict] = {}
    pattern = []
    for rank in sorted(ranks, key=lambda rank: rank.get("rank", 0)):
        names = seen.setdefault(rank.get("host"), {})
        pattern.append(tuple(names.setdefault(core, len(names)) for core in rank["cores"]))
    return tuple(pattern)


def _optimiser(config: dict) -> tuple:
    names = ("optimizer", "optimiser", "learning_rate", "fused", "clip")
    return tuple((name, config[name]) for name in names if name in config)


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _worded(value: object) -> str:
    if value is None:
        return _MISSING
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, tuple):
        return compact([_plain(item) for item in value], 80) or "none"
    return clean(value)


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return " ".join(str(item) for item in value)
    return f"{value:,}" if isinstance(value, int) else value
