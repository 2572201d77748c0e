"""The command line of :mod:`mpi.bench`, read without MPI."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from mpi.elements import SUMMED_IN

LEVELS = ("world", "local", "cross")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


class UsageError(ValueError):
    """An argument that cannot be used; one line that names the value and the valid choices."""


@dataclass(frozen=True)
class Options:
    begin: int
    end: int
    factor: int
    algorithms: str
    dtype: str
    levels: tuple[str, ...]
    iterations: int
    warmup: int
    simulate_nodes: tuple[int, ...] | None
    table: Path | None
    json: Path | None
    tune: Path | None
    figure: Path | None

    def counts(self, itemsize: int) -> list[int]:
        """Elements of each size, ascending, each once."""
        counts, size = {}, self.begin
        while size <= self.end:
            counts[size // itemsize] = None
            size *= self.factor
        return list(counts)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parser() -> argparse.ArgumentParser:
    made = _Parser(
        prog="python -m mpi.bench",
        description="Latency and bus bandwidth of all-reduce by size, algorithm and level; every result is checked.",
        epilog="mpirun -n 8 python -m mpi.bench -b 8 -e 16M -f 2 --algorithms all --simulate-nodes 4,4",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = made.add_argument
    add("-b", "--begin", default="8", metavar="SIZE", help="smallest size in bytes, such as 8, 64K or 16M")
    add("-e", "--end", default="16M", metavar="SIZE", help="largest size")
    add("-f", "--factor", default="2", metavar="N", help="from one size to the next")
    add("--algorithms", default="all", metavar="LIST", help="all, or names such as flat,two_level(cross=ring,chunks=4)")
    add("--dtype", default="float32", help=f"one of {', '.join(SUMMED_IN)}")
    add(
        "--levels",
        default="world",
        metavar="LIST",
        help="world: all ranks; local: each node by itself; cross: the ranks with the same place on all nodes",
    )
    add("--iterations", default="20", metavar="N", help="timed, for each size and algorithm")
    add("--warmup", default="5", metavar="N", help="before them, not timed")
    add("--simulate-nodes", metavar="SIZES", help="ranks on each pretended node, such as 4,4")
    add("--table", metavar="FILE", help="what auto chooses by; without it a small table is measured first")
    add("--tune", metavar="FILE", help="put the fastest algorithm of each size in this table")
    add("--json", metavar="FILE", help="one JSON object a line: the run, then each size and algorithm")
    add("--figure", metavar="FILE", help="time against size, one line an algorithm, with the links' bound (.svg, .png)")
    return made


def read_options(arguments: list[str]) -> Options:
    """Options of a command line. Raises UsageError; leaves with status 0 for ``--help``."""
    given = parser().parse_args(arguments)
    if given.dtype not in SUMMED_IN:
        raise UsageError(f"--dtype is {given.dtype!r}; it must be one of {', '.join(SUMMED_IN)}")
    if given.tune and SUMMED_IN[given.dtype].itemsize != itemsize(given.dtype):
        raise UsageError(f"--tune with --dtype {given.dtype}: it is summed in float32, so tune that")
    levels = tuple(dict.fromkeys(level.strip() for level in given.levels.split(",")))
    for level in levels:
        if level not in LEVELS:
            raise UsageError(f"--levels has {level!r}; it must be one of {', '.join(LEVELS)}")
    if given.tune and "world" not in levels:
        raise UsageError("--tune needs --levels world")
    begin, end = _size("--begin", given.begin), _size("--end", given.end)
    if begin < itemsize(given.dtype) or end < begin:
        raise UsageError(
            f"--begin is {given.begin} and --end {given.end}; sizes must begin with at least one {given.dtype} "
            f"({itemsize(given.dtype)} bytes) and not end below"
        )
    paths = {name: Path(value) if (value := getattr(given, name)) else None for name in ("table", "json", "tune")}
    figure = Path(given.figure) if given.figure else None
    if figure and figure.suffix not in (".svg", ".png", ".pdf"):
        raise UsageError(f"--figure is {given.figure!r}; its name must end with .svg, .png or .pdf")
    return Options(
        begin,
        end,
        _whole("--factor", given.factor, 2),
        given.algorithms,
        given.dtype,
        levels,
        _whole("--iterations", given.iterations, 1),
        _whole("--warmup", given.warmup, 0),
        tuple(_whole("--simulate-nodes", part, 1) for part in given.simulate_nodes.split(","))
        if given.simulate_nodes
        else None,
        figure=figure,
        **paths,
    )


def itemsize(dtype: str) -> int:
    """Bytes of an element of the buffers, not of what it is summed in."""
    return 2 if dtype.endswith("float16") else SUMMED_IN[dtype].itemsize


def _size(name: str, text: str) -> int:
    match = re.fullmatch(r"(\d{1,12})([KMG]?)i?B?", text, re.IGNORECASE)
    if match is None:
        raise UsageError(f"{name} is {text!r}; it must be a size such as 8, 64K, 16M or 1G")
    return int(match[1]) * _UNITS[match[2].upper()]


def _whole(name: str, text: str, least: int) -> int:
    if not re.fullmatch(r"\d{1,9}", text.strip()) or int(text) < least:
        raise UsageError(f"{name} is {text!r}; it must be a whole number of at least {least}")
    return int(text)
