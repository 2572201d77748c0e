"""One MPI only: two in one process are the classic crash, and an mpirun of another one starts N jobs of one rank."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdkan.launcher import Launcher
from jobs.preflight.findings import Finding, failure, named, ok, warning

_LIBRARY = re.compile(r"libmpi(ch|_cray|_gnu|_intel|_nvidia|_amd)?(_\d+)*\.so")
_TIMEOUT_S = 10
#: What a launcher says of its ranks must not reach the tools that are asked here.
_OF_A_LAUNCH = ("SLURM_", "SRUN_", "PMI_", "PMIX_", "OMPI_COMM_", "PRTE_MCA_", "OMPI_MCA_")
_KEPT = ("SLURM_CONF",)
#: Names as libraries and mpirun write them, in an order that tells derivatives from what they derive from.
_NAMES = (
    ("Open MPI", r"Open MPI\)? v?([\d.]+\d)"),
    ("Intel MPI", r"Intel\(R\) MPI Library.*?(?:Version )?(\d{4}[\d.]*)"),
    ("Cray MPICH", r"CRAY MPICH version ([\d.]+\d)"),
    ("MVAPICH", r"MVAPICH2? Version\s*:\s*([\d.]+\d)"),
    ("MPICH", r"MPICH Version\s*:\s*([\d.]+\d)"),
    ("MPICH", r"HYDRA build details:\s*Version:\s*([\d.]+\d)"),
)


@dataclass(frozen=True)
class Mpis:
    """The libmpi that mpi4py loaded, the one that Horovod's extension asks for, and all of the process; real paths.

    ``of_horovod`` is None where it asks for none, and its bare name where the loader does not find it.
    """

    library: str | None = None
    of_mpi4py: str | None = None
    of_horovod: str | None = None
    loaded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tool:
    """A program on PATH and what it says when it is asked."""

    path: str
    said: str
    status: int


# --- look ---


def look_mpi4py() -> tuple[str | None, str | None]:
    """What MPI calls itself and its file. Imports mpi4py without initialising MPI: before anything else loads one."""
    try:
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return None, None
    return MPI.Get_library_version().strip("\0 \n"), next(iter(loaded()), None)


def loaded() -> tuple[str, ...]:
    """The MPI libraries in this process."""
    return tuple(dict.fromkeys(os.path.realpath(path) for path in _mapped() if _LIBRARY.match(Path(path).name)))


def look_horovod() -> str | None:
    """The libmpi that Horovod's extension asks for on its own, whatever was loaded before it."""
    extension = next((path for path in _mapped() if "/horovod/torch/mpi_lib" in path), None)
    loader = next((path for path in _mapped() if re.match(r"ld-(linux|musl|[\d.]+\.so|64)", Path(path).name)), None)
    if extension is None or loader is None:
        return None
    answer = ask([loader, "--list", extension])
    return needed(answer.said if answer else "")


def needed(text: str) -> str | None:
    """The MPI library in what the dynamic loader lists: its real path, its name where it is not found, or None."""
    for line in text.splitlines():
        name, _, place = line.strip().partition(" => ")
        if _LIBRARY.match(Path(name).name):
            path = place.split(" (")[0].strip()
            return os.path.realpath(path) if path.startswith("/") else name
    return None


def look_tool(name: str, *arguments: str) -> Tool | None:
    """What a program on PATH answers. Not to be used once MPI is initialised: some MPIs do not survive a fork."""
    path = shutil.which(name)
    return None if path is None else ask([path, *arguments])


def ask(command: Sequence[str]) -> Tool | None:
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or not name.startswith(_OF_A_LAUNCH)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, env=kept, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return Tool(command[0], str(error), -1)
    return Tool(command[0], f"{done.stdout}\n{done.stderr}".strip(), done.returncode)


def _mapped() -> Iterable[str]:
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    return dict.fromkeys(line.split(None, 5)[5] for line in lines if line.count(" ") >= 5 and "/" in line)


# --- judge ---


def identity(text: str | None) -> tuple[str, str] | None:
    """Name and version of an MPI, from what its library or its mpirun says of itself."""
    for name, pattern in _NAMES:
        match = re.search(pattern, text or "", re.DOTALL)
        if match:
            return name, match[1]
    return None


def judge_one(mpis: Mpis) -> Finding | None:
    """None without mpi4py: its own finding says so."""
    if mpis.library is None:
        return None
    called = " ".join(identity(mpis.library) or (mpis.library.split(",")[0],))
    again = "set up again with the one MPI loaded that the job will load (make setup)"
    if mpis.of_horovod is not None and "/" not in mpis.of_horovod:
        return warning(
            "one MPI",
            f"{called} is mpi4py's ({mpis.of_mpi4py}); Horovod asks for {mpis.of_horovod}, which is not found",
            "load the MPI module that Horovod was built with, as the job will",
        )
    distinct = dict.fromkeys(path for path in (mpis.of_mpi4py, mpis.of_horovod, *mpis.loaded) if path)
    if len(distinct) > 1:
        shown = f"mpi4py loads {mpis.of_mpi4py}, Horovod {mpis.of_horovod}"
        others = [path for path in distinct if path not in (mpis.of_mpi4py, mpis.of_horovod)]
        return failure("one MPI", shown + (f", and there is {named(others)}" if others else ""), again)
    both = "mpi4py and Horovod" if mpis.of_horovod else "mpi4py"
    return ok("one MPI", f"{called} for {both}: {mpis.of_mpi4py or 'its file is not known'}")


def judge_mpirun(tool: Tool | None, mpis: Mpis, launcher: Launcher) -> Finding | None:
    """The mpirun on PATH belongs to the MPI in use."""
    mine = identity(mpis.library)
    if mine is None:
        return None
    if tool is None:
        if launcher.kind == "srun":
            return ok("mpirun", "none on PATH, and srun needs none")
        return warning("mpirun", f"none on PATH for {' '.join(mine)}", "load its module, or start the job with srun")
    if tool.status != 0:
        said = first_line(tool.said)
        return warning("mpirun", f"{tool.path} does not tell its version: {said}", "see whether it works at all")
    its = identity(tool.said)
    if its is None:
        return warning("mpirun", f"{tool.path} is of an unknown MPI", f"use the mpirun of {' '.join(mine)}")
    remedy = f"put the mpirun of {' '.join(mine)} first on PATH{_beside(mpis)}"
    text = f"{tool.path} is {' '.join(its)}, the ranks load {' '.join(mine)}"
    if its[0] != mine[0] and not (its[0] == "MPICH" and mine[0] == "MVAPICH"):
        return failure("mpirun", f"{text}: each rank would be rank 0 of 1", remedy)
    if its != mine and its[0] == mine[0]:
        return warning("mpirun", text, remedy)
    return ok("mpirun", f"{tool.path} is {' '.join(its)} too")


def _beside(mpis: Mpis) -> str:
    """Where the right mpirun is, if it lies where such programs do."""
    for folder in Path(mpis.of_mpi4py or "/").parents:
        if (folder / "bin" / "mpirun").exists():
            return f": {folder / 'bin'}"
    return ""


def first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
