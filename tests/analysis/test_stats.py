import itertools
import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from analysis import stats


def blocks(values):
    return dict(enumerate(values, start=1))


def effect_of(logs, **keywords):
    effect = stats.measure(blocks([1.0] * len(logs)), blocks(np.exp(logs)))
    return stats.decide(effect, **keywords)


def test_an_effect_by_hand():
    effect = stats.measure(blocks([10, 10, 10]), blocks([11, 9, 12]))
    logs = [math.log(1.1), math.log(0.9), math.log(1.2)]
    mean = sum(logs) / 3
    sd = math.sqrt(sum((x - mean) ** 2 for x in logs) / 2)
    half = 4.302652729749464 * sd / math.sqrt(3)  # Student's t, 2 degrees of freedom, two-sided 95%
    assert effect.n == 3 and effect.wins == 1
    assert effect.ratio == pytest.approx((1.1 * 0.9 * 1.2) ** (1 / 3), rel=1e-12)
    assert effect.low == pytest.approx(math.exp(mean - half), rel=1e-9)
    assert effect.high == pytest.approx(math.exp(mean + half), rel=1e-9)
    assert effect.spread == pytest.approx(sd, rel=1e-12)
    # Of the 4 sums of 0.0953, 0.1054 and 0.1823 up to sign only + + - is nearer to 0 than the observed + - +.
    assert effect.p == 3 / 4


@pytest.mark.parametrize("n", [1, 2, 5, 8, 11])
def test_the_sign_flip_test_counts_every_flip(n):
    logs = np.random.default_rng(n).normal(0.3, 1, n)
    sums = [abs(np.dot(signs, logs)) for signs in itertools.product([1, -1], repeat=n)]
    assert stats.sign_flip_p(logs) == sum(s >= abs(logs.sum()) - 1e-9 for s in sums) / 2**n


def test_the_sign_flip_test_is_exact_with_ties_and_beyond_sampling():
    assert stats.sign_flip_p([0.1] * 8) == 2 / 2**8
    assert stats.sign_flip_p([0.1] * 32) == 2 / 2**32
    assert stats.sign_flip_p([0.0] * 8) == 1
    # Above 32 pairs it is sampled, and never 0.
    assert stats.sign_flip_p([0.1] * 50) == 1 / 200_001
    alternating = [0.1, -0.1] * 20
    assert stats.sign_flip_p(alternating) == 1


def test_holm_by_hand():
    adjusted = stats.holm([0.01, 0.04, 0.03, math.nan])
    # Sorted 0.01, 0.03, 0.04, n/a: times 4, 3, 2; a later one is never smaller than an earlier one.
    assert adjusted[:3] == pytest.approx([0.04, 0.09, 0.09])
    assert math.isnan(adjusted[3])
    assert stats.holm([0.9, 0.9]) == [1, 1]
    assert stats.holm([]) == []


@pytest.mark.parametrize(
    ("logs", "verdict"),
    [
        ([-0.10, -0.11, -0.09, -0.12, -0.10, -0.08, -0.11, -0.10], stats.FASTER),
        ([0.10, 0.11, 0.09, 0.12, 0.10, 0.08, 0.11, 0.10], stats.SLOWER),
        ([0.001, -0.002, 0.002, -0.001, 0.001, 0.003, -0.003, 0.0], stats.NO_DIFFERENCE),
        # Significant and still within the margin: it does not matter.
        ([0.005, 0.006, 0.005, 0.004, 0.005, 0.006, 0.005, 0.004], stats.NO_DIFFERENCE),
        ([0.1, -0.05, 0.1, -0.05, 0.1, -0.02, 0.1, -0.05], stats.INCONCLUSIVE),
        ([-0.10, -0.11, -0.09, -0.12, -0.10, -0.08, -0.11], stats.NO_VERDICT),
        ([], stats.NO_VERDICT),
    ],
)
def test_verdicts(logs, verdict):
    effect = effect_of(logs)
    assert effect.verdict == verdict
    assert (effect.blocks_needed is not None) == (verdict == stats.INCONCLUSIVE)


def test_an_adjusted_p_value_decides_in_the_family():
    logs = [-0.10, -0.11, -0.09, -0.12, -0.10, -0.08, -0.11, -0.10]
    assert effect_of(logs, holm_p=0.05).verdict == stats.FASTER
    assert effect_of(logs, holm_p=0.051).verdict == stats.INCONCLUSIVE


def test_one_outlier_does_not_make_a_verdict_that_its_interval_denies():
    effect = effect_of([0.01] * 8 + [3.0])
    assert effect.p <= stats.ALPHA
    assert effect.low < 1 < effect.high
    assert effect.verdict == stats.INCONCLUSIVE


def test_the_margin_is_the_readers():
    logs = [0.04, 0.05, 0.05, 0.04, 0.05, 0.05, 0.04, 0.05]
    assert effect_of(logs, margin=0.02).verdict == stats.SLOWER
    assert effect_of(logs, margin=0.10).verdict == stats.NO_DIFFERENCE


