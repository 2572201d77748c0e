"""What started this process, and what it says of rank and size, read from the environment alone."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass


class LaunchError(RuntimeError):
    """The ranks that came up are not the ranks that were started; one line that names both and a likely cause."""


@dataclass(frozen=True)
class Launcher:
    """``kind`` is mpirun, torchrun, horovodrun, srun or alone; ``variable`` is where ``size`` was read."""

    kind: str
    rank: int = 0
    size: int = 1
    variable: str = ""

    @property
    def has_mpi(self) -> bool:
        return self.kind in ("mpirun", "srun")


#: Kind, variable of the rank, variable of the size; the first whose variables are set wins. MPI's own come first:
#: under mpirun in a batch job, Slurm's describe the step that started mpirun, not the ranks.
_SOURCES = (
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE"),
    ("mpirun", "PMI_RANK", "PMI_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
# Slurm's numbers for what is no step of srun's: batch script, external and interactive steps.
_TASKS = "SLURM_STEP_NUM_TASKS"
_FIRST_SPECIAL_STEP = 4294967290


def detect(environment: Mapping[str, str] = os.environ) -> Launcher:
    """The launcher of this process. Raises LaunchError where its variables are not whole numbers."""
    for kind, rank, size in _SOURCES:
        if rank in environment and size in environment and _is_launch(kind, size, environment):
            try:
                return Launcher(kind, int(environment[rank]), int(environment[size]), size)
            except ValueError:
                shown = f"{rank}={environment[rank]!r} and {size}={environment[size]!r}"
                raise LaunchError(f"{shown} must be whole numbers; {kind} sets them") from None
    world = environment.get("WORLD_SIZE", "")
    if "RANK" in environment and world.isdigit() and int(world) > 1:
        # Each of them would train all by itself, and say so to nobody.
        raise LaunchError(
            f"RANK={environment['RANK']!r} and WORLD_SIZE={world!r} are set, but no launcher started this process; "
            "start it with torchrun, mpirun or srun, or unset them"
        )
    return Launcher("alone")


def job_of(environment: Mapping[str, str] = os.environ) -> str:
    """What all ranks of a job share before they can talk: the launcher's own name of it, else their parent process."""
    step = environment.get("SLURM_JOB_ID", "") + "." + environment.get("SLURM_STEP_ID", "")
    named = environment.get("PMIX_NAMESPACE") or (step if detect(environment).kind == "srun" else "")
    return named or f"{socket.gethostname()}.{os.getppid()}"


def _is_launch(kind: str, size: str, environment: Mapping[str, str]) -> bool:
    if kind == "torchrun":
        return "TORCHELASTIC_RUN_ID" in environment
    if kind == "srun":
        return _in_step(environment)
    # srun with a PMI of its own (--mpi=pmi2) sets these too, and then they say the same as Slurm's.
    return not (size == "PMI_SIZE" and _in_step(environment) and environment[size] == environment.get(_TASKS))


def _in_step(environment: Mapping[str, str]) -> bool:
    step = environment.get("SLURM_STEP_ID", "")
    return step.isdigit() and int(step) < _FIRST_SPECIAL_STEP


def check_size(launcher: Launcher, size: int, library: str) -> None:
    """Stop a job whose processes each believe to be alone. Raises LaunchError."""
    if size == launcher.size:
        return
    causes = {
        "srun": "srun's --mpi type does not fit this MPI (srun --mpi=list shows them; Open MPI wants pmix)",
        "mpirun": f"mpirun belongs to another MPI than the one that {library} was built with",
        "horovodrun": f"{library} was built without Gloo, or its HOROVOD_ variables did not reach the ranks",
        "torchrun": f"{library} does not take its ranks from torchrun",
        "alone": "the environment still holds another launcher's variables",
    }
    raise LaunchError(
        f"{launcher.kind} started {launcher.size} ranks ({launcher.variable or 'no launcher variable'}), but {library} "
        f"sees {size}: probably {causes[launcher.kind]}"
    )
