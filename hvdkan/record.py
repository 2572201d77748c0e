"""The run record: one JSON object per measured cell, written by one rank, read by ``analysis``.

Standard library only, so that a report can be made where nothing that trains is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import gzip
import itertools
import json
import lzma
import math
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hvdkan import regular
from hvdkan.files import replacing

SCHEMA = "1.0"
STATUSES = ("ok", "failed", "preempted")
#: The files a reader looks for below a directory.
PATTERNS = ("*.jsonl", "*.jsonl.gz", "*.jsonl.xz")
#: A longer line is none of ours: a small archive may hold gigabytes without one end of line.
MOST_BYTES = 64 * 2**20
#: A file with more lines that hold no record (blank ones included) is given up.
MOST_IDLE = 1000

#: What a reader may rely on in every record, whatever its status.
KEYS = (
    "schema", "run_id", "launch_id", "study", "block", "order", "cell", "variant", "attempt",
    "status", "error", "config", "requested", "effective",
)  # fmt: skip

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class SchemaError(ValueError):
    """A record was written by another major version of the schema."""


@dataclass
class Reading:
    """Records found below a path, and what could not be read: ``(file, line number, reason)``."""

    records: list[dict] = field(default_factory=list)
    damaged: list[tuple[str, int, str]] = field(default_factory=list)


def encode(record: dict) -> bytes:
    """One line of UTF-8 JSON with a newline. Non-finite floats become the strings NaN, Infinity, -Infinity.

    A lone surrogate (an undecodable byte of a file name in an error message) is kept as its JSON escape.
    """
    text = json.dumps(_finite(record), ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "backslashreplace")


def decode(line: bytes) -> dict:
    """The inverse of :func:`encode`. Raises ``ValueError`` for anything but one JSON object."""
    record = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    return _restored(record)


def write(path: Path, records: list[dict]) -> None:
    """Write a launch's records to a file of its own, complete or not at all.

    Appending from several nodes tears lines on NFS and Lustre; a rename within a directory does not.
    """
    with replacing(path) as file:
        file.write(b"".join(encode(record) for record in records))


def append(path: Path, record: dict) -> None:
    """Append one record with a single write; an unterminated last line is ended first, its bytes kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+", buffering=0) as file:
        line = encode(record)
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = b"\n" + line
        written = file.write(line)
        if written != len(line):
            raise OSError(f"{path}: only {written} of {len(line)} bytes were written")


def append_first(path: Path, record: dict) -> bool:
    """Append the record of a failure unless the end of the file already has one of the same ``run_id``.

    Several ranks may fail at once; the first tells the cause. Returns whether it was written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+", buffering=0) as stream:
        with contextlib.suppress(OSError):  # a file system without locks: two records at worst
            fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - 65536))
        if json.dumps(record["run_id"]).encode() in stream.read():
            return False
        append(path, record)
    return True


def read(path: Path) -> Reading:
    """Read one ``.jsonl`` file (also ``.gz`` or ``.xz``), or every such file below a directory, in name order.

    Damaged lines are reported, not raised. A record of another major schema raises :class:`SchemaError`.
    """
    reading = Reading()
    reading.records.extend(record for _, _, record in stream(path, reading.damaged))
    return reading


def stream(path: Path, damaged: list[tuple[str, int, str]]) -> Iterator[tuple[str, int, dict]]:
    """The records of :func:`read` one by one with file and line, for readers that keep only a summary of each.

    What cannot be read is added to ``damaged`` as ``(file, line number, reason)``; line 0 is the file as a whole.
    """
    for file in _files(path, damaged):
        idle = 0
        for number, line in _lines(file, damaged):
            record, fault = _read(line, file, number)
            if record is not None:
                yield str(file), number, record
                continue
            idle += 1
            if idle > MOST_IDLE:
                damaged.append((str(file), number, f"more than {MOST_IDLE:,} lines without a record: {_REST}"))
                break
            if fault:
                damaged.append((str(file), number, fault))


_REST = "from here on it was not read"


def _read(line: bytes, file: Path, number: int) -> tuple[dict | None, str]:
    """The record of a line, or why it has none, empty for a blank one. Raises :class:`SchemaError`."""
    if not line.strip():
        return None, ""
    try:
        record = decode(line)
    except (ValueError, RecursionError) as error:
        return None, _reason(error)
    except MemoryError:
        return None, "does not fit in memory"
    if "schema" in record:
        _check_schema(record["schema"], file, number)
    fault = _fault(record)
    return (None, fault) if fault else (record, "")


def _fault(record: dict) -> str:
    missing = [key for key in KEYS if key not in record]
    if missing:
        return f"no key {', '.join(missing)}"
    for key in ("config", "requested", "effective"):
        # A launch that failed before it resolved them has none.
        if record[key] is not None and not isinstance(record[key], dict):
            return f"{key} is not an object"
    return ""


def _check_schema(schema: object, file: Path, number: int) -> None:
    if str(schema).split(".")[0] != SCHEMA.split(".")[0]:
        raise SchemaError(
            f"{file}, line {number}: schema {schema!r} cannot be read by this version, which reads {SCHEMA}"
        )


def _files(path: Path, damaged: list[tuple[str, int, str]]) -> list[Path]:
    if not path.is_dir():
        return [path]

    def refused(error: OSError) -> None:
        damaged.append((str(error.filename), 0, str(error.strerror)))

    # Path.rglob would pass over a directory that may not be read.
    names = [Path(place, name) for place, _, found in os.walk(path, onerror=refused) for name in found]
    return sorted(file for file in names if any(fnmatch.fnmatchcase(file.name, pattern) for pattern in PATTERNS))


def _lines(file: Path, damaged: list[tuple[str, int, str]]) -> Iterator[tuple[int, bytes]]:
    """Numbered lines, none of them longer than :data:`MOST_BYTES`, up to the first fault."""
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(file.suffix, open)
    try:
        regular.check(file)
        with opener(file, "rb") as lines:
            for number in itertools.count(1):
                line = lines.readline(MOST_BYTES + 1)
                if not line:
                    return
                if len(line) > MOST_BYTES:
                    damaged.append((str(file), number, f"a line of more than {MOST_BYTES // 2**20} MiB: {_REST}"))
                    return
                yield number, line
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        damaged.append((str(file), 0, f"damaged archive: {error}"))
    except (OSError, regular.NotReadable) as error:
        damaged.append((str(file), 0, str(getattr(error, "strerror", None) or error)))


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"cut inside a character (byte {error.start})"
    return str(error)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"bare {name}")


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


#: Where numbers live: only there may the three strings stand for numbers (a host may be called "NaN").
_NUMERIC = frozenset({
    "step_s", "exchange_s", "wait_s", "epoch_loss", "test_loss", "test_rmse", "exposed", "samples_per_s",
    "rank_summary",
})  # fmt: skip

_PLAIN = frozenset({float, int})


def _restored(record: dict) -> dict:
    return {key: _numbers(value) if key in _NUMERIC else value for key, value in record.items()}


def _numbers(value: object) -> object:
    if isinstance(value, str):
        return _NON_FINITE.get(value, value)
    if isinstance(value, list):
        # Thousands of steps a record: look before building a new list.
        return value if _PLAIN.issuperset(map(type, value)) else [_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    return value
