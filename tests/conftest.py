"""Real launchers for tests: nothing here stands in for MPI, Horovod or torch."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# A shell starts background jobs with SIGINT ignored, nohup ignores SIGHUP, and what they start inherits that: here
# they must act.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
HERE = Path(__file__).parent
BIN = Path(sys.executable).parent

# Ranks share two cores in tests: they must yield while they wait, and Open MPI must be told that this is meant.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
_CLEARED = ("HOROVOD_", "OMPI_", "PMIX_", "PMI_", "SLURM_", "PRTE_")


def clean_environment(extra=None):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_CLEARED)}
    return {**kept, "PATH": f"{BIN}:{kept['PATH']}", **ENVIRONMENT, **(extra or {})}


def tool(name):
    """The path of a launcher, the environment's own first."""
    own = BIN / name
    return str(own) if own.exists() else shutil.which(name)


def needed(name):
    """A launcher's path; without it the test is skipped by name, but for CI, which has all of them."""
    program = tool(name)
    if program is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no {name} beside python or on PATH")
    return program


def start(command, timeout, env=None, cwd=None):
    """Run a command; its whole process group dies with it when the time is up."""
    with subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(env),
        cwd=cwd or HERE.parent,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"{' '.join(map(str, command))} was still running after {timeout} s\n{out}\n{err}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.fixture(scope="session")
def alone():
    """Run ``python ARGUMENTS`` as one process."""
    return lambda *arguments, timeout=120, **options: start([sys.executable, *arguments], timeout, **options)


@pytest.fixture(scope="session")
def mpirun():
    """Run ``mpirun -n RANKS python ARGUMENTS``."""
    program = needed("mpirun")

    def run(ranks, *arguments, timeout=120, **options):
        command = [program, "-n", ranks, "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", sys.executable, *arguments]
        return start(command, timeout, **options)

    return run


@pytest.fixture(scope="session")
def torchrun():
    """Run ``torchrun`` with RANKS processes on a free port."""

    def run(ranks, *arguments, timeout=120, **options):
        command = [needed("torchrun"), "--standalone", "--nproc-per-node", ranks, *arguments]
        return start(command, timeout, **options)

    return run


@pytest.fixture(scope="session")
def horovodrun():
    """Run ``horovodrun --gloo`` with RANKS processes on this machine."""

    def run(ranks, *arguments, timeout=120, **options):
        command = [needed("horovodrun"), "--gloo", "-np", ranks, sys.executable, *arguments]
        return start(command, timeout, **options)

    return run
