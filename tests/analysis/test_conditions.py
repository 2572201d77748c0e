"""Other work on the machine and drift: told where records show them, and only there."""

import pytest

from analysis import conditions, report


def loaded(make, block, load, variant="mpi-flat", **changes):
    environment = {"threads": 1, "load_before": [load, 1.0, 1.0], "load_after": [load + 1, 1.0, 1.0]}
    return make(variant, block, environment=environment, **changes)


def test_a_load_beyond_the_studys_own_is_other_work(make, study):
    found = study([loaded(make, block, load) for block, load in ((1, 4.2), (2, 9.0), (3, 22.5))])
    assert conditions.other_work(found) == (
        "Other work on the machine: before 2 of 3 launches the load average (1 minute) was above 5.00, more than the "
        "4 busy threads of the study's own largest launch leave behind (median 9.00, highest 22.5, on 2 cores)."
    )


@pytest.mark.parametrize(
    ("load", "own", "said"),
    [
        (4.9, {}, False),  # four workers of a thread each may leave that behind
        (4.9, {"workers": 2, "nodes": None}, True),
        (float("nan"), {}, False),
        ("high", {}, False),
        (1e308, {}, False),
    ],
)
def test_a_load_that_the_study_may_have_made_is_none(make, study, load, own, said):
    record = loaded(make, 1, 0.0, **own)
    record["environment"]["load_before"] = [load]
    if load != load:
        del record["environment"]["load_before"]
    assert bool(conditions.other_work(study([record]))) is said


def test_threads_count_and_emulated_nodes_share_one_load(make, study):
    threaded = loaded(make, 1, 8.5)
    threaded["environment"]["threads"] = 2
    assert study([threaded]).launches["busy"].iloc[0] == 8
    apart = loaded(make, 1, 0.0)
    for rank, place in enumerate(apart["ranks"]):
        place["host"] = f"host{rank // 2}"
    assert study([apart]).launches["busy"].iloc[0] == 2
    assert study([apart | {"emulated": True}]).launches["busy"].iloc[0] == 4


def drifting(make, blocks, factor):
    return [
        make(name, block, step * factor ** (block > blocks / 2))
        for block in range(1, blocks + 1)
        for name, step in (("mpi-flat", 0.004), ("ddp-flat", 0.008))
    ]


def test_a_drift_beyond_the_noise_floor_is_told(make, study):
    found = study(drifting(make, 4, 1.3))
    assert conditions.drift(found, 0.1) == (
        "Drift: steps of the last half of the blocks took 1.30 times those of the first half (geometric mean over 2 "
        "variants, range 1.30 to 1.30), more than the noise floor of 11%. Ratios within a block are free of it; "
        "absolute times are not."
    )
    assert conditions.drift(found, 0.3) == ""
    assert "more than the margin of 2.0%" in conditions.drift(found, float("nan"))


def test_drift_takes_two_blocks_and_leaves_the_middle_out(make, study):
    assert conditions.drift(study(drifting(make, 1, 1.3)), 0.0) == ""
    odd = [make("mpi-flat", block, step) for block, step in ((1, 0.004), (2, 0.04), (3, 0.004))]
    assert conditions.drifts(study(odd)) == pytest.approx([0.0])
    alone = [make("mpi-flat", block) | {"study": None, "block": None} for block in (1, 2)]
    assert conditions.drifts(study(alone)) == []


def test_the_report_tells_load_and_drift(make, save):
    made = [loaded(make, block, 9.0 + block, step_s=0.004 * (1 + (block > 2))) for block in range(1, 5)]
    directory = save(made)
    assert report.main([str(directory)]) == 0
    page = (directory / "report.html").read_text(encoding="utf-8")
    assert "before 4 of 4 launches the load average" in page and "Drift:</strong> steps of the last half" in page
    assert "other work ran beside the launches, as the findings say" in page
    header, row = (directory / "tables" / "variants.csv").read_text(encoding="utf-8").splitlines()
    cells = dict(zip(header.split('"')[0].split(","), row.split(","), strict=False))
    assert cells["variant"] == "mpi-flat"
    assert "load before (1 min, median)" in header and ",11.5,13,12.5," in row


def test_no_mpi_is_said_in_words(make, save):
    directory = save([make(block=1, environment={"mpi": None, "horovod": None, "torch": "2.13.0"})])
    assert report.main([str(directory)]) == 0
    rows = (directory / "tables" / "environment.csv").read_text(encoding="utf-8").splitlines()
    assert "mpi,no MPI" in rows and "horovod,none" in rows
