"""Tables from ``.csv``, ``.npz`` and ``.parquet`` files: names of columns, and their values as float64.

A reader gets a path and ``choose``, which takes the names of all columns and returns the numbers of those wanted, so
that what is not wanted is neither checked nor kept. It raises :class:`DataError` without the file's name.
"""

from __future__ import annotations

import csv
import math
import stat
import zipfile
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hvdkan.files import kind
from hvdkan.tasks.data import DataError

#: More do not fit beside each other on a node: each rank holds all of them, in 8 bytes each.
MOST_VALUES = 100_000_000
#: Beyond it a sum of squares overflows.
LARGEST = 1e150
#: Characters; a longer one is no table but another kind of file.
_LONGEST_LINE = 1_000_000
_MISSING = ("", "na", "n/a", "nan", "null", "none", "?", "-")
LEAVE_OUT = "leave them out (--inputs names the columns to use)"
_SHOWN = 3

Choose = Callable[[list[str]], list[int]]


def read(name: str, choose: Choose) -> np.ndarray:
    """The chosen columns of the file ``name``, [rows, columns]. Raises DataError, naming file and problem."""
    reader = READERS.get(Path(name).suffix.lower())
    try:
        if reader is None:
            raise DataError(f"its name must end in {', '.join(READERS)}")
        mode = Path(name).stat().st_mode
        if not stat.S_ISREG(mode):
            # Before it is opened: a FIFO would wait for its writer.
            raise DataError(f"it is {kind(mode)}; it must be a file")
        return _checked(*reader(name, choose))
    except OSError as error:
        raise DataError(f"{name}: {error.strerror or error}") from error
    except MemoryError as error:
        raise DataError(f"{name}: it does not fit into memory") from error
    except DataError as error:
        raise DataError(f"{name}: {error}") from error


def read_csv(name: str, choose: Choose) -> tuple[list[str], np.ndarray]:
    """Text in UTF-8 with commas between the columns and a first line of their names; empty lines are passed over."""
    with Path(name).open("rb") as stream:
        rows = csv.reader(_lines(stream), strict=True)
        try:
            header = next((row for row in rows if row), None)
            if header is None:
                raise DataError("it is empty")
            names = [column.strip() for column in header]
            kept = choose(names)
            return [names[number] for number in kept], _numbers(rows, names, kept)
        except csv.Error as error:
            raise DataError(f"line {rows.line_num}: {error}") from error


def _lines(stream: BinaryIO) -> Iterator[str]:
    number = 0
    while line := stream.readline(_LONGEST_LINE + 1):
        number += 1
        if len(line) > _LONGEST_LINE:
            raise DataError(f"line {number} has more than {_LONGEST_LINE:,} characters")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"line {number} is not UTF-8 text; save the file as UTF-8") from error


def _numbers(rows: Iterator[list[str]], names: list[str], kept: list[int]) -> np.ndarray:
    """The chosen cells of all rows; a missing one is NaN. Raises DataError naming the columns that hold text."""
    values, words, count = array("d"), {}, 0
    for row in rows:
        if not row:
            continue
        count += 1
        if len(row) != len(names):
            raise DataError(f"row {count} has {len(row)} values, and the header {len(names)}")
        if count * len(kept) > MOST_VALUES:
            raise DataError(_too_large(f"{count:,} rows or more", len(kept)))
        texts = [row[number] for number in kept]
        try:
            values.extend(_floats(texts))
        except ValueError:
            for number, text in zip(kept, texts, strict=True):
                if text.strip().lower() in _MISSING:
                    values.append(math.nan)
                    continue
                try:
                    values.extend(_floats([text]))
                except ValueError:
                    words.setdefault(names[number], (count, text))
                    values.append(math.nan)
    if words:
        raise DataError(f"no numbers in {_named(words)}; {LEAVE_OUT}")
    return np.array(values).reshape(count, len(kept))


def _floats(texts: list[str]) -> list[float]:
    # Python's own notation 1_000 would be taken for a number.
    if "_" in ",".join(texts):
        raise ValueError
    return list(map(float, texts))


