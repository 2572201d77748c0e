"""A user's own file, from the command line to predictions in its units."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from hvdkan import checkpoint, record

PROGRAMS = Path(__file__).parent / "programs"
# 240 training rows in steps of 70: the last of an epoch has 30.
SETTINGS = ("--data", "t.csv", "--target", "depth", "--inputs", "a,b", "--global-batch-size", "70", "--epochs", "6")
SETTINGS = (*SETTINGS, "--hidden", "8", "--grid", "5", "--probe-steps", "3", "--threads", "1", "--record", "r.jsonl")


def rows(seed=0):
    generator = np.random.default_rng(seed)
    a, b = generator.uniform(10, 20, 300), generator.uniform(-1e-3, 1e-3, 300)
    return np.column_stack([a, b, 5000 + 10 * (a - 15) ** 2 + 1e5 * b])


def write(directory, values):
    directory.mkdir(exist_ok=True)
    lines = [f"Anna,{a!r},{b!r},{depth!r}\n" for a, b, depth in values.tolist()]
    (directory / "t.csv").write_text("who,a,b,depth\n" + "".join(lines))
    return directory


def trained(done, directory):
    assert done.returncode == 0, done.stderr
    (found,) = record.read(directory / "r.jsonl").records
    return found


def refused(done, text):
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("error: ") == 1, done.stderr
    assert text in done.stderr


@pytest.mark.launch
def test_one_process_and_two_learn_the_same_from_a_table(alone, mpirun, tmp_path):
    one, two = write(tmp_path / "one", rows()), write(tmp_path / "two", rows())
    done = alone("-m", "hvdkan.train", *SETTINGS, "--backend", "single", "--save", "m.pt", cwd=one)
    single = trained(done, one)
    assert "in units of 'depth'" in done.stdout
    pair = trained(mpirun(2, "-m", "hvdkan.train", *SETTINGS, "--backend", "mpi", cwd=two), two)
    assert pair["epoch_loss"] == pytest.approx(single["epoch_loss"], rel=1e-5)
    assert pair["test_rmse"] == pytest.approx(single["test_rmse"], rel=1e-5)
    assert pair["samples_seen"] == single["samples_seen"] == [240] * 6
    assert pair["data"] == single["data"]
    assert (pair["data"]["rows"], pair["test_samples"], pair["config"]["samples"]) == (300, 60, 240)
    assert single["epoch_loss"][-1] < 0.5 * single["epoch_loss"][0]
    # What the saved model predicts, in the file's units, has the error that the record tells: on the rows whose
    # targets the record's own scaling was not made from, whichever these are.
    predict = checkpoint.predictor(one / "m.pt")
    assert (predict.columns, predict.target) == (("a", "b"), "depth")
    values = rows()
    test = np.random.default_rng(np.random.SeedSequence(0).spawn(1)[0]).permutation(300)[:60]
    errors = predict(values[test, :2]) - values[test, 2]
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(single["test_rmse"], rel=1e-4)


@pytest.mark.launch
def test_ranks_that_read_different_files_do_not_train(mpirun, tmp_path):
    one, two, none = write(tmp_path / "one", rows()), write(tmp_path / "two", rows(1)), tmp_path / "none"
    none.mkdir()
    for other, text in (
        (two, "ranks have read different data: the digest of t.csv is"),
        (none, "rank 1 of 2: t.csv: No"),
    ):
        where = json.dumps({"0": str(one), "1": str(other)})
        done = mpirun(2, PROGRAMS / "elsewhere.py", where, *SETTINGS, "--backend", "mpi", timeout=60, cwd=tmp_path)
        refused(done, text)
    assert not (one / "r.jsonl").exists()


@pytest.mark.launch
def test_a_file_that_cannot_be_used_is_one_line(alone, tmp_path):
    (tmp_path / "t.csv").write_text("who,a,b,depth\nAnna,1,2,\n")
    flags = ("-m", "hvdkan.train", *SETTINGS, "--backend", "single")
    missing = "error: t.csv: values missing, infinite or beyond 1e+150 in 'depth' (row 1: 'missing')"
    refused(alone(*flags, cwd=tmp_path), missing)
    refused(alone(*flags, "--dry-run", cwd=tmp_path), missing)
    (tmp_path / "t.csv").unlink()
    os.mkfifo(tmp_path / "t.csv")
    refused(alone(*flags, cwd=tmp_path, timeout=30), "error: t.csv: it is a pipe; it must be a file")
