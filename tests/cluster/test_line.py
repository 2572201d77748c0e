"""The line as users type it, under a real Slurm: one task a node, two GPUs visible to each, eight workers meant."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvdkan import record
from jobs.rehearsal import requirements
from jobs.rehearsal.errors import RehearsalError

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[2]
NAME = f"line{os.getpid()}"
LINE = "srun -N4 --gpus-per-node=2 python -m hvdkan.train"
#: 8 ranks, the last batch of an epoch uneven.
SMALL = "--samples 1100 --global-batch-size 300 --epochs 2 --hidden 8 --grid 5 --probe-steps 5 --threads 1"
_FOREIGN = ("SLURM_", "OMPI_", "PMIX_", "PRTE_", "HOROVOD_")


def shell(script, timeout=120):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    lines = f'eval "$({sys.executable} -m jobs.rehearsal env --name {NAME})"\n{script}'
    return subprocess.run(
        ["bash", "-c", lines], cwd=ROOT, env=kept, capture_output=True, text=True, timeout=timeout, check=False
    )


@pytest.fixture(scope="module", autouse=True)
def cluster():
    try:
        requirements.check_root()
        requirements.check_programs()
        requirements.check_kernel(rate=False, delay=False)
    except RehearsalError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))
    command = [sys.executable, "-m", "jobs.rehearsal"]
    try:
        subprocess.run(
            [*command, "up", "--name", NAME, "--nodes", "4", "--gpus-per-node", "2"], check=True, cwd=ROOT, timeout=240
        )
        yield
    finally:
        subprocess.run([*command, "down", "--name", NAME], check=True, cwd=ROOT, timeout=120)


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    path = tmp_path_factory.mktemp("single") / "r.jsonl"
    subprocess.run(
        [sys.executable, "-m", "hvdkan.train", "--backend", "single", *SMALL.split(), "--record", path],
        check=True,
        cwd=ROOT,
        timeout=120,
    )
    return record.read(path).records[0]


@pytest.mark.parametrize(
    ("before", "after", "allreduce"),
    [
        ("", "", "stock"),
        ("HOROVOD_HIERARCHICAL_ALLREDUCE=0", "", "flat"),
        ("HOROVOD_HIERARCHICAL_ALLREDUCE=1", "", "hierarchical"),
        ("HOROVOD_HIERARCHICAL_ALLREDUCE=1", "--backend ddp", "hierarchical"),
        ("HOROVOD_HIERARCHICAL_ALLREDUCE=1", "--backend mpi", "hierarchical"),
    ],
)
def test_the_line_trains_on_eight_workers(single, tmp_path, before, after, allreduce):
    path = tmp_path / "r.jsonl"
    done = shell(f"{before} {LINE} {SMALL} {after} --record {path}")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("4 tasks see 2 GPUs each: starting 8 workers") == 1
    assert "WARNING: they share 1 CPU a node" in done.stderr
    (found,) = record.read(path).records
    assert found["placement"] == "8G4N"
    assert len(found["ranks_per_host"]) == 4
    assert found["emulated"] is True
    assert found["simulated_topology"] is False
    assert found["effective"]["allreduce"] == allreduce
    assert found["effective"]["reason"] is None
    assert found["epoch_loss"] == pytest.approx(single["epoch_loss"], rel=1e-5)


@pytest.mark.parametrize("distribution", ["block", "cyclic"])
def test_with_tasks_given_nothing_special_happens(single, tmp_path, distribution):
    path = tmp_path / "r.jsonl"
    line = f"srun -N4 --ntasks-per-node=2 --gpus-per-node=2 --distribution={distribution} python -m hvdkan.train"
    done = shell(f"{line} {SMALL} --allreduce hierarchical --record {path}")
    assert done.returncode == 0, done.stderr
    assert "starting" not in done.stderr
    (found,) = record.read(path).records
    assert found["placement"] == "8G4N"
    nodes = [rank["node"] for rank in found["ranks"]]
    assert nodes == ([0, 0, 1, 1, 2, 2, 3, 3] if distribution == "block" else [0, 1, 2, 3, 0, 1, 2, 3])
    assert found["epoch_loss"] == pytest.approx(single["epoch_loss"], rel=1e-5)


def test_the_off_switch(tmp_path):
    path = tmp_path / "r.jsonl"
    done = shell(f"{LINE} {SMALL} --one-worker-per-task --allreduce hierarchical --record {path}")
    assert done.returncode == 0, done.stderr
    (found,) = record.read(path).records
    assert found["placement"] == "4G4N"
    assert found["effective"]["allreduce"] == "flat"
    assert found["effective"]["reason"] == "one worker per node"


def test_ranks_that_do_not_find_each_other_do_not_train(tmp_path):
    path = tmp_path / "r.jsonl"
    done = shell(f"srun --mpi=none -N2 --ntasks-per-node=1 python -m hvdkan.train {SMALL} --record {path}")
    assert done.returncode == 2
    assert "error: srun started 2 ranks (SLURM_STEP_NUM_TASKS), but MPI (mpi4py) sees 1: probably srun's --mpi" in (
        done.stderr
    )
    assert not path.exists()


def test_mpirun_inside_an_allocation(single, tmp_path):
    path = tmp_path / "r.jsonl"
    inside = f"mpirun -n 8 --bind-to none python -m hvdkan.train {SMALL} --allreduce hierarchical --record {path}"
    done = shell(f"salloc -Q -N4 --ntasks-per-node=2 {inside}")
    assert done.returncode == 0, done.stderr
    (found,) = record.read(path).records
    assert found["placement"] == "8G4N"
    assert found["launcher"] == "mpirun"
    assert found["epoch_loss"] == pytest.approx(single["epoch_loss"], rel=1e-5)
