"""Slurm's texts as pure functions: node lists, task counts, times, and a batch script from configuration.

Nothing here asks Slurm or the environment; formats are those of Slurm's manual pages sbatch(1) and srun(1).
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

_SLOT = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_MOST_NODES = 100_000


class SlurmError(ValueError):
    """A text that is not what Slurm writes, or a value that cannot be told to it; one line that names it."""


# --- what Slurm says of an allocation ---


def expand_nodes(text: str) -> list[str]:
    """The names in a node list such as SLURM_JOB_NODELIST: ``n[08-10],m1`` is n08, n09, n10, m1. Raises SlurmError."""
    names: list[str] = []
    for item in _items(text):
        parts = re.split(r"\[([^\[\]]*)\]", item)
        if any(bracket in part for part in parts for bracket in "[]") or re.search(r"\s", item) or not item:
            raise SlurmError(f"node list {text!r}: {item!r} is not a name with numbers in brackets")
        # Every second part was in brackets; a name may hold several, as r[1-2]n[1-3].
        choices = [_numbers(part, text) if place % 2 else [part] for place, part in enumerate(parts)]
        names += ["".join(chosen) for chosen in itertools.product(*choices)]
        if len(names) > _MOST_NODES:
            raise SlurmError(f"node list {text[:60]!r}: more than {_MOST_NODES} nodes")
    return names


def _items(text: str) -> list[str]:
    """``text`` at the commas outside brackets."""
    return [item.strip() for item in re.split(r",(?![^\[\]]*\])", text)] if text.strip() else []


def _numbers(text: str, whole: str) -> list[str]:
    numbers = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise SlurmError(f"node list {whole!r}: {part!r} is not a number or a range of numbers")
        first, last = match[1], match[2] or match[1]
        if not 0 <= int(last) - int(first) < _MOST_NODES:
            raise SlurmError(f"node list {whole!r}: {part!r} is no rising range of fewer than {_MOST_NODES} numbers")
        # As wide as the first is written: 08-10 is 08, 09, 10, and 8-10 is 8, 9, 10.
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return numbers


def task_counts(text: str) -> list[int]:
    """Tasks on each node from SLURM_TASKS_PER_NODE (CPUs likewise): ``2(x3),1`` is 2, 2, 2, 1. Raises SlurmError."""
    counts: list[int] = []
    for item in text.split(","):
        match = _SLOT.fullmatch(item.strip())
        times = int(match[2] or 1) if match else 0
        if not 0 < times <= _MOST_NODES:
            raise SlurmError(f"task counts {text!r}: {item!r} is not a number, or a number with times as in 2(x3)")
        counts += [int(match[1])] * times
    return counts


# --- times ---

_TIMES = (
    (r"(?P<m>\d+)", "minutes"),
    (r"(?P<m>\d+):(?P<s>\d+)", "MM:SS"),
    (r"(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)", "HH:MM:SS"),
    (r"(?P<d>\d+)-(?P<h>\d+)(:(?P<m>\d+)(:(?P<s>\d+))?)?", "D-HH, D-HH:MM, D-HH:MM:SS"),
)


def read_time(text: str, what: str = "time") -> int:
    """Seconds of a time limit as Slurm reads it; ``90`` is 90 minutes. Raises SlurmError, also for no limit at all."""
    if text.strip().upper() in ("UNLIMITED", "INFINITE", "NOT_SET", "-1"):
        raise SlurmError(f"{what} is {text!r}; a limit is needed here, such as 02:00:00")
    for pattern, _ in _TIMES:
        if match := re.fullmatch(pattern, text.strip(), re.ASCII):
            parts = {name: int(number or 0) for name, number in match.groupdict().items()}
            days, hours, minutes, seconds = (parts.get(name, 0) for name in "dhms")
            total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
            if total > 0:
                return total
            raise SlurmError(f"{what} is {text!r}; it must be longer than 0")
    raise SlurmError(f"{what} is {text!r}; it must be one of {', '.join(name for _, name in _TIMES)}")


def write_time(seconds: float) -> str:
    """``[D-]HH:MM:SS`` as Slurm writes it, rounded up to whole seconds."""
    whole = -int(-seconds // 1)
    days, rest = divmod(whole, 86400)
    text = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text


# --- batch scripts ---


@dataclass(frozen=True)
class Job:
    """A batch job. ``directory`` gets its output, ``work_directory`` is where ``command`` starts; both absolute.

    ``options`` are further directives, flag and value; ``prolog`` is shell code, a line each; ``time_s`` in seconds.
    """

    name: str
    directory: str
    work_directory: str
    command: tuple[str, ...]
    time_s: int
    nodes: int = 1
    workers_per_node: int = 1
    cpus_per_worker: int = 1
    exclusive: bool = False
    options: tuple[tuple[str, str | None], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    prolog: tuple[str, ...] = ()


def script(job: Job) -> str:
    """The whole text of the batch script. Raises SlurmError for a value that does not fit on a line."""
    lines = ["#!/bin/bash"]
    lines += [f"#SBATCH {flag}" if value is None else f"#SBATCH {flag}={_quoted(value)}" for flag, value in _all(job)]
    lines += ["", *(one_line(line, "prolog") for line in job.prolog)]
    lines += ["# srun does not take this from the job since Slurm 22.05."]
    lines += [f"export SRUN_CPUS_PER_TASK={job.cpus_per_worker}"]
    lines += [f"export {name}={shlex.quote(one_line(value, name))}" for name, value in job.environment]
    lines += [f"cd -- {shlex.quote(one_line(job.work_directory, 'work directory'))}"]
    lines += ["exec " + shlex.join(one_line(word, "command") for word in job.command)]
    return "\n".join(lines) + "\n"


def directives(job: Job) -> list[tuple[str, str | None]]:
    """What :func:`script` tells sbatch, in order: flag and value (None: a flag alone)."""
    return [(flag, None if value is None else one_line(value, flag)) for flag, value in _all(job)]


def read_directives(text: str) -> list[tuple[str, str | None]]:
    """What sbatch reads in a script: its directives up to the first command, with its own rules of quoting."""
    found = []
    for line in text.splitlines():
        if line.startswith("#SBATCH"):
            for word in _words(line.removeprefix("#SBATCH")):
                flag, equals, value = word.partition("=")
                found.append((flag, value if equals else None))
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return found


def one_line(value: str, what: str) -> str:
    """``value``, which must be without control characters. Raises SlurmError."""
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise SlurmError(f"{what} is {value!r}; it must be one line without control characters")
    return value


def _all(job: Job) -> Sequence[tuple[str, str | None]]:
    if "/" in job.name or not job.name:
        raise SlurmError(f"job name is {job.name!r}; it names a file too, and must be without '/' and not empty")
    if "\\" in job.directory:
        # Slurm 22.05 drops it from the path of the output, and the job dies before its first line.
        raise SlurmError(f"directory is {job.directory!r}; Slurm writes no output to a path with a backslash")
    tasks = job.nodes * job.workers_per_node
    return [
        ("--job-name", job.name),
        ("--chdir", job.directory),
        ("--output", "%x-%j.out"),
        ("--open-mode", "append"),
        ("--time", write_time(job.time_s)),
        ("--nodes", str(job.nodes)),
        ("--ntasks", str(tasks)),
        ("--ntasks-per-node", str(job.workers_per_node)),
        ("--cpus-per-task", str(job.cpus_per_worker)),
        *([("--exclusive", None)] if job.exclusive else []),
        *job.options,
        # What is missing after a failure of a node is started again by the runner, which also records it.
        ("--no-requeue", None),
        ("--signal", "USR2@90"),
    ]


def _quoted(value: str) -> str:
    """``value`` for a directive. To the shell it is a comment: nothing expands it."""
    one_line(value, "value")
    if re.fullmatch(r"[\w.,:=@%/+-]+", value, re.ASCII):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _words(text: str) -> list[str]:
    """Words as sbatch splits them (its get_argument): quotes of both kinds, a backslash everywhere, # ends the line."""
    words, word, quote, escaped = [], None, "", False
    for character in text:
        if escaped:
            word, escaped = (word or "") + character, False
        elif character == "\\":
            escaped = True
        elif quote:
            word, quote = (word, "") if character == quote else (word + character, quote)
        elif character in "\"'":
            word, quote = word or "", character
        elif character == "#":
            break
        elif character.isspace():
            words, word = (words if word is None else [*words, word]), None
        else:
            word = (word or "") + character
    return words if word is None else [*words, word]
