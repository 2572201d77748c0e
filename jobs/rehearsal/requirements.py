"""What a rehearsal cluster needs of the machine; nothing is installed, what is missing is named."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from jobs.rehearsal import commands
from jobs.rehearsal.errors import Refused

#: Program and the Debian package that brings it.
PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "munged": "munge",
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
    "hostname": "hostname",
}


def check_root() -> None:
    """Raises :class:`Refused` unless this is root."""
    if os.geteuid() != 0:
        raise Refused("a rehearsal cluster needs root: namespaces, links between them and slurmd do")


def check_programs() -> None:
    """Raises :class:`Refused` that names the missing Debian packages."""
    path = commands.bare_environment()["PATH"]
    missing = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if missing:
        packages = " ".join(dict.fromkeys(PROGRAMS[program] for program in missing))
        raise Refused(f"missing here: {', '.join(missing)}; on Debian: apt-get install {packages}")


def check_python(python: Path) -> None:
    """The Python that jobs will run has mpi4py. Raises :class:`Refused`."""
    if not python.exists():
        raise Refused(f"{python} is missing: nodes run jobs with it; make it with: make setup")
    if subprocess.run([str(python), "-c", "import mpi4py"], capture_output=True, timeout=120, check=False).returncode:
        raise Refused(f"{python} has no mpi4py, which the check of a finished cluster needs; get it with: make setup")


def check_kernel(rate: bool, delay: bool) -> None:
    """Namespaces, and the queueing disciplines that are asked for, tried in a namespace that goes at once.

    Raises :class:`Refused`.
    """
    if not _try("true"):
        raise Refused("this kernel or container lets root make no network, mount and host-name namespaces")
    if rate and not _try("tc qdisc add dev lo root tbf rate 1mbit burst 4kb limit 1mb"):
        raise Refused("--cross-rate needs the kernel's tbf queueing discipline (sch_tbf), which is not here")
    if delay and not _try("tc qdisc add dev lo root netem delay 1ms"):
        raise Refused("--cross-delay needs the kernel's netem queueing discipline (sch_netem), which is not here")


def _try(script: str) -> bool:
    command = ["unshare", "--net", "--mount", "--uts", "--ipc", "sh", "-c", script]
    environment = commands.bare_environment()
    return not subprocess.run(command, capture_output=True, timeout=60, env=environment, check=False).returncode
