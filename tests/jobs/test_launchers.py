"""The words of a command, exactly."""

import os
import shlex
import sys
from pathlib import Path

import pytest

from jobs import launchers
from jobs.launch import command, flags_of
from jobs.plan import parse
from jobs.store import Launch

PLAN = """
study = "s"
blocks = 1
[common]
samples = 1000
global_batch_size = 100
[[variant]]
name = "four"
ranks = 4
backend = "mpi"
allreduce = "hierarchical"
hidden = [32, 16]
noise = 1e-3
simulate_nodes = [2, 2]
[[variant]]
name = "one"
ranks = 1
backend = "single"
operator = "pykan"
symbolic = false
threads = 2
"""
TRAIN_FOUR = (
    "PYTHON -m hvdkan.train --backend mpi --hidden 32,16 --samples 1000 --noise 0.001 --global-batch-size 100 "
    "--threads 1 --allreduce hierarchical --simulate-nodes 2,2 --record results/x.jsonl "
    "--label study=s --label block=3 --label order=2 --label variant=four --label attempt=5 "
    "--label launch_id=s/b03/four"
)
TRAIN_ONE = (
    "PYTHON -m hvdkan.train --backend single --operator pykan --no-symbolic --samples 1000 --global-batch-size 100 "
    "--threads 2 --record results/x.jsonl "
    "--label study=s --label block=3 --label order=2 --label variant=one --label attempt=5 --label launch_id=s/b03/one"
)
MPIRUN = "MPIRUN -n {ranks} --map-by :OVERSUBSCRIBE --bind-to none --mca mpi_yield_when_idle 1 {rest}"


def text(name, launcher):
    variant = {variant.name: variant for variant in parse(PLAN).variants}[name]
    launch = Launch("s", variant, block=3, order=2, attempt=5)
    words, environment = command(launch, launcher, "hvdkan.train", Path("results/x.jsonl"))
    known = {sys.executable: "PYTHON", launchers.find_mpirun(): "MPIRUN"}
    return shlex.join(known.get(word, word) for word in words), environment


def test_the_command_of_several_ranks():
    for launcher in (launchers.Local(), launchers.Mpirun()):
        assert text("four", launcher)[0] == MPIRUN.format(ranks=4, rest=TRAIN_FOUR)


def test_the_command_of_one_rank():
    assert text("one", launchers.Local())[0] == TRAIN_ONE
    assert text("one", launchers.Mpirun())[0] == MPIRUN.format(ranks=1, rest=TRAIN_ONE)


def test_the_environment_of_a_launch():
    threads = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    root = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    wanted = threads | {"PYTHONUNBUFFERED": "1"} | (root if os.geteuid() == 0 else {})
    for launcher in launchers.LAUNCHERS.values():
        assert text("one", launcher())[1] == wanted


def test_the_plan_alone_decides_about_hierarchy():
    inherited = launchers.inherited({"HOROVOD_HIERARCHICAL_ALLREDUCE": "1", "PATH": "/bin"})
    assert inherited == {"PATH": "/bin"}


def test_flags_read_back_as_the_same_settings():
    from hvdkan.config import Config, from_command_line

    for variant in parse(PLAN).variants:
        read = from_command_line(flags_of(variant.settings), {})
        assert isinstance(read, Config) and read == variant.config


def test_mpirun_beside_python_comes_before_the_one_on_path(tmp_path, monkeypatch):
    for place in ("env", "path"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "mpirun").write_text("#!/bin/sh\n")
        (tmp_path / place / "mpirun").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env/python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert launchers.find_mpirun() == str(tmp_path / "env/mpirun")
    (tmp_path / "env/mpirun").unlink()
    assert launchers.find_mpirun() == str(tmp_path / "path/mpirun")
    (tmp_path / "path/mpirun").unlink()
    with pytest.raises(launchers.LauncherError, match=r"no mpirun beside .*env/python or on PATH"):
        launchers.find_mpirun()