def read_npz(name: str, choose: Choose) -> tuple[list[str], np.ndarray]:
    """Arrays of numpy.savez: one dimension is a column of its name, two are the columns ``name[0]``, ``name[1]``..."""
    try:
        with zipfile.ZipFile(name) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > 8 * MOST_VALUES:
            raise DataError(f"its arrays have {size:,} bytes; at most {8 * MOST_VALUES:,} can be used")
        # Never pickles: they could run anything.
        with np.load(name, allow_pickle=False) as arrays:
            columns = _columns_of([(member, arrays[member]) for member in arrays.files])
    except (DataError, OSError, MemoryError):
        raise
    except Exception as error:  # what a damaged archive can raise is nowhere listed
        raise DataError(f"no arrays of numbers can be read from it: {_line(error)}") from error
    names = [column for column, _ in columns]
    kept = choose(names)
    return [names[number] for number in kept], np.stack([columns[number][1] for number in kept], axis=1)


def _columns_of(arrays: list[tuple[str, np.ndarray]]) -> list[tuple[str, np.ndarray]]:
    columns: list[tuple[str, np.ndarray]] = []
    size = sum(np.size(values) for _, values in arrays)
    if size > MOST_VALUES:
        raise DataError(f"{size:,} values are too many; at most {MOST_VALUES:,} can be used")
    for name, values in arrays:
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "iufb":
            kind = values.dtype if isinstance(values, np.ndarray) else "no array"
            raise DataError(f"{shown(name)} is {kind}; it must hold numbers")
        if values.ndim not in (1, 2):
            raise DataError(f"{shown(name)} has the shape {values.shape}; it must be [rows] or [rows, columns]")
        if len(values) != len(arrays[0][1]):
            first, other = arrays[0]
            raise DataError(f"{shown(first)} has {len(other)} rows and {shown(name)} {len(values)}")
        if values.ndim == 1:
            columns.append((name, values.astype(np.float64)))
        else:
            columns += [(f"{name}[{number}]", column.astype(np.float64)) for number, column in enumerate(values.T)]
    return columns


def read_parquet(name: str, choose: Choose) -> tuple[list[str], np.ndarray]:
    """Columns of integers, floats or truth values."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError("pyarrow reads .parquet files and is not installed; pip install pyarrow") from error
    try:
        with parquet.ParquetFile(name) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
            kept = choose(list(schema.names))
            names = [schema.names[number] for number in kept]
            if rows * len(kept) > MOST_VALUES:
                raise DataError(_too_large(f"{rows:,} rows", len(kept)))
            types = {name: schema.types[number] for name, number in zip(names, kept, strict=True)}
            words = [f"{shown(name)} ({of})" for name, of in types.items() if not _is_number(pyarrow.types, of)]
            if words:
                raise DataError(f"no numbers in {', '.join(words[:_SHOWN])}; {LEAVE_OUT}")
            table = file.read(columns=names)
            # Missing values become NaN, which is refused with the column's name.
            columns = [table.column(column).cast(pyarrow.float64(), safe=False).to_numpy() for column in names]
    except (DataError, OSError, MemoryError):
        raise
    except Exception as error:  # pyarrow's own errors derive from several of Python's
        raise DataError(f"no table can be read from it: {_line(error)}") from error
    return names, np.stack(columns, axis=1)


def _is_number(types: Any, of: Any) -> bool:
    return types.is_integer(of) or types.is_floating(of) or types.is_boolean(of)


READERS = {".csv": read_csv, ".npz": read_npz, ".parquet": read_parquet}


def _checked(names: list[str], values: np.ndarray) -> np.ndarray:
    bad = {}
    for number, name in enumerate(names):
        column = values[:, number]
        rows = np.flatnonzero(~(np.abs(column) <= LARGEST))
        if len(rows):
            value = column[rows[0]]
            bad[name] = (int(rows[0]) + 1, "missing" if math.isnan(value) else str(value))
    if bad:
        raise DataError(f"values missing, infinite or beyond {LARGEST:g} in {_named(bad)}; fill them or drop the rows")
    return values


def _named(found: dict[str, tuple[int, str]]) -> str:
    """``'a' (row 3: 'x'), 'b' ...``, the first few; rows are counted from 1 below the header."""
    named = [f"{shown(name)} (row {row}: {shown(text)})" for name, (row, text) in found.items()]
    more = f" and {len(named) - _SHOWN} more columns" if len(named) > _SHOWN else ""
    return ", ".join(named[:_SHOWN]) + more


def _too_large(rows: str, columns: int) -> str:
    return f"{rows} of {columns:,} columns are too many; at most {MOST_VALUES:,} values can be used"


def _line(error: Exception) -> str:
    """What a library says, on one line; it may quote pages of a damaged file."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    return text if len(text) <= 120 else text[:117] + "..."


def shown(text: str) -> str:
    """A text from a file, quoted, on one line and not too long."""
    return repr(text if len(text) <= 40 else text[:37] + "...")
