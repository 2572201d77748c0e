"""Slurm's queue through its commands: submit a script, and ask what became of jobs. Accounting (sacct) is not needed.

Every command has an end, and fails with one line.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Where nothing of a job can change any more; what Slurm invents besides counts as going on.
ENDED = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED")
ENDED += ("REVOKED", "TIMEOUT")
#: What describes a job or a step around this process, and would be taken for options of the new one.
_OF_A_JOB = (
    "SLURM_",
    "SLURMD_",
    "SALLOC_",
    "SBATCH_",
    "SRUN_",
    "PMI_",
    "PMI2_",
    "PMIX_",
    "OMPI_COMM_WORLD_",
    "PRTE_MCA_",
)
_OF_A_JOB += ("HVDKAN_NESTED", "HVDKAN_LAUNCH")
#: Set by Slurm in a job for its own devices; elsewhere they are the user's.
_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")
_LIMIT_S = 60


class QueueError(RuntimeError):
    """Slurm refused, or does not answer; one line."""


@dataclass(frozen=True)
class Entry:
    """A job as squeue shows it. ``reason`` is why it waits, or where it is."""

    state: str
    reason: str

    @property
    def ended(self) -> bool:
        return self.state in ENDED


def environment_outside(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without what an allocation around this process says of itself; where Slurm is stays in."""
    kept = {
        name: value for name, value in environment.items() if name == "SLURM_CONF" or not name.startswith(_OF_A_JOB)
    }
    if "SLURM_JOB_ID" in environment:
        kept = {name: value for name, value in kept.items() if name not in _DEVICES}
    return kept


def submit(script: Path, after: Sequence[str] = ()) -> str:
    """The number of a new job, to start when all of ``after`` have ended, however. Raises :class:`QueueError`."""
    words = ["sbatch", "--parsable"]
    if after:
        words += [f"--dependency=afterany:{':'.join(after)}", "--kill-on-invalid-dep=yes"]
    said = _run([*words, str(script)])
    # JOB or JOB;CLUSTER
    number = said.strip().splitlines()[-1].partition(";")[0] if said.strip() else ""
    if not re.fullmatch(r"\d+", number, re.ASCII):
        raise QueueError(f"sbatch said {said.strip()!r} and no job's number")
    return number


def entries() -> dict[str, Entry]:
    """The user's jobs that Slurm still knows, by number, ended ones too. Raises :class:`QueueError`."""
    found = {}
    for line in _run(["squeue", "--me", "--states=all", "--noheader", "--format=%A|%T|%R"]).splitlines():
        number, _, rest = line.strip().partition("|")
        state, _, reason = rest.partition("|")
        found[number] = Entry(state, reason.strip("()"))
    return found


def named(name: str) -> str | None:
    """The number of the user's job of this name, if Slurm knows one. Raises :class:`QueueError`."""
    said = _run(["squeue", "--me", "--states=all", "--noheader", f"--name={name}", "--format=%A"]).split()
    return said[0] if said else None


def _run(words: list[str]) -> str:
    try:
        done = subprocess.run(
            words,
            env=environment_outside(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except FileNotFoundError:
        raise QueueError(f"{words[0]} is not on PATH; this is for a machine where Slurm jobs are submitted") from None
    except subprocess.TimeoutExpired:
        raise QueueError(f"{words[0]} did not answer within {_LIMIT_S} s") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
        raise QueueError(f"{words[0]} ended with status {done.returncode}: {lines[0].strip()}")
    return done.stdout
