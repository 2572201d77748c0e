"""What a run trains on: samples on the grid's range, and the way back to the units they came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


class DataError(ValueError):
    """Data that cannot be used; the message is one line that names the file, or the task, and the problem."""


@dataclass(frozen=True)
class Scaling:
    """Between units and what the network sees: ``units = center + scale * seen``, for each input and the target.

    Inputs are seen on [-1, 1], the range of the grid. ``columns`` and ``target`` are names.
    """

    columns: tuple[str, ...]
    centers: tuple[float, ...]
    scales: tuple[float, ...]
    target: str = "y"
    target_center: float = 0.0
    target_scale: float = 1.0

    @classmethod
    def of_ranges(cls, ranges: Mapping[str, tuple[float, float]]) -> Scaling:
        """Each input from its own range to [-1, 1]; the target stays as it is."""
        # Halves first: the sum of two large numbers may be too large.
        centers = tuple(high / 2 + low / 2 for low, high in ranges.values())
        scales = tuple(high / 2 - low / 2 for low, high in ranges.values())
        return cls(tuple(ranges), centers, scales)

    def seen(self, inputs: np.ndarray) -> np.ndarray:
        """Inputs in units, [n, inputs], as the network sees them."""
        return (inputs - np.array(self.centers)) / np.array(self.scales)

    def units(self, seen: np.ndarray) -> np.ndarray:
        """The inverse of :meth:`seen`."""
        return np.array(self.centers) + np.array(self.scales) * seen

    def target_seen(self, targets: np.ndarray) -> np.ndarray:
        return (targets - self.target_center) / self.target_scale

    def target_units(self, seen: np.ndarray) -> np.ndarray:
        """What the network answers, in units of the target."""
        return self.target_center + self.target_scale * seen

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Scaling:
        """The inverse of :meth:`to_dict`. Raises TypeError or ValueError for anything else."""
        lists = {name: tuple(saved[name]) for name in ("columns", "centers", "scales") if name in saved}
        made = cls(**{**saved, **lists})
        if not len(made.columns) == len(made.centers) == len(made.scales):
            raise ValueError("a scaling needs one centre and one scale for each column")
        return made


@dataclass(frozen=True)
class Data:
    """Training and test samples as the network sees them: inputs [n, inputs], targets [n, 1], float64.

    Of a table also the number of its ``rows``, and a ``digest`` of the values that it holds, by which ranks and
    records tell whether theirs are the same; of a formula neither.
    """

    inputs: np.ndarray
    targets: np.ndarray
    test_inputs: np.ndarray
    test_targets: np.ndarray
    scaling: Scaling
    rows: int | None = None
    digest: str | None = None

    def description(self) -> dict[str, Any]:
        """What a record keeps: plain JSON values."""
        return {"digest": self.digest, "rows": self.rows, "scaling": self.scaling.to_dict()}
