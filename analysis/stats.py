"""Paired comparison of launches: effect, interval, exact p-value, and the verdict they allow.

The launch is the unit of replication. One block holds one launch of each variant, so the log ratio of two launches of a
block cancels what the block had in common (the hour, the allocation, the neighbours).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

MINIMUM_BLOCKS = 8
MARGIN = 0.02
ALPHA = 0.05
POWER = 0.9
MOST_BLOCKS = 1000

FASTER, SLOWER, NO_DIFFERENCE = "faster", "slower", "no practical difference"
INCONCLUSIVE, NO_VERDICT = "inconclusive", "no verdict possible"
VERDICTS = (FASTER, SLOWER, NO_DIFFERENCE, INCONCLUSIVE, NO_VERDICT)

#: Beyond this many pairs the sign-flip distribution is sampled: 2 ** (n / 2) sums no longer fit.
_EXACT_PAIRS = 32
_SAMPLED_FLIPS = 200_000


@dataclass(frozen=True)
class Effect:
    """What paired launches say about candidate / baseline, both in seconds (lower is better).

    ``ratio`` is the geometric mean; ``low`` and ``high`` are the ends of its 95% interval; ``spread`` is the standard
    deviation of the log ratios. What needs two pairs is NaN with fewer. ``holm`` is None outside the primary family.
    """

    n: int
    ratio: float
    low: float
    high: float
    spread: float
    p: float
    wins: int
    holm: float | None = None
    verdict: str = NO_VERDICT
    blocks_needed: int | None = None
    dropped: int = 0


def paired_log_ratios(baseline: Mapping, candidate: Mapping) -> dict:
    """Log of candidate / baseline for each block that holds both as finite positive numbers, in block order."""
    blocks = sorted(set(baseline) & set(candidate))
    pairs = {block: (baseline[block], candidate[block]) for block in blocks}
    return {block: math.log(c / b) for block, (b, c) in pairs.items() if _usable(b) and _usable(c)}


def _usable(value: float) -> bool:
    return math.isfinite(value) and value > 0


def measure(baseline: Mapping, candidate: Mapping) -> Effect:
    """The effect without a verdict; pairs with a missing or non-finite side are dropped and counted."""
    logs = np.array(list(paired_log_ratios(baseline, candidate).values()))
    n = len(logs)
    low, high = interval(logs)
    return Effect(
        n=n,
        ratio=math.exp(logs.mean()) if n else math.nan,
        low=math.exp(low),
        high=math.exp(high),
        spread=float(logs.std(ddof=1)) if n > 1 else math.nan,
        p=sign_flip_p(logs),
        wins=int((logs < 0).sum()),
        dropped=len(set(baseline) | set(candidate)) - n,
    )


def interval(logs: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Student's t interval of the mean; NaN with fewer than two values."""
    logs = np.asarray(logs, dtype=float)
    n = len(logs)
    if n < 2:
        return math.nan, math.nan
    half = _half_width(n, logs.std(ddof=1), confidence)
    return float(logs.mean() - half), float(logs.mean() + half)


def _half_width(n: int, spread: float, confidence: float) -> float:
    return stats.t.ppf((1 + confidence) / 2, n - 1) * spread / math.sqrt(n)


def _widened(effect: Effect, confidence: float) -> tuple[float, float]:
    """The interval of an effect's log ratio at another level."""
    middle, half = math.log(effect.ratio), _half_width(effect.n, effect.spread, confidence)
    return middle - half, middle + half


