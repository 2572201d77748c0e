"""The method on simulated studies: what it promises about errors, intervals and power holds under realistic noise.

Thousands of studies are judged at once here; the first test holds this against ``stats`` itself, study by study.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from analysis import stats
from jobs.order import balanced

ARMS = [f"{name}{pair}" for pair in range(3) for name in "ab"]
PAIRS = [("a0", "b0"), ("a1", "b1"), ("a2", "b2")]
#: Noise of a launch, as the standard deviation of paired log ratios.
NOISE = 0.03
STUDIES = 2000
#: Shapes of noise, all with mean 0 and variance 1. Launches are disturbed to one side: nothing makes them faster.
SHAPES = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "skewed": lambda random, shape: random.exponential(size=shape) - 1,
    "outliers": lambda random, shape: _with_outliers(random, shape, share=0.05, size=4),
    "drifting": lambda random, shape: random.standard_normal(shape),
}
#: Log of how much longer a step takes at the end of a study than at its beginning.
DRIFT = {"drifting": 0.4}


def _with_outliers(random, shape, share, size):
    """One launch in 20 is slower by some ``size`` standard deviations."""
    noise = random.standard_normal(shape) + (random.random(shape) < share) * size * random.exponential(size=shape)
    return (noise - share * size) / math.sqrt(1 + 2 * share * size**2 - (share * size) ** 2)


def simulate(world, blocks, studies=STUDIES, effect=0.0, seed=0, order=None, noise=NOISE):
    """Log ratios of studies, shape (studies, pairs, blocks): a common block, drift over the launches, and noise."""
    random = np.random.default_rng([seed, blocks, list(SHAPES).index(world)])
    order = order or balanced(ARMS, PAIRS, blocks, seed)
    places = np.array([[block * len(ARMS) + order[block].index(arm) for arm in ARMS] for block in range(blocks)])
    logs = SHAPES[world](random, (studies, blocks, len(ARMS))) * noise / math.sqrt(2)
    logs += 0.1 * random.standard_normal((studies, blocks, 1)) + DRIFT.get(world, 0.0) * places / places.max()
    return np.moveaxis(logs[..., 1::2] - logs[..., ::2], 1, 2) + effect


def judge(logs):
    """Interval ends of the log ratio, sign-flip p-values, and whether each pair is found faster or slower."""
    _, family, n = logs.shape
    mean, spread = logs.mean(-1), logs.std(-1, ddof=1)
    half = scipy_stats.t.ppf(0.975, n - 1) * spread / math.sqrt(n)
    wide = scipy_stats.t.ppf(1 - 0.025 / family, n - 1) * spread / math.sqrt(n)
    equivalent = (mean - wide >= -math.log1p(stats.MARGIN)) & (mean + wide <= math.log1p(stats.MARGIN))
    signs = np.array(list(itertools.product([1.0, -1.0], repeat=n)))
    sums = np.abs(logs @ signs.T)
    p = (sums >= sums[..., :1] - 1e-9 * np.abs(logs).sum(-1, keepdims=True)).mean(-1)
    order = np.argsort(p, axis=-1, kind="stable")
    steps = np.minimum(1, np.take_along_axis(p, order, -1) * (family - np.arange(family)))
    holm = np.empty_like(p)
    np.put_along_axis(holm, order, np.maximum.accumulate(steps, -1), -1)
    found = ~equivalent & (holm <= stats.ALPHA) & (np.abs(mean) > half)
    return mean - half, mean + half, p, found


@pytest.mark.parametrize("world", SHAPES)
def test_studies_judged_at_once_are_judged_as_one_by_one(world):
    logs = np.concatenate([simulate(world, 8, 10), simulate(world, 8, 10, effect=0.04)])
    low, high, p, found = judge(logs)
    for at, study in enumerate(logs):
        effects = [stats.measure(dict.fromkeys(range(8), 1.0), dict(enumerate(np.exp(pair)))) for pair in study]
        adjusted = stats.holm([effect.p for effect in effects])
        for pair, effect in enumerate(effects):
            decided = stats.decide(effect, holm_p=adjusted[pair], family=3)
            assert effect.p == p[at, pair]
            assert (effect.low, effect.high) == pytest.approx((math.exp(low[at, pair]), math.exp(high[at, pair])))
            assert (decided.verdict in (stats.FASTER, stats.SLOWER)) == found[at, pair]


@pytest.mark.parametrize("blocks", [8, 10])
@pytest.mark.parametrize("world", SHAPES)
def test_equal_variants_are_told_apart_in_at_most_one_study_of_20(world, blocks):
    """A/A studies with a primary family of three: any verdict of faster or slower in it is false."""
    *_, found = judge(simulate(world, blocks))
    assert found.any(-1).mean() <= stats.ALPHA + 2 * math.sqrt(stats.ALPHA * (1 - stats.ALPHA) / STUDIES)


@pytest.mark.parametrize("blocks", [8, 20])
@pytest.mark.parametrize("world", SHAPES)
def test_intervals_cover_what_they_say(world, blocks):
    logs = simulate(world, blocks, effect=0.05).reshape(-1, blocks)
    ends = np.array([stats.interval(pair) for pair in logs])
    covered = ((ends[:, 0] <= 0.05) & (ends[:, 1] >= 0.05)).mean()
    assert covered == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("world", SHAPES)
def test_an_effect_of_5_percent_is_found_with_10_blocks(world):
    """At the first Holm step of a family of three: p times 3."""
    low, _, p, _ = judge(simulate(world, 10, effect=math.log(1.05)))
    assert ((3 * p <= stats.ALPHA) & (low > 0)).mean() >= 0.9


@pytest.mark.parametrize("blocks", [8, 10, 20])
def test_a_drift_cancels_by_balanced_order(blocks):
    """Drift alone: over an even number of blocks the mean log ratio of each pair is 0, in one fixed order it is not."""

    def bias(order):
        return np.abs(simulate("drifting", blocks, 1, order=order, noise=0).mean(-1)).max()

    for seed in range(5):
        assert bias(balanced(ARMS, PAIRS, blocks, seed)) < 1e-12
    assert bias([ARMS] * blocks) == pytest.approx(DRIFT["drifting"] / (6 * blocks - 1))


def test_a_fixed_order_would_take_drift_for_an_effect():
    """What balance is for: under a drift as large, studies in one fixed order find differences that are not there."""
    fixed = judge(simulate("drifting", 8, order=[ARMS] * 8))[3].any(-1).mean()
    assert fixed > 0.1 > judge(simulate("drifting", 8))[3].any(-1).mean()
