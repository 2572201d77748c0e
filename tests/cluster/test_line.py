"""The line as users type it, under a real Slurm: one task a node, two GPUs visible to each, eight workers meant."""

import json
import subprocess
from pathlib import Path

import pytest

from hvdkan import record
from jobs.rehearsal.cluster import namespace

pytestmark = pytest.mark.cluster
COUNTED = Path(__file__).parent / "programs" / "counted_runs.py"
FAULTY = Path(__file__).resolve().parents[1] / "hvdkan" / "programs" / "faulty.py"
LINE = "srun -N4 --gpus-per-node=2 python -m hvdkan.train"


@pytest.mark.parametrize(
    ("before", "after", "allreduce"),
    [
        ("HOROVOD_HIERARCHICAL_ALLREDUCE=0", "", "flat"),
        ("HOROVOD_HIERARCHICAL_ALLREDUCE=1", "", "hierarchical"),
        ("HOROVOD_HIERARCHICAL_ALLREDUCE=1", "--backend ddp", "hierarchical"),
        ("HOROVOD_HIERARCHICAL_ALLREDUCE=1", "--backend mpi", "hierarchical"),
    ],
)
def test_the_line_trains_on_eight_workers(shell, small, single, tmp_path, before, after, allreduce):
    path = tmp_path / "r.jsonl"
    done = shell(f"{before} {LINE} {small} {after} --record {path}")
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
def test_with_tasks_given_nothing_special_happens(shell, small, single, tmp_path, distribution):
    path = tmp_path / "r.jsonl"
    line = f"srun -N4 --ntasks-per-node=2 --gpus-per-node=2 --distribution={distribution} python -m hvdkan.train"
    done = shell(f"{line} {small} --allreduce hierarchical --record {path}")
    assert done.returncode == 0, done.stderr
    assert "starting" not in done.stderr
    (found,) = record.read(path).records
    assert found["placement"] == "8G4N"
    nodes = [rank["node"] for rank in found["ranks"]]
    assert nodes == ([0, 0, 1, 1, 2, 2, 3, 3] if distribution == "block" else [0, 1, 2, 3, 0, 1, 2, 3])
    assert found["epoch_loss"] == pytest.approx(single["epoch_loss"], rel=1e-5)


def test_the_off_switch(shell, small, tmp_path):
    path = tmp_path / "r.jsonl"
    done = shell(f"{LINE} {small} --one-worker-per-task --allreduce hierarchical --record {path}")
    assert done.returncode == 0, done.stderr
    (found,) = record.read(path).records
    assert found["placement"] == "4G4N"
    assert found["effective"]["allreduce"] == "flat"
    assert found["effective"]["reason"] == "one worker per node"


def test_ranks_that_do_not_find_each_other_do_not_train(shell, small, tmp_path):
    path = tmp_path / "r.jsonl"
    done = shell(f"srun --mpi=none -N2 --ntasks-per-node=1 python -m hvdkan.train {small} --record {path}")
    assert done.returncode == 2
    assert "error: srun started 2 ranks (SLURM_STEP_NUM_TASKS), but MPI (mpi4py) sees 1: probably srun's --mpi" in (
        done.stderr
    )
    assert not path.exists()


def test_mpirun_inside_an_allocation(shell, small, single, tmp_path):
    path = tmp_path / "r.jsonl"
    inside = f"mpirun -n 8 --bind-to none python -m hvdkan.train {small} --allreduce hierarchical --record {path}"
    done = shell(f"salloc -Q -N4 --ntasks-per-node=2 {inside}")
    assert done.returncode == 0, done.stderr
    (found,) = record.read(path).records
    assert found["placement"] == "8G4N"
    assert found["launcher"] == "mpirun"
    assert found["epoch_loss"] == pytest.approx(single["epoch_loss"], rel=1e-5)


