"""How one launch is started: each launcher is a small class that returns a command and its environment.

Commands are lists of words: nothing here goes through a shell.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from hvdkan.config import VARIABLE
from jobs.sites import Site

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

    def ready(self) -> None:
        """Raises :class:`LauncherError` where this cannot start anything here."""

    def command(self, ranks: int, program: list[str], nodes: int | None = None) -> list[str]:
        """The words that start ``program`` on ``ranks`` ranks. Raises :class:`LauncherError` without an mpirun.

        ``nodes`` is how many they are to share evenly, None where that is all the same.
        """
        if (nodes or 1) > 1:
            raise LauncherError(
                f"{ranks}G{nodes}N needs {nodes} nodes; on one machine use simulate_nodes, on a cluster a launcher "
                f"with --site"
            )
        # Bound or not, yielding or not: the same for every variant. Ranks that share a core and do not yield starve.
        options = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
        return [find_mpirun(), "-n", str(ranks), *options, *program]

    def environment(self, threads: int) -> dict[str, str]:
        """What a launch needs in its environment beside what is there."""
        as_root = dict.fromkeys(_AS_ROOT, "1") if os.geteuid() == 0 else {}
        return dict.fromkeys(_THREADS, str(threads)) | as_root | {"PYTHONUNBUFFERED": "1"}


class Local(Mpirun):
    """On this machine: one rank as a plain process, several under mpirun."""

    def command(self, ranks: int, program: list[str], nodes: int | None = None) -> list[str]:
        return program if ranks == 1 else super().command(ranks, program, nodes)


class AtSite(Mpirun):
    """In a Slurm allocation, on its first nodes: smaller placements run on nested subsets of the largest one's.

    ``limit_s`` ends a step whose runner could not. ``own_variables``: set those of the site, unless they are set.
    """

    def __init__(self, site: Site, limit_s: float, own_variables: bool = False):
        self.site, self.limit_s, self.own_variables = site, limit_s, own_variables

    def ready(self) -> None:
        if "SLURM_JOB_ID" not in os.environ:
            raise LauncherError(
                f"no Slurm allocation is here for {self.site.launcher}; use salloc, or --launcher sbatch"
            )

    def environment(self, threads: int) -> dict[str, str]:
        made = super().environment(threads)
        if self.own_variables:
            made |= {name: value for name, value in self.site.environment.items() if name not in os.environ}
        return made


class Srun(AtSite):
    """Every launch as a step of srun."""

    def command(self, ranks: int, program: list[str], nodes: int | None = None) -> list[str]:
        nodes, each = self.site.layout(ranks, nodes)
        gpus = self.site.gpus(each)
        # All said here: what is left out, srun would take from the variables of the job around.
        words = ["srun", f"--nodes={nodes}", "--relative=0", f"--ntasks={ranks}", f"--ntasks-per-node={each}"]
        words += [f"--cpus-per-task={self.site.cpus_per_worker}", *([f"--gres={gpus}"] if gpus else [])]
        words += [f"--mpi={self.site.mpi}", f"--cpu-bind={self.site.bind}", "--kill-on-bad-exit=1", "--export=ALL"]
        # In whole minutes, as Slurm counts the limits of steps.
        words += [f"--time={math.ceil(self.limit_s / 60) + 1}"]
        return [*words, *self.site.srun_options, *program]


class SiteMpirun(AtSite):
    """Every launch under mpirun, which finds the nodes of the allocation itself and fills the first ones."""

    def command(self, ranks: int, program: list[str], nodes: int | None = None) -> list[str]:
        nodes, each = self.site.layout(ranks, nodes)
        bound = self.site.bind == "cores"
        width = f":PE={self.site.cpus_per_worker}" if bound else ""
        words = [find_mpirun(), "-n", str(ranks), "--map-by", f"ppr:{each}:node{width}"]
        return [*words, "--bind-to", "core" if bound else "none", *self.site.mpirun_options, *program]


AT_SITE = {"srun": Srun, "mpirun": SiteMpirun}
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
