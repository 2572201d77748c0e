"""What a record tells of the machine that its load was measured on."""

from __future__ import annotations

import math

from analysis.text import number

#: No machine has a larger load average than that.
_MOST_LOAD = 1e6


def load(environment: dict, key: str) -> float:
    """The load average of the last minute, NaN where none is recorded."""
    values = environment.get(key)
    value = number(values[0]) if isinstance(values, list) and values else math.nan
    return value if 0 <= value <= _MOST_LOAD else math.nan


def size(record: dict, threads: object) -> tuple[int, float]:
    """Cores of the machine whose load is recorded, rank 0's, and threads that the launch itself keeps busy on it.

    Emulated nodes share one machine and one load.
    """
    ranks = record.get("ranks") or []
    host = ranks[0].get("host") if ranks else None
    here = [rank for rank in ranks if rank.get("host") == host or record.get("emulated") is True]
    cores = {core for rank in here for core in rank.get("cores") or []}
    default = number(threads) if number(threads) >= 1 else 1.0
    busy = (number(rank.get("threads")) for rank in here)
    return len(cores), sum(one if one >= 1 else default for one in busy)