def sign_flip_p(logs: Sequence[float]) -> float:
    """Two-sided p-value of mean 0 under all 2**n sign flips (Fisher's randomisation test); NaN for no value.

    The sums of the two halves are sorted and counted against each other, which is exact up to 32 pairs.
    """
    logs = np.asarray(logs, dtype=float)
    n = len(logs)
    if n == 0:
        return math.nan
    # Sums of the same numbers in another order differ in their last bits: the observed one must count itself.
    observed = abs(logs.sum()) - 1e-9 * np.abs(logs).sum()
    if observed <= 0:
        return 1.0
    if n > _EXACT_PAIRS:
        return (1 + _sampled_flips(logs, observed)) / (1 + _SAMPLED_FLIPS)
    left, right = _signed_sums(logs[: n // 2]), np.sort(_signed_sums(logs[n // 2 :]))
    # The distribution is symmetric: twice the upper tail.
    above = len(right) - np.searchsorted(right, observed - left, side="left")
    return float(2 * above.sum() / 2.0**n)


def _sampled_flips(logs: np.ndarray, observed: float) -> int:
    """How many of :data:`_SAMPLED_FLIPS` random flips have a sum as far from 0; a bit a sign, and few at a time."""
    random, n, total, part = np.random.default_rng(0), len(logs), logs.sum(), _SAMPLED_FLIPS // 20
    beyond = 0
    for _ in range(20):
        octets = random.integers(0, 256, size=(part, -(-n // 8)), dtype=np.uint8)
        flips = np.unpackbits(octets, axis=1, count=n).astype(float)
        beyond += int((np.abs(total - 2 * (flips @ logs)) >= observed).sum())
    return beyond


def _signed_sums(values: np.ndarray) -> np.ndarray:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values (Holm 1979). A NaN stays NaN but counts in the family it was named in."""
    order = sorted(range(len(p_values)), key=lambda i: math.inf if math.isnan(p_values[i]) else p_values[i])
    adjusted, largest = [math.nan] * len(p_values), 0.0
    for step, index in enumerate(order):
        if not math.isnan(p_values[index]):
            largest = max(largest, min(1.0, (len(p_values) - step) * p_values[index]))
            adjusted[index] = largest
    return adjusted


def decide(effect: Effect, *, margin: float = MARGIN, holm_p: float | None = None, family: int = 1) -> Effect:
    """The effect with its verdict. ``holm_p`` is given for a primary comparison, ``family`` is its family's size.

    An interval inside the margin is no practical difference, significant or not; in a family of m pairs that interval
    is one at level 1 - ALPHA / m (Bonferroni), so that the family's equivalences hold together. Faster and slower need
    both the exact test (adjusted, in the family) and a 95% interval that leaves out 1, so that sentence and figure
    cannot contradict.
    """
    effect = replace(effect, holm=holm_p)
    if effect.n < MINIMUM_BLOCKS:
        return replace(effect, verdict=NO_VERDICT)
    low, high = _widened(effect, 1 - ALPHA / family)
    if low >= -math.log1p(margin) and high <= math.log1p(margin):
        return replace(effect, verdict=NO_DIFFERENCE)
    p = effect.p if holm_p is None else holm_p
    if p <= ALPHA and (effect.low > 1 or effect.high < 1):
        return replace(effect, verdict=FASTER if effect.ratio < 1 else SLOWER)
    return replace(effect, verdict=INCONCLUSIVE, blocks_needed=blocks_to_settle(effect, margin, family))


def blocks_to_settle(effect: Effect, margin: float = MARGIN, family: int = 1) -> int | None:
    """Blocks after which, if effect and spread stay as seen, a verdict is reached with 90% power; None above 1,000.

    Either the effect is told from 1 (at the first Holm step of ``family``), or its interval, at the family's level,
    fits within the margin.
    """
    mean = abs(math.log(effect.ratio))
    n = np.arange(max(effect.n + 1, MINIMUM_BLOCKS), MOST_BLOCKS + 1)
    # The smallest p-value of n sign flips is 2 ** (1 - n): no effect is so large that fewer would do.
    detected = (2.0 ** (1 - n) <= ALPHA / family) & _reaches(n, effect.spread, mean, ALPHA / family)
    enough = n[detected | _reaches(n, effect.spread, math.log1p(margin) - mean, ALPHA / family)]
    return int(enough[0]) if len(enough) else None


def _reaches(n: np.ndarray, spread: float, distance: float, alpha: float) -> np.ndarray:
    """For which numbers of pairs an interval's end is, with the power wanted, within ``distance`` of its middle."""
    needed = stats.t.ppf(1 - alpha / 2, n - 1) + stats.t.ppf(POWER, n - 1)
    return (distance > 0) & (needed * spread / np.sqrt(n) <= distance)


def harmonic_mean(rates: Sequence[float]) -> float:
    """The mean of rates (samples/s) over equal work. NaN for no value or where one is not a positive number."""
    rates = np.asarray(rates, dtype=float)
    if len(rates) == 0 or not (np.isfinite(rates) & (rates > 0)).all():
        return math.nan
    return float(len(rates) / (1 / rates).sum())


def geometric_mean(ratios: Sequence[float]) -> float:
    """The mean of ratios. NaN for no value or where one is not a positive number."""
    ratios = np.asarray(ratios, dtype=float)
    if len(ratios) == 0 or not (np.isfinite(ratios) & (ratios > 0)).all():
        return math.nan
    return float(np.exp(np.log(ratios).mean()))


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """An interval of the median between two order statistics, whatever the distribution; NaN with fewer than six.

    It covers at least ``confidence``: the k-th value from either end with P(binomial(n, 1/2) < k) <= (1 - it) / 2.
    """
    values = np.sort(np.asarray(values, dtype=float))
    k = int(stats.binom.ppf((1 - confidence) / 2, len(values), 0.5)) if len(values) else 0
    while k > 0 and stats.binom.cdf(k - 1, len(values), 0.5) > (1 - confidence) / 2:
        k -= 1
    return (float(values[k - 1]), float(values[-k])) if k else (math.nan, math.nan)


@dataclass(frozen=True)
class Summary:
    """Launches of one arm: ``n`` always; the median from one launch on; the range from two."""

    n: int
    median: float
    low: float
    high: float


def summary(values: Sequence[float]) -> Summary:
    """Median and range of the finite values; what ``n`` does not allow is NaN, never 0."""
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    n = len(values)
    return Summary(
        n=n,
        median=float(np.median(values)) if n else math.nan,
        low=float(values.min()) if n > 1 else math.nan,
        high=float(values.max()) if n > 1 else math.nan,
    )
