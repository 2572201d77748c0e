"""How one launch is started: each launcher is a small class that returns a command and its environment.

Commands are lists of words: nothing here goes through a shell.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from hvdkan.config import VARIABLE

#: Open MPI 5 asks PRRTE for leave too.
_AS_ROOT = (
    "OMPI_ALLOW_RUN_AS_ROOT",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    "PRTE_ALLOW_RUN_AS_ROOT",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
)
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class LauncherError(ValueError):
    """A launcher that cannot act here; the message is one line."""


class Mpirun:
    """Every launch under mpirun, on this machine or in the allocation around it."""

    def command(self, ranks: int, program: list[str]) -> list[str]:
        """The words that start ``program`` on ``ranks`` ranks. Raises :class:`LauncherError` without an mpirun."""
        # Bound or not, yielding or not: the same for every variant. Ranks that share a core and do not yield starve.
        options = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
        return [find_mpirun(), "-n", str(ranks), *options, *program]

    def environment(self, threads: int) -> dict[str, str]:
        """What a launch needs in its environment beside what is there."""
        as_root = dict.fromkeys(_AS_ROOT, "1") if os.geteuid() == 0 else {}
        return dict.fromkeys(_THREADS, str(threads)) | as_root | {"PYTHONUNBUFFERED": "1"}


class Local(Mpirun):
    """On this machine: one rank as a plain process, several under mpirun."""

    def command(self, ranks: int, program: list[str]) -> list[str]:
        return program if ranks == 1 else super().command(ranks, program)


LAUNCHERS = {"local": Local, "mpirun": Mpirun}


def find_mpirun() -> str:
    """The mpirun beside the running Python, else the first on PATH. Raises :class:`LauncherError`."""
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("mpirun")
    if found is None:
        raise LauncherError(f"no mpirun beside {sys.executable} or on PATH; `make setup` brings one")
    return found


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without what would change a variant behind the plan's back."""
    return {name: value for name, value in environment.items() if name != VARIABLE}
