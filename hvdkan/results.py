"""From what each rank measured to one record: maxima over ranks, a common window, and a failed run's first cause."""

from __future__ import annotations

import secrets
import statistics
import traceback
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hvdkan.config import Config
from hvdkan.probe import Probe, exposed
from hvdkan.record import SCHEMA
from hvdkan.signals import Stopped


@dataclass
class Measured:
    """What one rank saw. Times in seconds; ``window`` is first start and last end of its timed steps, both counted
    from a barrier that all ranks passed, since clocks of different hosts do not agree."""

    step_s: list[float] = field(default_factory=list)
    squared_error: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    window: tuple[float, float] = (0.0, 0.0)
    window_samples: int = 0
    test: tuple[float, int] = (0.0, 0)
    probe: Probe | None = None
    peak_memory_bytes: int = 0
    place: dict[str, Any] = field(default_factory=dict)


def new_run_id() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ-") + secrets.token_hex(4)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def header(config: Config, run_id: str, status: str) -> dict[str, Any]:
    """What every record has, whatever became of the run."""
    labels = {"launch_id": run_id, "study": None, "block": None, "order": None, "cell": "main", "variant": None}
    return {
        "schema": SCHEMA,
        "run_id": run_id,
        **labels,
        "attempt": 1,
        **config.labels(),
        "status": status,
        "error": None,
        "config": {name: value for name, value in config.to_dict().items() if name not in ("label", "dry_run")},
        "requested": {"allreduce": config.allreduce, "engine": config.engine, "transport": config.transport},
        "effective": None,
    }


def failed(config: Config, run_id: str, rank: int, host: str, error: BaseException) -> dict[str, Any]:
    """The record of a run that ended early; ``rank`` on ``host`` is where ``error`` was raised."""
    message = str(error).splitlines()[0] if str(error) else type(error).__name__
    shown = "".join(traceback.format_exception(error))
    cause = {"kind": type(error).__name__, "message": message, "rank": rank, "host": host, "traceback": shown[-8000:]}
    status = "preempted" if isinstance(error, Stopped) and error.preempted else "failed"
    return {**header(config, run_id, status), "finished_at": now(), "error": cause}


def summary(ranks: list[Measured]) -> dict[str, Any]:
    """The measurements of a record. A step takes as long as its slowest rank."""
    found = {
        "step_s": _maxima([rank.step_s for rank in ranks]),
        "epoch_loss": _means([rank.squared_error for rank in ranks], [rank.samples for rank in ranks]),
        "samples_seen": [sum(counts) for counts in zip(*(rank.samples for rank in ranks), strict=True)],
        **window([rank.window for rank in ranks], sum(rank.window_samples for rank in ranks)),
        "test_loss": sum(rank.test[0] for rank in ranks) / sum(rank.test[1] for rank in ranks),
        "test_samples": sum(rank.test[1] for rank in ranks),
        "peak_memory_bytes": max(rank.peak_memory_bytes for rank in ranks),
        "exchange_s": [],
        "wait_s": [],
        "exposed": None,
        "rank_summary": [_rank_summary(number, rank) for number, rank in enumerate(ranks)],
    }
    probes = [rank.probe for rank in ranks if rank.probe is not None]
    if probes:
        found["exchange_s"] = _maxima([one.exchange_s for one in probes])
        found["wait_s"] = _maxima([one.wait_s for one in probes])
        found["exposed"] = exposed(_maxima([one.with_s for one in probes]), _maxima([one.without_s for one in probes]))
    return found


def window(windows: list[tuple[float, float]], samples: int) -> dict[str, float | int]:
    """Throughput over the common window: last end minus first start, so that ranks that start late do not add up."""
    seconds = max(end for _, end in windows) - min(start for start, _ in windows)
    return {"window_s": seconds, "window_samples": samples, "samples_per_s": samples / seconds if seconds > 0 else 0.0}


def _maxima(of_ranks: list[list[float]]) -> list[float]:
    return [max(values) for values in zip(*of_ranks, strict=True)]


def _means(sums: list[list[float]], counts: list[list[int]]) -> list[float]:
    return [sum(one) / sum(n) for one, n in zip(zip(*sums, strict=True), zip(*counts, strict=True), strict=True)]


def _rank_summary(number: int, rank: Measured) -> dict[str, Any]:
    exchange = rank.probe.exchange_s if rank.probe else []
    wait = rank.probe.wait_s if rank.probe else []
    return {
        "rank": number,
        "step_s_median": statistics.median(rank.step_s),
        "step_s_p95": sorted(rank.step_s)[int(0.95 * (len(rank.step_s) - 1))],
        "exchange_s_median": statistics.median(exchange) if exchange else None,
        "wait_s_median": statistics.median(wait) if wait else None,
    }
