"""One Slurm task a node that sees several GPUs: start a step inside with a worker for each of them.

``srun -N4 --gpus-per-node=2 python -m hvdkan.train`` starts four tasks, one a node, with two GPUs visible to each. Its
user means eight workers. The first task becomes an ``srun`` of eight within the same allocation; the others leave.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from hvdkan.launcher import Launcher

#: Set in the step inside, so that it starts no other.
MARK = "HVDKAN_NESTED"
#: What describes the step outside and would be taken for options of the one inside, or for its ranks.
_OF_THE_STEP = ("SLURM_", "SRUN_", "PMI_", "PMI2_", "PMIX_", "OMPI_COMM_WORLD_")
_KEPT = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_JWT")
_OWN_NAMES = ("", "nodevfiles", "-1")


@dataclass(frozen=True)
class Nested:
    """The step to start: ``workers`` on each of ``nodes``; ``cpus`` are those that each node's workers share."""

    job: str
    nodes: int
    workers: int
    cpus: int
    mpi: str | None

    def command(self, arguments: list[str]) -> list[str]:
        """The words that start ``arguments`` as the step inside."""
        # It takes what the outer step holds (--overlap), and starts even where that is too few cores (--overcommit).
        words = ["srun", "--overlap", f"--jobid={self.job}", f"--nodes={self.nodes}"]
        words += [f"--ntasks={self.nodes * self.workers}", f"--ntasks-per-node={self.workers}"]
        words += [f"--gpus-per-node={self.workers}", "--kill-on-bad-exit=1"]
        if self.cpus >= self.workers:
            words.append(f"--cpus-per-task={self.cpus // self.workers}")
        else:
            words.append("--overcommit")
        if self.mpi is not None:
            words.append(f"--mpi={self.mpi}")
        return [*words, *arguments]

    def said(self) -> str:
        """One line on what is done, with a warning where workers must share a core."""
        text = f"{self.nodes} tasks see {self.workers} GPUs each: starting {self.nodes * self.workers} workers"
        if self.cpus < self.workers:
            text += f"; WARNING: they share {self.cpus} CPU a node, ask for more with --cpus-per-task"
        return f"hvdkan: {text} (--one-worker-per-task starts none)"


def visible_gpus(environment: Mapping[str, str]) -> int:
    """How many devices CUDA_VISIBLE_DEVICES names: numbers, UUIDs or MIG instances, but not ``-1`` or NoDevFiles."""
    names = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return 0 if any(name.lower() in _OWN_NAMES for name in names) else len(names)


def wanted(launcher: Launcher, environment: Mapping[str, str] = os.environ) -> Nested | None:
    """The step to start inside this one, or None where Slurm started what was meant."""
    if launcher.kind != "srun" or MARK in environment or "SLURM_NTASKS_PER_NODE" in environment:
        return None
    nodes, workers = environment.get("SLURM_STEP_NUM_NODES", ""), visible_gpus(environment)
    if not nodes.isdigit() or int(nodes) != launcher.size or workers < 2:
        return None
    cpus = environment.get("SLURM_CPUS_ON_NODE", "")
    return Nested(
        job=environment["SLURM_JOB_ID"],
        nodes=int(nodes),
        workers=workers,
        cpus=int(cpus) if cpus.isdigit() else workers,
        mpi="pmix" if "PMIX_RANK" in environment else "pmi2" if "PMI_RANK" in environment else None,
    )


def environment_inside(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without the outer step's description of itself."""
    kept = {name: value for name, value in environment.items() if name in _KEPT or not name.startswith(_OF_THE_STEP)}
    return {**kept, MARK: "1"}


def start(nested: Nested, launcher: Launcher, arguments: list[str]) -> NoReturn:
    """Become the step inside, on the first task; leave, on the others."""
    if launcher.rank != 0:
        sys.exit(0)
    program = shutil.which("srun") or "srun"
    print(nested.said(), file=sys.stderr, flush=True)
    os.execve(program, nested.command(arguments), environment_inside(os.environ))
