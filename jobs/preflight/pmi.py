"""How ranks of srun find each other: the types of PMI that srun offers, and which one fits the MPI in use."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence

from hvdkan.launcher import Launcher
from jobs.preflight.findings import Finding, failure, ok, warning
from jobs.preflight.one_mpi import Tool, first_line, identity

#: The types of srun's --mpi that fit, the best first.
_FITTING = {
    "Open MPI": ("pmix",),
    "Cray MPICH": ("cray_shasta", "pmi2"),
    "MPICH": ("pmi2", "pmix"),
    "MVAPICH": ("pmi2", "pmix"),
    "Intel MPI": ("pmi2", "pmix"),
}


def types_of(text: str) -> list[str]:
    """The types that `srun --mpi=list` names, in its order."""
    found: list[str] = []
    for line in text.splitlines():
        line = line.strip()
        if re.search(r"MPI (plugin )?types are", line) or line == "":
            continue
        found += re.findall(r"[a-z][\w-]*", line.partition(":")[2] if ":" in line else line)
    return list(dict.fromkeys(found))


def fitting(mine: tuple[str, str], types: Sequence[str]) -> str | None:
    """The type of srun's --mpi for an MPI, or None where nothing fits."""
    for wanted in _FITTING.get(mine[0], ()):
        if wanted in types:
            return wanted
        versioned = [one for one in types if one.startswith(f"{wanted}_")]
        if versioned:
            return versioned[-1]
    # Only some builds of Open MPI 4 and before know it.
    return "pmi2" if mine[0] == "Open MPI" and int(mine[1].split(".")[0]) < 5 and "pmi2" in types else None


def has_pmi(mine: tuple[str, str] | None, environment: Mapping[str, str]) -> bool:
    """Whether a process of srun's can start this MPI; Open MPI aborts, or comes up alone, where it cannot."""
    if mine is not None and mine[0] == "Open MPI":
        return "PMIX_RANK" in environment or ("PMI_RANK" in environment and int(mine[1].split(".")[0]) < 5)
    return True


def judge_srun(
    tool: Tool | None, library: str | None, launcher: Launcher, environment: Mapping[str, str]
) -> Finding | None:
    """Which PMI srun offers, and which fits; None without srun."""
    mine, inside = identity(library), launcher.kind == "srun"
    if tool is None and not inside:
        return None
    types = types_of(tool.said) if tool is not None and tool.status == 0 else []
    offered = f"srun --mpi offers {', '.join(types)}" if types else "srun --mpi=list does not answer"
    fits = fitting(mine, types) if mine else None
    called = " ".join(mine) if mine else "this MPI"
    elsewhere = "start it with mpirun inside salloc or sbatch, or have Slurm built with PMIx"
    if inside and not has_pmi(mine, environment):
        remedy = f"srun --mpi={fits} ..." if fits else "srun --mpi=pmix ..." if not types else elsewhere
        return failure("srun", f"started without a PMI that {called} can use (it wants pmix); {offered}", remedy)
    if inside:
        used = "pmix" if "PMIX_RANK" in environment else "pmi2" if "PMI_RANK" in environment else None
        return ok("srun", f"{used} serves {called}; {offered}" if used else offered)
    if not types:
        said = first_line(tool.said)
        return warning("srun", f"{tool.path} does not list its PMI types: {said}", "ask on a node of the cluster")
    if mine is None:
        return ok("srun", offered)
    if fits is None:
        return warning("srun", f"{offered}; none fits {called}", elsewhere)
    return ok("srun", f"{offered}; for {called} use --mpi={fits}")


def early(mine: tuple[str, str] | None, launcher: Launcher, environment: Mapping[str, str]) -> None:
    """Say before MPI starts what its page of text would not, should it end the process there."""
    doubtful = mine is not None and mine[0] == "Open MPI" and "PMIX_RANK" not in environment
    if launcher.kind == "srun" and doubtful and launcher.rank == 0:
        print(
            f"preflight: starting {' '.join(mine)} over pmi2; should it end here: srun --mpi=pmix", file=sys.stderr,
            flush=True,
        )  # fmt: skip
