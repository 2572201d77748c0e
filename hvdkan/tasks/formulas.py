"""Functions of known form: inputs are drawn uniformly from each variable's range, so that all ranks make the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from hvdkan.tasks.data import Data, Scaling


@dataclass(frozen=True)
class Formula:
    """``of`` takes one array [n] for each variable in ``ranges``, in that order and on that range, and returns [n]."""

    ranges: Mapping[str, tuple[float, float]]
    of: Callable[..., np.ndarray]

    @property
    def inputs(self) -> int:
        return len(self.ranges)

    @property
    def scaling(self) -> Scaling:
        return Scaling.of_ranges(self.ranges)

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """The values [n] at ``points`` [n, inputs], in the variables' own units."""
        return self.of(*points.T)


def sampled(formula: Formula, samples: int, test_samples: int, noise: float, seed: int) -> Data:
    """``samples`` for training, ``test_samples`` without noise for the test.

    ``noise`` is the standard deviation of what is added to training targets, in their units.
    """
    # Independent streams: more training samples must not change the test set.
    train, test, noises = (np.random.default_rng(stream) for stream in np.random.SeedSequence(seed).spawn(3))
    scaling = formula.scaling
    inputs = train.uniform(-1.0, 1.0, (samples, formula.inputs))
    test_inputs = test.uniform(-1.0, 1.0, (test_samples, formula.inputs))
    targets = formula(scaling.units(inputs)) + noise * noises.standard_normal(samples)
    return Data(inputs, targets[:, None], test_inputs, formula(scaling.units(test_inputs))[:, None], scaling)


_UNIT = (-1.0, 1.0)
TOYS = {
    # The paper's.
    "squares": Formula({"x": _UNIT, "y": _UNIT}, lambda x, y: x**2 + y**2),
    # The example of pykan's documentation.
    "exp_sin": Formula({"x": _UNIT, "y": _UNIT}, lambda x, y: np.exp(np.sin(np.pi * x) + y**2)),
    # Four inputs, for wider first layers; also from pykan's documentation.
    "exp_sin_4d": Formula(
        {"x1": _UNIT, "x2": _UNIT, "x3": _UNIT, "x4": _UNIT},
        lambda x1, x2, x3, x4: np.exp((np.sin(np.pi * (x1**2 + x2**2)) + np.sin(np.pi * (x3**2 + x4**2))) / 2),
    ),
}
