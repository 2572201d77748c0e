"""Measured data in rows and columns: one column to predict from others, one split and one scaling for all ranks."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hvdkan.tasks.data import Data, DataError, Scaling
from hvdkan.tasks.readers import LEAVE_OUT, read, shown

#: Of every so many rows one is for the test, unless the user says how many.
TEST_SHARE = 5
_SHOWN = 8


@dataclass(frozen=True)
class Table:
    """``values`` [rows, columns], float64, none beyond ``readers.LARGEST``; ``columns`` names them, the target last.

    ``source`` is what messages call it.
    """

    source: str
    columns: tuple[str, ...]
    values: np.ndarray

    def digest(self) -> str:
        """Equal for two tables exactly where names, order and all values are."""
        found = hashlib.sha256(json.dumps([self.columns, self.values.shape]).encode())
        found.update(np.ascontiguousarray(self.values, dtype="<f8"))
        return found.hexdigest()


def from_file(name: str, target: str, inputs: Sequence[str] | None) -> Table:
    """Column ``target`` and the columns ``inputs`` (None: all others). Raises DataError, naming file and problem."""
    chosen: list[str] = []

    def choose(columns: list[str]) -> list[int]:
        wanted = _wanted(columns, target, inputs)
        chosen.extend(wanted)
        return [columns.index(column) for column in wanted]

    values = read(name, choose)
    return Table(name, tuple(chosen), values)


def _wanted(columns: list[str], target: str, inputs: Sequence[str] | None) -> list[str]:
    for number, column in enumerate(columns, start=1):
        if not column:
            raise DataError(f"column {number} has no name")
    twice = sorted({one for one, other in pairwise(sorted(columns)) if one == other})
    if twice:
        raise DataError(f"columns that are there twice: {_listed(twice)}")
    for flag, names in (("--target", (target,)), ("--inputs", inputs or ())):
        for column in names:
            if column not in columns:
                hint = "; are its columns separated by ';'?" if len(columns) == 1 and ";" in columns[0] else ""
                raise DataError(f"{flag} {shown(column)} is no column; the columns are {_listed(columns)}{hint}")
    wanted = [column for column in columns if column != target] if inputs is None else list(inputs)
    if not wanted:
        raise DataError(f"no column beside the target {shown(target)}")
    return [*wanted, target]


def divided(table: Table, samples: int | None, test_samples: int | None, seed: int) -> Data:
    """Rows for the test and for training, drawn by ``seed``; scaled by what the training rows alone tell.

    ``test_samples`` None is a fifth of the rows, ``samples`` None all others. Inputs go to [-1, 1], so that the test's
    may lie outside; the target to mean 0 and standard deviation 1. Raises DataError.
    """
    source, rows = table.source, len(table.values)
    if rows < 3:
        raise DataError(f"{source}: {rows} rows; at least 3 are needed")
    tested = test_samples or max(1, round(rows / TEST_SHARE))
    if tested > rows - 2:
        raise DataError(f"{source}: --test-samples is {tested}; of {rows} rows at least 2 must be left to train on")
    trained = rows - tested if samples is None else samples
    if trained > rows - tested:
        raise DataError(
            f"{source}: --samples is {trained}; of {rows} rows {rows - tested} are left beside {tested} for the test"
        )
    # A stream of its own: that of the seed itself orders the batches of the first epoch.
    order = np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0]).permutation(rows)
    # The test's first: more or fewer training samples must not change the test set.
    test, train = table.values[order[:tested]], table.values[order[tested : tested + trained]]
    scaling = _scaling(table, train)
    return Data(
        scaling.seen(train[:, :-1]),
        scaling.target_seen(train[:, -1:]),
        scaling.seen(test[:, :-1]),
        scaling.target_seen(test[:, -1:]),
        scaling,
        rows=rows,
        digest=table.digest(),
    )


def _scaling(table: Table, train: np.ndarray) -> Scaling:
    low, high = train.min(axis=0), train.max(axis=0)
    constant = [column for column, same in zip(table.columns, low == high, strict=True) if same]
    if constant:
        raise DataError(f"{table.source}: constant in the {len(train)} training rows: {_listed(constant)}; {LEAVE_OUT}")
    ranges = dict(zip(table.columns[:-1], zip(low[:-1].tolist(), high[:-1].tolist(), strict=True), strict=True))
    center, scale = _moments(train[:, -1])
    scaling = replace(Scaling.of_ranges(ranges), target=table.columns[-1], target_center=center, target_scale=scale)
    scales = (*scaling.scales, scale)
    vanishing = [column for column, one in zip(table.columns, scales, strict=True) if one == 0]
    if vanishing:
        raise DataError(f"{table.source}: values too close to each other to scale in {_listed(vanishing)}")
    return scaling


def _moments(values: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation, summed exactly: the same bits on nodes whose processors sum in another order."""
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((values - mean) ** 2) / len(values))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(shown, names[:_SHOWN])) + more
