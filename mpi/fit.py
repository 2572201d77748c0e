"""Fit the prices of :mod:`mpi.costs` to measured times: ``python -m mpi.fit BENCH.jsonl`` (of ``mpi.bench --json``).

Every other size is held out of the fit and says how far its predictions can be trusted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np

from hvdkan import regular
from mpi.algorithms import Algorithm, AlgorithmError, parse
from mpi.costs import PARTS, parts
from mpi.primitives import PRIMITIVES
from mpi.topology import Topology

#: The longest chain depends on the prices and these on it; it settles in a few turns.
_TURNS = 6
#: Of a file that may be anything.
_MOST_BYTES = 64 * 2**20


class FitError(ValueError):
    """A file of measurements that no prices can be had from; one line."""


@dataclass(frozen=True)
class Row:
    """A measured median time."""

    algorithm: Algorithm
    bytes: int
    seconds: float


@dataclass
class Model:
    """Prices [7] of :data:`mpi.costs.PARTS`, and for each algorithm of the MPI library what stands in for it.

    The library does not say what it sends. One of our schedules stands in for it, with prices of its own for calls and
    messages, which cost less in C, and a factor on all else.
    """

    topology: Topology
    itemsize: int
    prices: np.ndarray
    stand_ins: dict[Algorithm, tuple[Algorithm, np.ndarray]] = field(default_factory=dict)

    def seconds(self, algorithm: Algorithm, size_bytes: int) -> float:
        """The predicted time. Raises KeyError for an algorithm of the library that was not fitted."""
        sent, prices = self.stand_ins[algorithm] if algorithm.calls_mpi else (algorithm, None)
        found = parts(sent, self.topology, size_bytes // self.itemsize, self.itemsize, self.prices)
        return float(found @ self.prices if prices is None else _of_library(found, self.prices) @ prices)


def _of_library(found: np.ndarray, prices: np.ndarray) -> np.ndarray:
    """Parts [3]: calls, messages, and the seconds of all else at the prices of our own messages."""
    return np.array([found[0], found[1], found[2:] @ prices[2:]])


def fit(rows: Sequence[Row], topology: Topology, itemsize: int, links: Sequence[float | None]) -> Model:
    """Prices with the least squares of relative errors, none below 0.

    ``links`` are bytes per second within and between nodes, from which the first guess is made.
    """
    ours = [row for row in rows if not row.algorithm.calls_mpi]
    if not ours:
        raise FitError("no algorithm whose messages are known was measured")
    within, between = (1 / rate if rate else 0.0 for rate in links)
    prices = np.array([1e-6, 1e-6, 1e-6, 1e-6, within, between, within])
    best = None
    for _ in range(_TURNS):
        table = _table(ours, topology, itemsize, prices)
        error = _error(table, prices)
        if best is None or error < best[0]:
            best = (error, prices)
        prices = least_squares(table, np.ones(len(ours)))
    model = Model(topology, itemsize, best[1])
    for algorithm in dict.fromkeys(row.algorithm for row in rows if row.algorithm.calls_mpi):
        model.stand_ins[algorithm] = _stand_in(algorithm, [row for row in rows if row.algorithm == algorithm], model)
    return model


def _table(rows: Sequence[Row], topology: Topology, itemsize: int, prices: np.ndarray) -> np.ndarray:
    """Parts of each row over its measured time: times prices, 1 where the prediction is right."""
    return np.array(
        [parts(row.algorithm, topology, row.bytes // itemsize, itemsize, prices) / row.seconds for row in rows]
    )


def _error(table: np.ndarray, prices: np.ndarray) -> float:
    return float(((table @ prices - 1) ** 2).sum())


def _stand_in(algorithm: Algorithm, rows: Sequence[Row], model: Model) -> tuple[Algorithm, np.ndarray]:
    found = []
    for name in PRIMITIVES:
        chunks = algorithm.chunks
        sent = Algorithm(name) if algorithm.name == "flat" else Algorithm(algorithm.name, name, chunks)
        table = _table(
            [Row(sent, row.bytes, row.seconds) for row in rows], model.topology, model.itemsize, model.prices
        )
        table = np.array([_of_library(line, model.prices) for line in table])
        prices = least_squares(table, np.ones(len(rows)))
        found.append((_error(table, prices), str(sent), sent, prices))
    _, _, sent, prices = min(found, key=lambda one: one[:2])
    return sent, prices


def least_squares(table: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The x >= 0 that brings ``table @ x`` nearest to ``wanted``: the best allowed one of all choices of columns."""
    scale = np.abs(table).max(axis=0)
    scale[scale == 0] = 1
    best, answer = float(wanted @ wanted), np.zeros(table.shape[1])
    for number in range(1, table.shape[1] + 1):
        for columns in map(list, combinations(range(table.shape[1]), number)):
            part = table[:, columns] / scale[columns]
            values = np.linalg.lstsq(part, wanted, rcond=None)[0]
            error = float(((part @ values - wanted) ** 2).sum())
            if (values >= 0).all() and error < best * (1 - 1e-9):
                best, answer = error, np.zeros(table.shape[1])
                answer[columns] = values / scale[columns]
    return answer


