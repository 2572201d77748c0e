import math
import random

import pytest

from analysis import scaling


def run(make, workers, step_s=0.004, block=1, **changes):
    return make(f"horovod-{workers}g", block, step_s, workers=workers, nodes=None, **changes)


def by_placement(points):
    return {point.placement: point for point in points}


def test_a_table_by_hand(make, study):
    # Samples/s of a step of n x 1000 samples: 250,000 at 4 ms; 400,000 at 5 ms; 500,000 at 4 ms in the other block.
    made = [run(make, 1, 0.004, 1), run(make, 1, 0.004, 2), run(make, 2, 0.005, 1), run(make, 2, 0.004, 2)]
    points = by_placement(scaling.strong(study(made)))
    assert points["1G1N"].speedup == 1 and points["1G1N"].efficiency == 1
    assert points["2G1N"].speedups == pytest.approx((1.6, 2.0))
    assert points["2G1N"].speedup == pytest.approx(math.sqrt(1.6 * 2.0))
    assert points["2G1N"].efficiency == pytest.approx(math.sqrt(1.6 * 2.0) / 2)
    assert points["2G1N"].samples_per_s == pytest.approx(2 / (1 / 400_000 + 1 / 500_000))
    assert points["2G1N"].n == 2 and points["2G1N"].batch == "1,000 a worker"


def test_the_order_of_records_changes_nothing_and_workers_are_numbers(make, save):
    from analysis.load import load

    made = [run(make, workers, 0.004 + workers / 1e4, block) for workers in (16, 2, 1, 8, 4) for block in (1, 2)]
    tables = []
    for seed in range(3):
        random.Random(seed).shuffle(made)
        tables.append(scaling.strong(load(save(made))))
    assert tables[0] == tables[1] == tables[2]
    assert [point.workers for point in tables[0]] == [1, 2, 4, 8, 16]


def test_without_a_one_worker_run_there_is_a_reason(make, study):
    points = scaling.strong(study([run(make, 2), run(make, 4)]))
    assert [point.reason for point in points] == ["no one-worker run with the same settings"] * 2
    assert all(math.isnan(point.efficiency) and math.isnan(point.speedup) for point in points)
    assert all(point.n == 1 and point.samples_per_s > 0 for point in points)


def test_one_worker_runs_of_two_widths_match_their_own(make, study):
    made = [run(make, 1, 0.004), run(make, 2, 0.005)]
    wide = [make(f"horovod-{n}g-wide", 1, 0.02, workers=n, nodes=None, config_hidden=[256]) for n in (1, 2)]
    points = scaling.strong(study(made + wide))
    speedups = {(point.series, point.workers): point.speedup for point in points}
    assert speedups[("horovod stock, hidden 32", 2)] == pytest.approx(1.6)
    assert speedups[("horovod stock, hidden 256", 2)] == pytest.approx(2.0)


def test_a_one_worker_run_of_another_width_is_no_match(make, study):
    points = scaling.strong(study([run(make, 1, config_hidden=[256]), run(make, 2)]))
    assert [point.reason for point in points if point.workers == 2] == ["no one-worker run with the same settings"]


def test_efficiency_above_one_is_shown_with_a_note(make, study):
    points = by_placement(scaling.strong(study([run(make, 1, 0.004), run(make, 2, 0.004 / 1.07)])))
    assert points["2G1N"].efficiency == pytest.approx(1.07)
    assert points["2G1N"].note == scaling.ABOVE_IDEAL
    assert points["1G1N"].note != scaling.ABOVE_IDEAL


def test_one_block_gives_no_interval(make, study):
    point = by_placement(scaling.strong(study([run(make, 1), run(make, 2)])))["2G1N"]
    assert point.speedup == pytest.approx(2) and math.isnan(point.low) and math.isnan(point.high)


def test_failures_and_lonely_blocks_are_reasons(make, fail, study):
    made = [run(make, 1, block=1), run(make, 2, block=2), fail("horovod-4g", 1, workers=4, nodes=None)]
    points = by_placement(scaling.strong(study(made)))
    assert points["2G1N"].reason == "no block holds both this and a one-worker run"
    assert "4G1N" not in points  # it never told where it ran
    lost = [fail("horovod-1g", 1, workers=1, nodes=None) | {"placement": "1G1N"}, run(make, 2)]
    assert by_placement(scaling.strong(study(lost)))["2G1N"].reason == "no usable one-worker run"


def test_a_diverged_launch_is_counted_and_not_averaged(make, study):
    made = [run(make, n, block=block) for n in (1, 2) for block in (1, 2)]
    made.append(run(make, 2, 0.0001, 3, epoch_loss=[math.nan]))
    made.append(run(make, 1, block=3))
    point = by_placement(scaling.strong(study(made)))["2G1N"]
    assert (point.n, point.failed, point.speedups) == (2, 1, pytest.approx((2, 2)))
    assert point.samples_per_s == pytest.approx(500_000)


def test_what_ran_otherwise_has_no_efficiency(make, study):
    names = {1: "horovod-hierarchical-1g", 2: "horovod-hierarchical-2g"}
    made = [make(names[n], 1, workers=n, nodes=None, ran="flat") for n in (1, 2)]
    point = by_placement(scaling.strong(study(made)))["2G1N"]
    assert math.isnan(point.efficiency) and "hierarchical asked for, flat ran" in point.reason
    assert math.isnan(point.samples_per_s) and math.isnan(point.step_s) and point.n == point.failed == 0


def test_launches_that_ran_otherwise_are_left_out_of_a_point(make, study):
    made = [run(make, 1, block=1), run(make, 1, block=2), run(make, 2, 0.004, 1), run(make, 2, 0.001, 2, ran="flat")]
    point = by_placement(scaling.strong(study(made)))["2G1N"]
    assert (point.n, point.failed, point.speedups) == (1, 0, pytest.approx((2,)))
    assert point.samples_per_s == pytest.approx(500_000) and point.step_s == 0.004
    assert point.note == "left out, horovod-2g: allreduce stock asked for, flat ran"


def test_other_work_in_a_series_is_refused(make, study):
    made = [run(make, 1), run(make, 2, samples_seen=[40000, 40000])]
    assert "samples seen" in by_placement(scaling.strong(study(made)))["2G1N"].reason


def weak(make, study, *loads):
    runs = [run(make, n, config_samples=samples, samples_seen=[samples] * 2) for n, samples in loads]
    return study(runs)


def test_weak_scaling_compares_throughput_of_equal_loads(make, study):
    points = by_placement(scaling.weak(weak(make, study, (1, 25000), (2, 50000))))
    assert points["2G1N"].speedup == pytest.approx(2) and points["2G1N"].efficiency == pytest.approx(1)


def test_weak_scaling_of_unequal_loads_is_refused_by_value(make, study):
    with pytest.raises(scaling.LabelRefused, match=r"25,000 at 1G1N and 12,500 at 2G1N"):
        scaling.weak(weak(make, study, (1, 25000), (2, 25000)))
