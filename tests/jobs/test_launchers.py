"""The words of a command, exactly."""

import os
import shlex
import sys
from pathlib import Path

import pytest

from jobs import launchers
from jobs.launch import command, flags_of
from jobs.plan import parse
from jobs.sites import Site, SiteError
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


# --- at a site ---

SITE = Site(2, 8, "02:00:00", gres="gpu:a100", environment={"SITE_VARIABLE": "site"})
SRUN = (
    "srun --nodes={nodes} --relative=0 --ntasks={ranks} --ntasks-per-node={each} --cpus-per-task=8 "
    "--gres=gpu:a100:{each} --mpi=pmix --cpu-bind=cores --kill-on-bad-exit=1 --export=ALL --time=6 program"
)


def at(site, kind, ranks, nodes, **more):
    words = launchers.AT_SITE[kind](site, 300.0, **more).command(ranks, ["program"], nodes)
    return shlex.join("MPIRUN" if word == launchers.find_mpirun() else word for word in words)


def test_srun_asks_for_the_placement_on_the_first_nodes():
    for ranks, nodes, each in [(1, 1, 1), (2, 1, 2), (2, 2, 1), (4, 2, 2), (4, 4, 1), (8, 4, 2)]:
        assert at(SITE, "srun", ranks, nodes) == SRUN.format(nodes=nodes, ranks=ranks, each=each)
    assert at(SITE, "srun", 8, None) == SRUN.format(nodes=4, ranks=8, each=2)


def test_srun_says_what_the_site_says():
    site = Site(2, 1, "60", mpi="pmi2", bind="none", srun_options=("--label",))
    assert at(site, "srun", 4, 2) == (
        "srun --nodes=2 --relative=0 --ntasks=4 --ntasks-per-node=2 --cpus-per-task=1 --mpi=pmi2 --cpu-bind=none "
        "--kill-on-bad-exit=1 --export=ALL --time=6 --label program"
    )


def test_mpirun_in_an_allocation_fills_the_first_nodes():
    assert at(SITE, "mpirun", 4, 4) == "MPIRUN -n 4 --map-by ppr:1:node:PE=8 --bind-to core program"
    site = Site(2, 1, "60", bind="none", mpirun_options=("--mca", "pml", "ucx"))
    assert at(site, "mpirun", 8, 4) == "MPIRUN -n 8 --map-by ppr:2:node --bind-to none --mca pml ucx program"


def test_a_site_has_no_more_room_than_it_says():
    with pytest.raises(SiteError, match="8G2N: 4 workers a node exceed"):
        at(SITE, "srun", 8, 2)


def test_several_nodes_are_refused_where_there_is_one_machine():
    for launcher in launchers.LAUNCHERS.values():
        assert launcher().command(4, ["program"], 1)[-1] == "program"
        with pytest.raises(launchers.LauncherError, match="4G2N needs 2 nodes; on one machine use simulate_nodes"):
            launcher().command(4, ["program"], 2)


def test_variables_of_the_site_are_set_where_no_script_does(monkeypatch):
    monkeypatch.delenv("SITE_VARIABLE", raising=False)
    assert "SITE_VARIABLE" not in launchers.Srun(SITE, 1).environment(1)
    assert launchers.Srun(SITE, 1, own_variables=True).environment(1)["SITE_VARIABLE"] == "site"
    monkeypatch.setenv("SITE_VARIABLE", "user")
    assert "SITE_VARIABLE" not in launchers.Srun(SITE, 1, own_variables=True).environment(1)


def test_a_launcher_of_an_allocation_needs_one(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(launchers.LauncherError, match="no Slurm allocation is here for srun; use salloc, or"):
        launchers.Srun(SITE, 1).ready()
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    launchers.Srun(SITE, 1).ready()
