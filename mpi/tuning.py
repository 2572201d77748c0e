"""The table by which `auto` chooses: for each shape of nodes, which algorithm was fastest at which size."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from hvdkan import regular
from mpi.algorithms import Algorithm, AlgorithmError, every, parse
from mpi.topology import Topology

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpi.measuring import Timing

SCHEMA = "1"
#: A newcomer must be this much faster than what is chosen at the next smaller size: less is noise.
_MARGIN = 1.03
#: Of a file that may be anything.
_MOST_BYTES = 4 * 2**20
#: Bytes tried when there is no file, and the seconds after which larger ones are left out.
_STARTING_SIZES = (256, 4096, 65536, 2**20, 4 * 2**20)
_STARTING_SECONDS = 3.0


class TableError(ValueError):
    """A file that holds no table for these ranks; one line."""


class Table:
    """Algorithms by size in bytes, for one shape of nodes."""

    def __init__(self, rows: dict[int, Algorithm]):
        if not rows:
            raise TableError("a table without rows")
        self.rows = dict(sorted(rows.items()))

    def choose(self, size_bytes: int) -> Algorithm:
        """The algorithm of the measured size that is nearest by ratio."""
        return self.rows[min(self.rows, key=lambda row: abs(math.log(row / max(size_bytes, 1))))]

    @classmethod
    def fastest(cls, timings: Iterable[Timing]) -> Table:
        """From measured times of several algorithms; those with a wrong result are left out."""
        by_size: dict[int, dict[Algorithm, float]] = {}
        for timing in timings:
            if timing.bytes and not timing.wrong and timing.algorithm != "auto":
                by_size.setdefault(timing.bytes, {})[parse(timing.algorithm)] = timing.median_s
        rows, last = {}, None
        for size, medians in sorted(by_size.items()):
            best = min(medians, key=medians.get)
            stays = last in medians and medians[last] <= _MARGIN * medians[best]
            rows[size] = last = last if stays else best
        return cls(rows)


def shape(topology: Topology) -> str:
    """Such as ``2,2,1``: what a table is valid for. Which ranks are where does not matter."""
    return ",".join(map(str, sorted(map(len, topology.members), reverse=True)))


def measured(comm: MPI.Comm, topology: Topology) -> Table:
    """A small table, measured now in a few seconds. Collective; the same on all ranks."""
    from mpi.measuring import Bench

    timings, begin = [], time.perf_counter()
    with Bench(comm, comm, topology, every(topology)) as bench:
        for size in _STARTING_SIZES:
            timings += bench.measure(size // 4, "float32", iterations=5, warmup=1)
            if comm.bcast(time.perf_counter() - begin) > _STARTING_SECONDS / 4:
                break  # the next size takes several times as long
    return Table.fastest(timings)


def read(comm: MPI.Comm, path: str | os.PathLike, topology: Topology) -> Table:
    """The table for these nodes, read by rank 0. Collective. Raises TableError, the same on all ranks."""
    answer = None
    if comm.rank == 0:
        try:
            answer = table_for(topology, load(path), path).rows
        except TableError as error:
            answer = str(error)
    answer = comm.bcast(answer)
    if isinstance(answer, str):
        raise TableError(answer)
    return Table(answer)


def table_for(topology: Topology, tables: dict[str, Table], path: str | os.PathLike) -> Table:
    wanted = shape(topology)
    if wanted not in tables:
        raise TableError(f"{path} has no table for nodes of {wanted} ranks; it has {'; '.join(sorted(tables))}")
    return tables[wanted]


def load(path: str | os.PathLike) -> dict[str, Table]:
    """All tables of a file by their shape. Raises TableError."""
    try:
        found = json.loads(regular.read_text(Path(path), _MOST_BYTES))
        if found["schema"] != SCHEMA:
            raise TableError(f"{path} is a table of schema {found['schema']!r}; this reads {SCHEMA!r}")
        tables = {}
        for key, rows in found["tables"].items():
            if not all(isinstance(row["bytes"], int) and row["bytes"] > 0 for row in rows):
                raise ValueError("bytes that are no whole number above 0")
            tables[key] = Table({row["bytes"]: _chosen(row["algorithm"]) for row in rows})
        return tables
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise TableError(f"{path} is no table of all-reduces: nested too deeply") from None
    except TableError as error:
        raise error if str(path) in str(error) else TableError(f"{path} is no table of all-reduces: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = " ".join(f"{type(error).__name__} {error}".split())
        raise TableError(f"{path} is no table of all-reduces: {what}") from None


def _chosen(name: str) -> Algorithm:
    algorithm = parse(name)
    if algorithm.name == "auto":
        raise AlgorithmError("auto cannot choose itself")
    return algorithm


def save(path: str | os.PathLike, topology: Topology, timings: Iterable[Timing]) -> Table:
    """Put the table of these timings in a file, beside those of other shapes. Raises TableError, OSError."""
    path, timings = Path(path), list(timings)
    table = Table.fastest(timings)
    tables = load(path) if path.exists() else {}
    medians = {(timing.bytes, timing.algorithm): timing.median_s for timing in timings}
    shown = {
        key: [{"bytes": size, "algorithm": str(algorithm)} for size, algorithm in one.rows.items()]
        for key, one in {**tables, shape(topology): table}.items()
    }
    for row in shown[shape(topology)]:
        row["median_s"] = medians.get((row["bytes"], row["algorithm"]))
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps({"schema": SCHEMA, "tables": shown}, indent=1) + "\n")
    partial.replace(path)
    return table
