"""The environment in which the outer shell works on a cluster: a handful of variables, and nothing else."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from jobs.rehearsal.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
_AS_ROOT = (
    "OMPI_ALLOW_RUN_AS_ROOT",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    "PRTE_ALLOW_RUN_AS_ROOT",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
)
#: What another cluster, or a job around this one, may have left in the environment.
_FOREIGN = ("SLURM_", "SALLOC_", "SBATCH_", "SRUN_", "OMPI_", "PMIX_", "PMI_", "PRTE_")


def python() -> Path:
    """The Python of jobs: the virtual environment in use, else the checkout's."""
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix) / "bin" / "python"
    return Path(os.environ.get("HVDKAN_VENV") or ROOT / ".venv").absolute() / "bin" / "python"


def variables(cluster: Cluster, path: str) -> dict[str, str]:
    """What `env` exports; ``path`` is the PATH that the environment's programs go before."""
    own = str(python().parent)
    rest = [part for part in path.split(os.pathsep) if part and part != own]
    return {
        "SLURM_CONF": str(cluster.path("slurm.conf")),
        "PATH": os.pathsep.join([own, *rest]),
        # Without it Open MPI tries the machine's other networks as well.
        "OMPI_MCA_btl_tcp_if_include": cluster.network,
        # All nodes share this machine's cores: a rank that spins while it waits holds up the one it waits for.
        "OMPI_MCA_mpi_yield_when_idle": "1",
        **dict.fromkeys(_AS_ROOT, "1"),
    }


def exports(cluster: Cluster, path: str) -> str:
    """The lines for ``eval``."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables(cluster, path).items())


def environment(cluster: Cluster, outer: Mapping[str, str]) -> dict[str, str]:
    """``outer`` with the cluster's variables, and without what belongs to another cluster or a job around."""
    kept = {name: value for name, value in outer.items() if not name.startswith(_FOREIGN)}
    return {**kept, **variables(cluster, outer.get("PATH", "/usr/bin:/bin"))}
