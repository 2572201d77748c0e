"""Work parity: two launches are compared only if they did the same work under the same conditions."""

from __future__ import annotations

from collections.abc import Iterable

from analysis.text import clean, compact

_MISSING = "not recorded"
_MPI = "MPI library"


def settings(record: dict) -> dict[str, object]:
    """What must agree between two compared launches, by the name a refusal uses, in the order it looks."""
    config, environment = record["config"] or {}, record.get("environment") or {}
    return {
        "samples": config.get("samples"),
        "samples seen": _tuple(record.get("samples_seen")),
        "epochs": config.get("epochs"),
        "steps": record.get("steps"),
        "batch per rank": record.get("batch_per_rank"),
        "global batch": record.get("global_batch"),
        "bytes on the wire": record.get("grad_bytes"),
        "fusion": "default" if config.get("fusion_mb") is None else config["fusion_mb"],
        "overlap": config.get("overlap", True),
        "cycle time": "default" if config.get("cycle_time_ms") is None else config["cycle_time_ms"],
        "warm-up steps": config.get("warmup_steps"),
        "probe steps": config.get("probe_steps"),
        "dtype": config.get("dtype"),
        "trainable set": (record.get("parameters") or {}).get("trainable"),
        "optimiser form": _optimiser(record, config),
        "threads": environment.get("threads", config.get("threads")),
        "affinity": affinity(record.get("ranks") or []),
        "task": config.get("task"),
        "data": _short((record.get("data") or {}).get("digest")),
        "noise": config.get("noise"),
        "seed": config.get("seed"),
        "hidden": _tuple(config.get("hidden")),
        "grid": config.get("grid"),
        "spline order": config.get("order"),
        "placement": record.get("placement"),
        "device": (record.get("ranks") or [{}])[0].get("device", config.get("device")),
        # A study that is taken up again may meet another version of anything, or another machine.
        "commit": _short(environment.get("commit")),
        "torch version": environment.get("torch"),
        "CPU model": environment.get("cpu"),
        "spline kernel": environment.get("spline_kernel"),
        _MPI: environment.get("mpi"),
    }


def differences(one: dict[str, object], other: dict[str, object], allowed: Iterable[str] = ()) -> list[str]:
    """Every setting that differs, as ``samples (20,000 against 80,000)``. Empty when the two may be compared."""
    return [
        f"{name} ({_worded(value)} against {_worded(other.get(name))})"
        for name, value in one.items()
        if name not in allowed and value != other.get(name) and not _no_mpi(name, value, other)
    ]


def _no_mpi(name: str, value: object, other: dict[str, object]) -> bool:
    """A back end without MPI has no MPI library that could be another one."""
    return name == _MPI and (value is None or other.get(name) is None)


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


def _optimiser(record: dict, config: dict) -> str:
    rate = config.get("learning_rate")
    return f"{record.get('optimizer') or _MISSING}, learning rate {_MISSING if rate is None else rate}"


def _short(commit: object) -> object:
    """The first digits of a commit, and whether files differed from it."""
    digits, plus, changes = commit.partition("+") if isinstance(commit, str) else (commit, "", "")
    return digits[:12] + plus + changes if isinstance(digits, str) else commit


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
