"""What a record's keys must hold so that a report can be made of it. A key that is absent or null is no fault."""

from __future__ import annotations

import math

from analysis.text import number, shortened

_OBJECTS = ("exposed", "parameters", "environment", "ranks_per_host")
_LISTS = ("step_s", "exchange_s", "wait_s", "epoch_loss", "samples_seen", "ranks")
_NUMBERS = ("steps", "batch_per_rank", "global_batch", "grad_bytes")
_SETTINGS = ("samples", "batch_size", "global_batch_size")


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
    _must(record.get("parameters") or {}, "trainable", float, "a number", "parameters.")
    for rank in record.get("ranks") or []:
        if not isinstance(rank, dict):
            raise OddRecord(f"ranks holds {_said(rank)}; it must hold objects")
        _must(rank, "rank", float, "a number", "ranks: ")
        _must(rank, "host", str, "a text", "ranks: ")
        _must(rank, "cores", list, "a list", "ranks: ")


def _must(of: dict, key: str, kind: type, wanted: str, where: str = "") -> None:
    value = of.get(key)
    holds = math.isfinite(number(value)) if kind is float else isinstance(value, kind)
    if value is not None and not holds:
        raise OddRecord(f"{where}{key} is {_said(value)}; it must be {wanted}")


def _said(value: object) -> str:
    return shortened(repr(value), 40)