def test_no_rank_sends_before_those_of_other_nodes_have_left_mpi_init(shell, tmp_path):
    done = shell(f"srun -N4 --ntasks-per-node=2 python {FAULTY.with_name('leave_init.py')} {tmp_path}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("together") == 8


@pytest.mark.parametrize("backend", ["horovod", "ddp", "mpi"])
def test_one_rank_that_raises_ends_the_job(shell, small, tmp_path, backend):
    """Unbound: Horovod's threads starve for minutes on one core that another rank spins on."""
    path = tmp_path / "r.jsonl"
    line = f"srun -N2 --ntasks-per-node=1 --cpu-bind=none python {FAULTY} full 3"
    done = shell(f"{line} --backend {backend} {small} --record {path}", timeout=60)
    assert done.returncode not in (0, None)
    assert "rank 1 on" in done.stderr
    first = done.stderr.index("rank 1 on")
    assert "No space left on device" in done.stderr[first:]
    assert "rank 0 on" not in done.stderr[:first] and "srun: error" not in done.stderr[:first]
    (found,) = record.read(path).records
    assert (found["status"], found["error"]["rank"]) == ("failed", 1)


def sent(cluster):
    """Bytes that left the nodes so far, as their interfaces count them."""
    total = 0
    for node in range(1, 5):
        command = ["ip", "netns", "exec", namespace(cluster, f"node{node}"), "cat", "/proc/net/dev"]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        total += sum(int(line.split()[9]) for line in lines if line.strip().startswith("eth0:"))
    return total


BYTES = {
    # Ranks 0 and 1 share a node, and so on. Reduce-scatter by halving and its mirror: of each rank's n, n/2 goes to a
    # rank four further and n/4 to one two further, on another node; twice, for two ranks.
    ("horovod", 0): 3.0,
    # Halves are all-reduced among four nodes by each of two ranks: 2 x 2 x 3/4 x n/2.
    ("horovod", 1): 1.5,
    # Six of eight parts go to other nodes; in the ring of the all-gather one rank of two has its neighbour there.
    ("ddp", 0): 2 * 6 / 8 + 7 / 8,
    ("ddp", 1): 1.5,
}


def test_the_variable_changes_the_bytes_between_nodes(shell, tmp_path):
    flags = "--hidden 256 --samples 8000 --global-batch-size 80 --epochs 1 --probe-steps 0 --threads 1"
    lines = [f"HOROVOD_HIERARCHICAL_ALLREDUCE={variable} {flags} --backend {backend}\n" for backend, variable in BYTES]
    runs, path, counts = tmp_path / "runs", tmp_path / "r.jsonl", tmp_path / "counts"
    runs.write_text("".join(lines))
    done = shell(f"srun -N4 --ntasks-per-node=2 python {COUNTED} {runs} {path} {counts}", timeout=240)
    assert done.returncode == 0, done.stderr
    found = record.read(path).records
    gradients = {}
    for which, crossed, one in zip(BYTES, json.loads(counts.read_text()), found, strict=True):
        assert one["effective"]["allreduce"] == ("flat", "hierarchical")[which[1]]
        gradients[which] = crossed / 4 / (one["steps"] * one["grad_bytes"])
    # Never less than the schedule moves; headers, acknowledgements and the start are some more.
    assert all(BYTES[which] < gradients[which] < 1.25 * BYTES[which] for which in BYTES), gradients


def test_han_changes_the_bytes_between_nodes(shell, cluster, tmp_path):
    """A priority is no proof. Where neighbours are on other nodes, flat all-reduce crosses with its big halves."""
    flags = "--hidden 256 --samples 8000 --global-batch-size 80 --epochs 1 --probe-steps 0 --threads 1 --engine han"
    crossed, found = {}, {}
    for allreduce in ("flat", "hierarchical"):
        path = tmp_path / f"{allreduce}.jsonl"
        before = sent(cluster)
        line = "srun -N4 --ntasks-per-node=2 --distribution=cyclic python -m hvdkan.train --backend horovod"
        done = shell(f"{line} {flags} --allreduce {allreduce} --record {path}")
        assert done.returncode == 0, done.stderr
        (made,) = record.read(path).records
        found[allreduce] = made["effective"]
        crossed[allreduce] = (sent(cluster) - before) / 4 / (made["steps"] * made["grad_bytes"])
    assert (found["flat"]["engine"], found["hierarchical"]["engine"]) == ("builtin", "han")
    assert found["hierarchical"]["allreduce"] == "hierarchical"
    assert found["hierarchical"]["evidence"]["coll_han_priority"] == 100
    assert crossed["hierarchical"] < 0.75 * crossed["flat"], crossed