# --- from files, and how good it is ---------------------------------------------------------------------------------


def read(path: str | Path) -> tuple[dict, list[Row]]:
    """The run and the world-level rows of a file of ``mpi.bench --json``. Raises FitError."""
    try:
        run, *lines = map(json.loads, regular.read_text(Path(path), _MOST_BYTES).splitlines())
        if run["kind"] != "run" or run["schema"].split(".")[0] != "1":
            raise FitError(f"{path} begins with no run of schema 1")
        rows = [
            Row(parse(line["algorithm"]), line["bytes"], line["median_s"])
            for line in lines
            if line["level"] == "world" and not line["wrong"] and line["algorithm"] != "auto"
        ]
        Topology(tuple(run["nodes"])), run["dtype"], run["within_bytes_per_s"], run["between_bytes_per_s"]
        return run, rows
    except OSError as error:
        raise FitError(f"{path} cannot be read: {error.strerror or error}") from None
    except (AlgorithmError, KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, FitError):
            raise
        raise FitError(f"{path} is no file of mpi.bench --json: {type(error).__name__} {error}") from None


def held_out(rows: Iterable[Row]) -> set[int]:
    """Every other size, never the smallest or the largest: prices are for use between measured sizes."""
    sizes = sorted({row.bytes for row in rows})
    return set(sizes[1:-1:2])


def winners(rows: Sequence[Row], model: Model, least: float = 1.2) -> list[tuple[int, str, str]]:
    """For each size where one kind was ``least`` times faster: bytes, measured and predicted winner.

    The kinds are `flat` and `hierarchical`, each as fast as its fastest algorithm.
    """
    found = []
    for size in sorted({row.bytes for row in rows}):
        here = [row for row in rows if row.bytes == size]
        measured, predicted = ({}, {})
        for row in here:
            kind = "hierarchical" if row.algorithm.hierarchical else "flat"
            measured[kind] = min(measured.get(kind, np.inf), row.seconds)
            predicted[kind] = min(predicted.get(kind, np.inf), model.seconds(row.algorithm, size))
        if len(measured) == 2 and max(measured.values()) > least * min(measured.values()):
            found.append((size, min(measured, key=measured.get), min(predicted, key=predicted.get)))
    return found


def report(path: str | Path) -> str:
    """Prices, the error on sizes held out, and who wins. Raises FitError."""
    run, rows = read(path)
    topology = Topology(tuple(run["nodes"]))
    itemsize = 8 if run["dtype"].endswith("64") else 4
    out = held_out(rows)
    if not out:
        raise FitError(f"{path} has fewer than 3 sizes: none can be held out")
    fitted, tested = [row for row in rows if row.bytes not in out], [row for row in rows if row.bytes in out]
    model = fit(fitted, topology, itemsize, (run["within_bytes_per_s"], run["between_bytes_per_s"]))
    lines = ["price of each, in seconds:"]
    lines += [f"  {name:14} {price:.3g}" for name, price in zip(PARTS, model.prices, strict=True)]
    lines += [
        f"{algorithm} as {sent}: {prices[0]:.3g} a call, {prices[1]:.3g} a message, all else times {prices[2]:.3g}"
        for algorithm, (sent, prices) in model.stand_ins.items()
    ]
    errors = {row: abs(model.seconds(row.algorithm, row.bytes) / row.seconds - 1) for row in tested}
    lines.append(f"error on {len(out)} sizes held out, median: {np.median(list(errors.values())):.1%}")
    for algorithm in dict.fromkeys(row.algorithm for row in tested):
        own = [error for row, error in errors.items() if row.algorithm == algorithm]
        lines.append(f"  {algorithm!s:40} {np.median(own):6.1%}, at most {max(own):.1%}")
    decided = winners(tested, model)
    right = sum(measured == predicted for _, measured, predicted in decided)
    lines.append(
        f"winner right at {right} of {len(decided)} held-out sizes where flat and hierarchical differ by over 20%"
    )
    lines += [f"  {size} B: {one} was faster, {other} was predicted" for size, one, other in decided if one != other]
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        if len(sys.argv) != 2:
            raise FitError("usage: python -m mpi.fit BENCH.jsonl")
        print(report(sys.argv[1]))
    except FitError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
