import gzip
import math

import pytest

from analysis.load import ReportError, left_out, load, mismatch, row_of
from hvdkan import record as records


def test_a_row_holds_medians_not_means(make):
    row = row_of(make(step_s=0.004) | {"step_s": [0.001, 0.002, 0.9], "exchange_s": [0.1, 0.3], "wait_s": []})
    assert row["step_s"] == 0.002 and row["exchange_s"] == pytest.approx(0.2) and math.isnan(row["wait_s"])
    assert (row["workers"], row["nodes"], row["hosts"], row["simulated"]) == (4, 2, 1, True)
    assert row["usable"]


def test_the_latest_attempt_counts_whatever_the_order_of_files(make, fail, save):
    made = [make(block=1, step_s=0.3, attempt=3), fail(block=1, attempt=1), make(block=1, step_s=0.2, attempt=2)]
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        study = load(save([made[index] for index in order]))
        assert list(study.launches["step_s"]) == [0.3]
        assert study.superseded == 2


def test_a_failed_last_attempt_is_not_replaced_by_an_earlier_success(make, fail, study):
    loaded = study([make(block=1, attempt=1), fail(block=1, attempt=2)])
    assert len(loaded.launches) == 1 and loaded.usable.empty


def test_failures_and_nan_are_counted_with_a_reason(make, fail, study):
    made = [make(block=1), fail(block=2), make(block=3, epoch_loss=[0.5, math.nan]), make(block=4, step_s=math.nan)]
    made += [make(block=5) | {"step_s": []}, make(block=6) | {"status": "preempted"}]
    loaded = study(made)
    assert list(loaded.launches["why_not"]) == [
        "", "failed: OSError", "a loss is not finite", "a step time is not a positive number", "no step was timed",
        "preempted",
    ]  # fmt: skip
    assert list(loaded.usable["block"]) == [1]


def test_damage_is_reported_relative_to_the_study(make, save):
    directory = save([make(block=1)])
    whole = records.encode(make(block=2))
    (directory / "records" / "torn.jsonl").write_bytes(whole + whole[:100])
    (directory / "records" / "old.jsonl.gz").write_bytes(gzip.compress(records.encode(make(block=3))))
    loaded = load(directory)
    assert [(file, line) for file, line, _ in loaded.damaged] == [("records/torn.jsonl", 2)]
    assert sorted(loaded.launches["block"]) == [1, 2, 3]


def test_runs_outside_a_study_are_blocks_of_their_own(make, study):
    alone = {"study": None, "block": None, "variant": None, "attempt": None, "order": None, "cell": None}
    loaded = study([make(run_id="a") | alone, make(run_id="b") | alone])
    assert len(loaded.usable) == 2
    assert set(loaded.launches["arm"]) == {"mpi-spline-flat-4G2N"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such directory"),
        ({}, "no records"),
        ({"a.jsonl": b"{\n"}, "no readable record; 1 damaged line, first a.jsonl:1"),
        ({"a.jsonl": b'{"schema": "9.0"}\n'}, "schema '9.0' cannot be read by this version, which reads 1.0"),
        ({"plan.toml": b"primary = 3\n"}, "primary is 3; it must be a list of"),
        ({"plan.toml": b"variant = [1]\n"}, "variant is [1]; it must be tables"),
        ({"plan.toml": b"common = 1\n"}, "common is 1; it must be a table"),
        ({"plan.toml": b"= 3\n"}, "plan.toml"),
        ({"plan.toml": b"\xff\n"}, "plan.toml"),
    ],
)
def test_what_no_report_can_be_made_from_is_one_line(tmp_path, content, said):
    directory = tmp_path / "study"
    if content is not None:
        directory.mkdir()
        for name, data in content.items():
            (directory / name).write_bytes(data)
    with pytest.raises(ReportError) as error:
        load(directory)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("asked", "ran", "workers", "found"),
    [
        ({"allreduce": "hierarchical"}, {"allreduce": "flat", "reason": "one node"}, 4,
         "allreduce hierarchical asked for, flat ran (one node)"),
        ({"allreduce": "hierarchical"}, {"allreduce": "flat"}, 1, "allreduce hierarchical asked for, flat ran"),
        ({"allreduce": "auto", "engine": "auto", "transport": None}, {"allreduce": "flat", "engine": "x"}, 4, ""),
        ({"engine": "two_level"}, {"engine": "two_level(cross=ring)"}, 4, ""),
        ({"engine": "han"}, {"engine": "process_sets"}, 4, "engine han asked for, process_sets ran"),
        ({"transport": "mpi"}, {"transport": "gloo"}, 4, "transport mpi asked for, gloo ran"),
        ({"allreduce": "stock"}, {"allreduce": "none"}, 1, ""),
        ({"allreduce": "stock"}, {"allreduce": "none"}, 2, "allreduce stock asked for, none ran"),
        ({"allreduce": "flat"}, {}, 4, "what ran is not recorded"),
        ({"allreduce": "flat"}, {"engine": "x"}, 4, "allreduce flat asked for, what ran is not recorded"),
        ({"allreduce": "stock", "engine": "auto"}, {"allreduce": "none", "engine": "none", "transport": "none"}, 1, ""),
    ],
)  # fmt: skip
def test_what_ran_against_what_was_asked_for(asked, ran, workers, found):
    assert mismatch(asked, ran, workers) == found


