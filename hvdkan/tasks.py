"""Data: functions to learn, global batches, and how the ranks share them. numpy only.

Every rank makes the same data from the same seed, so that nothing has to be sent and a global batch is the same
set of samples whatever the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Task:
    """A function of ``inputs`` variables on [-1, 1]: ``formula`` maps [n, inputs] to [n]."""

    inputs: int
    formula: Callable[[np.ndarray], np.ndarray]


TASKS = {
    # The paper's.
    "squares": Task(2, lambda x: x[:, 0] ** 2 + x[:, 1] ** 2),
    # The example of pykan's documentation.
    "exp_sin": Task(2, lambda x: np.exp(np.sin(np.pi * x[:, 0]) + x[:, 1] ** 2)),
    # Four inputs, for wider first layers; also from pykan's documentation.
    "exp_sin_4d": Task(
        4,
        lambda x: np.exp(
            (np.sin(np.pi * (x[:, 0] ** 2 + x[:, 1] ** 2)) + np.sin(np.pi * (x[:, 2] ** 2 + x[:, 3] ** 2))) / 2
        ),
    ),
}


@dataclass(frozen=True)
class Data:
    """Training samples with noise and test samples without: inputs [n, inputs], targets [n, 1], float64."""

    inputs: np.ndarray
    targets: np.ndarray
    test_inputs: np.ndarray
    test_targets: np.ndarray


def make_data(task: str, samples: int, test_samples: int, noise: float, seed: int) -> Data:
    """Draw inputs uniformly from [-1, 1]; ``noise`` is the standard deviation added to the training targets."""
    chosen = TASKS[task]
    # Independent streams: more training samples must not change the test set.
    train, test, noises = (np.random.default_rng(stream) for stream in np.random.SeedSequence(seed).spawn(3))
    inputs = train.uniform(-1.0, 1.0, (samples, chosen.inputs))
    test_inputs = test.uniform(-1.0, 1.0, (test_samples, chosen.inputs))
    targets = chosen.formula(inputs) + noise * noises.standard_normal(samples)
    return Data(inputs, targets[:, None], test_inputs, chosen.formula(test_inputs)[:, None])


def global_batches(samples: int, batch: int, seed: int, epoch: int) -> Iterator[np.ndarray]:
    """The indices of each global batch of an epoch: a permutation cut into ``batch``; the last may be smaller."""
    order = np.random.default_rng([seed, epoch]).permutation(samples)
    for start in range(0, samples, batch):
        yield order[start : start + batch]


def share(indices: np.ndarray, rank: int, size: int) -> np.ndarray:
    """The part of a global batch that ``rank`` of ``size`` computes: contiguous, sizes differing by one at most.

    With more ranks than samples some parts are empty.
    """
    small, larger = divmod(len(indices), size)
    start = rank * small + min(rank, larger)
    return indices[start : start + small + (rank < larger)]