def test_equivalence_in_a_family_takes_a_wider_interval():
    logs = [0.012, -0.012] * 4
    effect = effect_of(logs)
    # Half widths by hand, with 7 degrees of freedom: 95% within the margin of log 1.02 = 0.0198, 1 - 0.05 / 40 without.
    spread = 0.012 * math.sqrt(8 / 7)
    assert math.log(effect.high) == pytest.approx(2.364624 * spread / math.sqrt(8), rel=1e-6)
    assert scipy_stats.t.ppf(1 - 0.05 / 80, 7) * spread / math.sqrt(8) > math.log(1.02)
    assert effect.verdict == stats.NO_DIFFERENCE
    family = effect_of(logs, holm_p=1.0, family=40)
    assert family.verdict == stats.INCONCLUSIVE and (family.low, family.high) == (effect.low, effect.high)
    # More blocks narrow it again, and what would settle it is counted at the family's level.
    assert family.blocks_needed == stats.blocks_to_settle(effect, family=40) > stats.blocks_to_settle(effect)
    assert effect_of([0.012, -0.012] * (family.blocks_needed // 2 + 1), family=40).verdict == stats.NO_DIFFERENCE


def test_equivalence_holds_together_over_a_family():
    """10 pairs that differ by just the margin: some pair is called equivalent in at most 5% of studies."""
    generator, studies, wrong = np.random.default_rng(4), 300, 0
    for _ in range(studies):
        effects = [effect_of(math.log(1.0201) + 0.004 * generator.standard_normal(8), family=10) for _ in range(10)]
        wrong += any(effect.verdict == stats.NO_DIFFERENCE for effect in effects)
    assert wrong / studies <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / studies)


def test_blocks_to_settle_have_the_power_they_promise():
    effect = stats.Effect(n=8, ratio=math.exp(0.05), low=0.9, high=1.2, spread=0.08, p=0.1, wins=3)
    needed = stats.blocks_to_settle(effect)

    def power(n):
        noncentral = 0.05 / 0.08 * math.sqrt(n)
        return scipy_stats.nct.sf(scipy_stats.t.ppf(0.975, n - 1), n - 1, noncentral)

    assert power(needed) == pytest.approx(0.9, abs=0.02)
    assert power(needed - 5) < 0.9


def test_blocks_to_settle_know_what_flips_can_show_and_give_up():
    sure = stats.Effect(n=8, ratio=1.5, low=1.49, high=1.51, spread=0.001, p=2 / 2**8, wins=0)
    # A family of 20 needs p <= 0.0025 = 2 ** -8.6: ten blocks.
    assert stats.blocks_to_settle(sure, family=20) == 10
    hopeless = stats.Effect(n=8, ratio=1.02, low=0.5, high=2, spread=1.0, p=0.9, wins=4)
    assert stats.blocks_to_settle(hopeless) is None


@pytest.mark.parametrize("n", [0, 1])
def test_what_few_launches_do_not_allow_is_not_available_and_never_zero(n):
    summary = stats.summary([7.0] * n)
    assert summary.n == n and math.isnan(summary.low) and math.isnan(summary.high)
    assert math.isnan(summary.median) == (n == 0)
    effect = effect_of([0.1] * n)
    assert effect.n == n
    assert all(math.isnan(value) for value in (effect.low, effect.high, effect.spread))
    assert math.isnan(effect.ratio) == (n == 0)


def test_medians_tell_apart_what_means_do_not():
    assert np.mean([10] * 6) == np.mean([1, 1, 1, 1, 1, 55]) == 10
    assert stats.summary([10] * 6).median == 10
    assert stats.summary([1, 1, 1, 1, 1, 55]).median == 1


def test_pairs_with_a_broken_side_are_dropped_and_counted():
    baseline = {1: 10.0, 2: 10.0, 3: math.nan, 4: 10.0, 5: 10.0}
    candidate = {1: 11.0, 2: 0.0, 3: 11.0, 5: 11.0, 6: 11.0}
    effect = stats.measure(baseline, candidate)
    assert list(stats.paired_log_ratios(baseline, candidate)) == [1, 5]
    assert (effect.n, effect.dropped) == (2, 4)


def test_means():
    assert stats.harmonic_mean([100, 50]) == pytest.approx(200 / 3)
    assert stats.geometric_mean([2, 0.5, 8]) == pytest.approx(2)
    for mean in (stats.harmonic_mean, stats.geometric_mean):
        assert math.isnan(mean([])) and math.isnan(mean([1, math.nan])) and math.isnan(mean([1, 0]))


@pytest.mark.parametrize(("n", "ends"), [(5, None), (6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (20, (6, 15))])
def test_an_interval_of_the_median_lies_between_order_statistics(n, ends):
    low, high = stats.median_interval(np.arange(n, 0, -1))
    if ends is None:
        assert math.isnan(low) and math.isnan(high)
        return
    assert (low, high) == ends

    def covers(k):  # the chance that the median lies between the k-th value from either end
        return 1 - 2 * sum(math.comb(n, i) for i in range(int(k))) / 2**n

    assert covers(low) >= 0.95 > covers(low + 1)
