"""Which processes belong to a cluster, and their end.

A process belongs to it when its environment holds the cluster's mark (daemons, and what `up` started), when it lives in
one of the cluster's network namespaces or sees a host's /dev/shm (everything on a node; slurmstepd overwrites its
environment), or when it is one of Slurm's commands talking to this cluster from outside (they would wait for a
controller that is gone).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from jobs.rehearsal import config, network
from jobs.rehearsal.commands import MARK

_SLURM_COMMANDS = {"srun", "salloc", "sbatch", "scancel", "squeue", "scontrol", "sinfo", "sattach"}


def members(name: str, directories: Iterable[Path] = ()) -> list[int]:
    """The ids of the processes of the cluster ``name`` in any of ``directories``; never this one or one above it."""
    spaces = set()
    for space in network.namespaces(name):
        with contextlib.suppress(OSError):
            spaces.add(_identity(network.RUN_NETNS / space))
    mark = f"{MARK}={name}".encode()
    mounts = f" - tmpfs {config.mount_mark(name)} ".encode()
    configurations = {f"SLURM_CONF={directory}/slurm.conf".encode() for directory in directories}
    spared = _ancestors()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(entry.name) in spared or _is_dead(entry):
                continue
            variables = (entry / "environ").read_bytes().split(b"\0")
            if (
                mark in variables
                or (spaces and _identity(entry / "ns" / "net") in spaces)
                or mounts in (entry / "mountinfo").read_bytes()
                or (configurations.intersection(variables) and _command(entry) in _SLURM_COMMANDS)
            ):
                found.append(int(entry.name))
    return found


def end(name: str, directories: Iterable[Path] = (), grace_s: float = 3.0) -> int:
    """End every process of the cluster: SIGTERM, and after ``grace_s`` SIGKILL until none is left.

    Returns how many there were when it began; raises :class:`TimeoutError` naming what could not be ended.
    """
    directories = list(directories)
    first = members(name, directories)
    _signal(first, signal.SIGTERM)
    until = time.monotonic() + (grace_s if first else 0.0)
    while time.monotonic() < until and members(name, directories):
        time.sleep(0.1)
    until = time.monotonic() + 20.0
    while left := members(name, directories):
        if time.monotonic() > until:
            raise TimeoutError(f"processes {sorted(left)} do not end")
        _signal(left, signal.SIGKILL)
        time.sleep(0.05)
    return len(first)


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            # A stopped process takes no SIGTERM before it goes on.
            os.kill(pid, signal.SIGCONT)


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _is_dead(entry: Path) -> bool:
    return _stat(entry)[0] in (b"Z", b"X")


def _stat(entry: Path) -> list[bytes]:
    """State, parent and so on; the command's name before them, in brackets, may hold anything."""
    return (entry / "stat").read_bytes().rpartition(b")")[2].split()


def _command(entry: Path) -> str:
    return (entry / "comm").read_text().strip()


def _ancestors() -> set[int]:
    pids, pid = set(), os.getpid()
    while pid > 1:
        pids.add(pid)
        try:
            pid = int(_stat(Path("/proc") / str(pid))[1])
        except OSError:
            break
    return pids