def test_a_measurement_that_does_not_say_what_ran_is_not_as_asked(make, fail, study):
    made = [make(block=1), make(block=2, effective=None), make(block=3, effective={}), fail(block=4)]
    loaded = study(made)
    assert list(loaded.as_asked["block"]) == [1]
    assert left_out(loaded.launches) == ["mpi-flat: what ran is not recorded"]
    # A launch that failed before it knew is a failure, and no more.
    assert list(loaded.launches["mismatch"][loaded.launches["block"] == 4]) == [""]


def test_a_record_that_leaves_out_what_was_requested_asked_by_its_settings(make):
    row = row_of(make("mpi-hierarchical", ran="flat", requested={}))
    assert row["mismatch"] == "allreduce hierarchical asked for, flat ran"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"exposed": [1]}, "exposed is [1]; it must be an object"),
        ({"parameters": [1]}, "parameters is [1]; it must be an object"),
        ({"parameters": {"trainable": [1]}}, "parameters.trainable is [1]; it must be a number"),
        ({"environment": "x"}, "environment is 'x'; it must be an object"),
        ({"ranks_per_host": 5}, "ranks_per_host is 5; it must be an object"),
        ({"epoch_loss": 5}, "epoch_loss is 5; it must be a list"),
        ({"exchange_s": {"a": 1}}, "exchange_s is {'a': 1}; it must be a list"),
        ({"samples_seen": 5}, "samples_seen is 5; it must be a list"),
        ({"ranks": "x"}, "ranks is 'x'; it must be a list"),
        ({"ranks": [1]}, "ranks holds 1; it must hold objects"),
        ({"ranks": [{"rank": 0, "cores": 5}]}, "ranks: cores is 5; it must be a list"),
        (
            {"ranks": [{"rank": 0, "cores": [0]}, {"rank": "x", "cores": [0]}]},
            "ranks: rank is 'x'; it must be a number",
        ),
        ({"ranks": [{"rank": 0, "host": ["x"], "cores": [0]}]}, "ranks: host is ['x']; it must be a text"),
        ({"ranks": [{"rank": 0, "host": "a", "cores": [[0]]}]}, "no row can be made of it: "),
        ({"batch_per_rank": [1000]}, "batch_per_rank is [1000]; it must be a number"),
        ({"config_samples": "many"}, "config.samples is 'many'; it must be a number"),
        ({"config_global_batch_size": 10**400}, "config.global_batch_size is 1000"),
    ],
)
def test_an_odd_record_is_a_damaged_line_and_the_others_are_read(make, save, change, said):
    directory = save([make("mpi-flat", 1)])
    lines = [b"", b"{torn\n", records.encode(make("mpi-flat", 2)), b"\n", records.encode(make("mpi-flat", 3, **change))]
    (directory / "records" / "odd.jsonl").write_bytes(b"".join([*lines, records.encode(make("mpi-flat", 4))]))
    loaded = load(directory)
    assert sorted(loaded.launches["block"]) == [1, 2, 4]
    assert [(file, line) for file, line, _ in loaded.damaged] == [("records/odd.jsonl", 1), ("records/odd.jsonl", 4)]
    assert loaded.damaged[1][2].startswith(said) and "\n" not in loaded.damaged[1][2]


def test_a_study_of_odd_records_only_is_refused_by_the_first(make, save):
    with pytest.raises(ReportError, match=r"1 damaged line, first records/00000.jsonl:1: exposed is \[1\]"):
        load(save([make(exposed=[1])]))


def test_numbers_that_no_float_holds_are_no_numbers(make):
    row = row_of(make(step_s=0.004) | {"step_s": [0.004, 10**400], "peak_memory_bytes": 10**400})
    assert row["why_not"] == "a step time is not a positive number" and math.isnan(row["memory_bytes"])
    assert not row_of(make() | {"step_s": [[0.004], [0.004]]})["usable"]
