"""Preflight on a real Slurm whose nodes talk over shaped links, one of which is then made slow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.rehearsal import cluster as names
from tests.cluster.needs import required

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[2]
NAME = f"pre{os.getpid()}"
_FOREIGN = ("SLURM_", "OMPI_", "PMIX_", "PRTE_", "HOROVOD_")


def shell(script, timeout=180):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    lines = f'eval "$({sys.executable} -m jobs.rehearsal env --name {NAME})"\n{script}'
    words = {"cwd": ROOT, "env": kept, "capture_output": True, "text": True, "timeout": timeout, "check": False}
    return subprocess.run(["bash", "-c", lines], **words)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    required(rate=True)
    command = [sys.executable, "-m", "jobs.rehearsal"]
    up = ["up", "--name", NAME, "--nodes", "4", "--gpus-per-node", "2", "--cross-rate", "200mbit"]
    try:
        subprocess.run([*command, *up], check=True, cwd=ROOT, timeout=240)
        yield
    finally:
        subprocess.run([*command, "down", "--name", NAME], check=True, cwd=ROOT, timeout=120)


@pytest.fixture
def slow_link():
    """What enters node3 comes at a tenth of the rate, for one test."""
    port = names.port(NAME, "node3")
    before = ["tbf", "rate", "200mbit", "burst", "6250b", "limit", "2097152b"]
    shape(port, "tbf", "rate", "20mbit", "burst", "4kb", "latency", "50ms")
    yield
    shape(port, *before)


def shape(port, *words):
    subprocess.run(["tc", "qdisc", "replace", "dev", port, "root", *words], check=True)


def found(path, check):
    return [one for one in json.loads(path.read_text())["findings"] if one["check"] == check]


def pairs(path):
    return sorted(one["text"].partition(":")[0] for one in found(path, "link"))


def test_alike_links_are_not_named(tmp_path):
    path = tmp_path / "f.json"
    done = shell(f"srun --mpi=pmix -N4 --gpus-per-node=2 python -m jobs.preflight --json {path}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert pairs(path) == []
    assert found(path, "links")[0]["text"].startswith("6 pairs of nodes, medians: latency ")
    assert "; emulated nodes of one machine: " in found(path, "links")[0]["text"]
    assert found(path, "placement")[0]["text"] == "4G4N: node1 1, node2 1, node3 1, node4 1"
    assert found(path, "world")[0]["level"] == "ok"
    assert found(path, "srun")[0]["text"].startswith("pmix serves Open MPI ")
    assert found(path, "clock")[0]["level"] == "ok"
    (workers,) = found(path, "workers")
    assert workers["text"].startswith("hvdkan.train would start 8 workers here, 2 a node")
    assert done.stdout.splitlines()[-1].endswith("0 failures; 4 ranks on 4 nodes")


def test_the_pairs_of_the_slow_link_are_named_and_no_others(slow_link, tmp_path):
    path = tmp_path / "f.json"
    done = shell(f"srun --mpi=pmix -N4 python -m jobs.preflight --json {path}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert pairs(path) == ["node1 - node3", "node2 - node3", "node3 - node4"]
    for one in found(path, "link"):
        assert one["level"] == "warning"
        assert one["remedy"].startswith("see to the link of node3 ")
    assert done.stdout.count("warning  link: ") == 3
    measured = {(one["first"], one["second"]): one for one in json.loads(path.read_text())["links"]}
    assert len(measured) == 6
    # Only the way into node3 is slow: 20 Mbit/s are 2.5 million bytes.
    assert 1e6 < measured["node1", "node3"]["there"] < 2.6e6 < 5e6 < measured["node1", "node3"]["back"]
    assert 1e6 < measured["node3", "node4"]["back"] < 2.6e6 < 5e6 < measured["node3", "node4"]["there"]


def test_ranks_that_find_no_pmi_are_told_which_fits():
    done = shell("srun --mpi=none -N2 -n2 python -m jobs.preflight")
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert said.count("failure srun: started without a PMI") == 1
    assert "; remedy: srun --mpi=pmix ..." in said
    assert "srun started 2 ranks (SLURM_STEP_NUM_TASKS), but MPI (mpi4py) sees 1" in said
    # Open MPI's own page of text does not come: MPI is not started.
    assert "MPI_Init" not in done.stderr


def test_under_mpirun_in_an_allocation_the_ranks_are_those_of_mpi():
    done = shell(
        "salloc -Q -N4 --ntasks-per-node=1 mpirun -n 8 --map-by ppr:2:node:OVERSUBSCRIBE --bind-to none "
        "python -m jobs.preflight"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "ok world: mpirun started 8 ranks (OMPI_COMM_WORLD_SIZE), MPI (mpi4py) sees 8" in said
    assert "ok placement: 8G4N: node1 2, node2 2, node3 2, node4 2" in said
