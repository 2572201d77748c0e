"""One rehearsal cluster of four nodes with two GPUs each, for all tests that need no other."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hvdkan import record
from tests.cluster.needs import required

ROOT = Path(__file__).resolve().parents[2]
NAME = f"line{os.getpid()}"
_FOREIGN = ("SLURM_", "OMPI_", "PMIX_", "PRTE_", "HOROVOD_")


@pytest.fixture(scope="session")
def cluster():
    """The cluster's name; it is up for as long as tests run that asked for it."""
    required(rate=False)
    command = [sys.executable, "-m", "jobs.rehearsal"]
    try:
        subprocess.run(
            [*command, "up", "--name", NAME, "--nodes", "4", "--gpus-per-node", "2"], check=True, cwd=ROOT, timeout=240
        )
        yield NAME
    finally:
        subprocess.run([*command, "down", "--name", NAME], check=True, cwd=ROOT, timeout=120)


@pytest.fixture(scope="session")
def start(cluster):
    """Start a shell script on the cluster, in a process group of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}

    def begin(script):
        lines = f'eval "$({sys.executable} -m jobs.rehearsal env --name {cluster})"\n{script}'
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(["bash", "-c", lines], cwd=ROOT, env=kept, start_new_session=True, **pipes)

    return begin


@pytest.fixture(scope="session")
def shell(start):
    """Run a shell script on the cluster to its end."""

    def run(script, timeout=120):
        process = start(script)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(f"{script}\nwas still running after {timeout} s\n{process.communicate()}")
        return subprocess.CompletedProcess(script, process.returncode, out, err)

    return run


@pytest.fixture(scope="session")
def small():
    """Settings of a short run: on 8 ranks, the last batch of an epoch uneven."""
    return "--samples 1100 --global-batch-size 300 --epochs 2 --hidden 8 --grid 5 --probe-steps 5 --threads 1"


@pytest.fixture(scope="session")
def single(tmp_path_factory, small):
    """The record of such a run on one process."""
    path = tmp_path_factory.mktemp("single") / "r.jsonl"
    command = [sys.executable, "-m", "hvdkan.train", "--backend", "single", *small.split(), "--record", path]
    subprocess.run(command, check=True, cwd=ROOT, timeout=120)
    return record.read(path).records[0]
