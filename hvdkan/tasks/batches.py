"""Global batches, and how the ranks share them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


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
