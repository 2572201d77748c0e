"""What a record's keys must hold so that a report can be made of it. A key that is absent or null is no fault."""

from __future__ import annotations

import math

from analysis.text import number, shortened

_OBJECTS = ("exposed", "parameters", "environment", "ranks_per_host")
_LISTS = ("step_s", "exchange_s", "wait_s", "epoch_loss", "samples_seen", "ranks")
_NUMBERS = ("steps", "batch_per_rank", "global_batch", "grad_bytes")
_SETTINGS = ("samples", "batch_size", "global_batch_size")
_NAMED = ("backend", "operator", "allreduce", "engine", "transport", "task", "dtype", "device")
_COUNTS = ("block", "order", "attempt")
#: Larger is none of this world, and its sums, squares and exponentials are no numbers any more.
MOST, MOST_COUNT, MOST_LOSS = 1e15, 1e9, 1e300
#: Seconds of a step, and samples per second.
TIMES, RATES = (1e-9, 1e9), (1e-6, 1e12)
#: Levels of lists and objects within each other; what is written here has four.
MOST_LEVELS = 20


class OddRecord(ValueError):
    """A record in which a key holds another kind of thing than it must; the message is one line."""


def check(record: dict) -> None:
    """Raises :class:`OddRecord`, naming the key, its value and what it must be."""
    for key in _OBJECTS:
        _must(record, key, dict, "an object")
    for key in _LISTS:
        _must(record, key, list, "a list")
    for key in _NUMBERS:
        _must(record, key, float, "a number")
    for key in _SETTINGS:
        _must(record["config"] or {}, key, float, "a number", "config.")
    for key in _NAMED:
        for where in ("config", "requested", "effective"):
            _must(record[where] or {}, key, str, "a text", f"{where}.")
    _must(record.get("parameters") or {}, "trainable", float, "a number", "parameters.")
    for key in _COUNTS:
        _within(record, key, 0, MOST_COUNT)
    _within(record, "samples_per_s", *RATES)
    _within(record, "peak_memory_bytes", 0, MOST)
    _within(record, "test_loss", 0, MOST_LOSS)
    _within(record.get("parameters") or {}, "all", 0, MOST, "parameters.")
    for key in ("fraction", "with_s", "without_s"):
        _within(record.get("exposed") or {}, key, 0, MOST_COUNT, "exposed.")
    for key in ("config", "requested", "effective", "environment", "error"):
        if _levels(record.get(key)) > MOST_LEVELS:
            raise OddRecord(f"{key} has more than {MOST_LEVELS} levels of lists and objects")
    for rank in record.get("ranks") or []:
        if not isinstance(rank, dict):
            raise OddRecord(f"ranks holds {_said(rank)}; it must hold objects")
        _must(rank, "rank", float, "a number", "ranks: ")
        _must(rank, "host", str, "a text", "ranks: ")
        _must(rank, "cores", list, "a list", "ranks: ")


def _must(of: dict, key: str, kind: type, wanted: str, where: str = "") -> None:
    value = of.get(key)
    holds = abs(number(value)) <= MOST if kind is float else isinstance(value, kind)
    if value is not None and not holds:
        raise OddRecord(f"{where}{key} is {_said(value)}; it must be {wanted}")


def _within(of: dict, key: str, least: float, most: float, where: str = "") -> None:
    """A finite number other than 0 must be of this size, whatever its sign."""
    value = number(of.get(key))
    if math.isfinite(value) and value != 0 and not least <= abs(value) <= most:
        size = f"at most {most:g}" if least == 0 else f"between {least:g} and {most:g}"
        raise OddRecord(f"{where}{key} is {_said(of[key])}; its size must be {size}")


def _levels(value: object, above: int = 0) -> int:
    """How deeply lists and objects lie within each other, counted up to one more than are allowed."""
    if above > MOST_LEVELS or not isinstance(value, dict | list):
        return above
    inner = value.values() if isinstance(value, dict) else value
    return max((_levels(item, above + 1) for item in inner), default=above + 1)


def _said(value: object) -> str:
    return shortened(repr(value), 40)
