"""A site: how a cluster is asked for nodes and how ranks are started on it, from a TOML file.

Site files hold shell lines that run in the user's name, so that a file others can write is refused.
jobs/sites/template.toml shows every key.
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.slurm import SlurmError, one_line, read_time

SITES = Path(__file__).parent / "sites"
MOST_BYTES = 2**20
LAUNCHERS = ("srun", "mpirun")
BINDINGS = ("cores", "none")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Directives that follow from the plan and the other keys.
_OURS = ("--job-name", "--chdir", "--output", "--open-mode", "--time", "--nodes", "--ntasks", "--ntasks-per-node")
_OURS += ("--cpus-per-task", "--exclusive", "--signal", "--requeue", "--no-requeue", "--dependency", "--export")


class SiteError(ValueError):
    """A site that cannot be used, or a placement it cannot hold; one line that names the value and the choices."""


def _key(wanted: str, default: Any = dataclasses.MISSING) -> Any:
    return field(default=default, metadata={"wanted": wanted})


@dataclass(frozen=True)
class Site:
    """A validated site; times are Slurm's texts. Raises :class:`SiteError`."""

    workers_per_node: int = _key("whole")
    cpus_per_worker: int = _key("whole")
    time_limit: str = _key("time")
    launcher: str = _key("launcher", "srun")
    nodes: int | None = _key("whole", None)
    partition: str | None = _key("text", None)
    account: str | None = _key("text", None)
    qos: str | None = _key("text", None)
    constraint: str | None = _key("text", None)
    memory_per_node: str | None = _key("text", None)
    gres: str | None = _key("text", None)
    exclusive: bool = _key("switch", True)
    mpi: str = _key("text", "pmix")
    bind: str = _key("binding", "cores")
    srun_options: tuple[str, ...] = _key("options", ())
    mpirun_options: tuple[str, ...] = _key("options", ())
    sbatch_options: tuple[str, ...] = _key("directives", ())
    report_time_limit: str = _key("time", "00:30:00")
    report_options: tuple[str, ...] = _key("directives", ())
    prolog: tuple[str, ...] = _key("lines", ())
    environment: dict[str, str] = field(default_factory=dict, metadata={"wanted": "variables"})

    def __post_init__(self) -> None:
        for one in dataclasses.fields(self):
            value = getattr(self, one.name)
            if value is not None or one.default is not None:
                object.__setattr__(self, one.name, _checked(one.name, one.metadata["wanted"], value))

    @property
    def time_s(self) -> int:
        return read_time(self.time_limit)

    def layout(self, ranks: int, nodes: int | None) -> tuple[int, int]:
        """Nodes and workers on each for ``ranks`` ranks on ``nodes`` nodes (None: as few as hold them).

        Raises :class:`SiteError` where the nodes are too few or too small, or the ranks do not share out evenly.
        """
        if nodes is None:
            nodes = -(-ranks // self.workers_per_node)
            if ranks % nodes:
                raise SiteError(
                    f"{ranks} ranks do not share out evenly over {nodes} nodes; give the variant a placement"
                )
        each = ranks // nodes
        if each > self.workers_per_node:
            raise SiteError(
                f"{ranks}G{nodes}N: {each} workers a node exceed the site's workers_per_node "
                f"{self.workers_per_node}; spread them over more nodes, as the variants of jobs/plans/paper.toml"
            )
        if self.nodes is not None and nodes > self.nodes:
            raise SiteError(f"{ranks}G{nodes}N: {nodes} nodes exceed the site's {self.nodes}")
        return nodes, each

    def asking(self) -> tuple[tuple[str, str | None], ...]:
        """Directives about whose job it is and where it goes."""
        named = {"--partition": self.partition, "--account": self.account, "--qos": self.qos}
        return tuple((flag, value) for flag, value in named.items() if value is not None)

    def gpus(self, each: int) -> str | None:
        """The value of ``--gres`` for ``each`` workers a node, None at a site without."""
        return None if self.gres is None else f"{self.gres}:{each}"


def names() -> list[str]:
    """The sites of jobs/sites."""
    return sorted(file.stem for file in SITES.glob("*.toml") if file.stem != "template")


def find(name: str) -> Path:
    """The file of a site named like one in jobs/sites, or given as a path. Raises :class:`SiteError`."""
    path = Path(name) if name.endswith(".toml") or "/" in name else SITES / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(names())
        raise SiteError(f"--site is {name!r}; it must be one of {known}, or the path of a site file (*.toml)")
    return path.absolute()


def load(path: Path) -> Site:
    """Read and check a site file. Raises :class:`SiteError` with the file's name in front."""
    try:
        with path.open("rb") as stream:
            # The file that is read is the one that was looked at.
            _check_owner(path, os.fstat(stream.fileno()), "it")
            _check_owner(path, path.resolve().parent.stat(), "its directory")
            text = stream.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise SiteError(f"larger than {MOST_BYTES // 1024:,} KiB")
        return parse(tomllib.loads(text.decode()))
    except OSError as error:
        raise SiteError(f"{path}: {error.strerror}") from error
    except RecursionError:
        raise SiteError(f"{path}: nested too deeply") from None
    except ValueError as error:
        raise SiteError(f"{path}: {error}") from error


def parse(table: dict[str, Any]) -> Site:
    """A site from the keys and values of a TOML table. Raises :class:`SiteError`."""
    names = [one.name for one in dataclasses.fields(Site)]
    for key in table:
        if key not in names:
            raise SiteError(f"unknown key {key!r}; the valid ones are {', '.join(names)}")
    for key in ("workers_per_node", "cpus_per_worker", "time_limit"):
        if key not in table:
            raise SiteError(f"no {key} is given")
    return Site(**table)


def _check_owner(path: Path, status: os.stat_result, what: str) -> None:
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise SiteError(f"{what} can be written by others than its owner, and its lines run in your name: chmod go-w")
    if status.st_uid not in (0, os.geteuid()):
        raise SiteError(f"{what} belongs to another user, and its lines would run in your name: copy it")


def _checked(name: str, wanted: str, value: Any) -> Any:
    check, said = _KINDS[wanted]
    try:
        return check(value)
    except SlurmError as error:
        raise SiteError(f"{name}: {error}") from error
    except (TypeError, ValueError):
        raise SiteError(f"{name} is {value!r}; it must be {said}") from None


def _require(good: bool) -> None:
    if not good:
        raise ValueError


def _whole(value: Any) -> int:
    _require(isinstance(value, int) and not isinstance(value, bool) and value >= 1)
    return value


def _text(value: Any) -> str:
    _require(isinstance(value, str) and value.strip() != "")
    return one_line(value, "it")


def _time(value: Any) -> str:
    read_time(_text(value), "it")
    return value


def _one_of(choices: tuple[str, ...]) -> Any:
    def check(value: Any) -> str:
        _require(value in choices)
        return value

    return check


def _switch(value: Any) -> bool:
    _require(isinstance(value, bool))
    return value


def _lines(value: Any) -> tuple[str, ...]:
    _require(isinstance(value, list | tuple))
    return tuple(_text(item) for item in value)


def _options(value: Any) -> tuple[str, ...]:
    return _lines(value)


def _directives(value: Any) -> tuple[str, ...]:
    for item in _lines(value):
        _require(item.startswith("--") and item.partition("=")[0] not in _OURS)
    return tuple(value)


def _variables(value: Any) -> dict[str, str]:
    _require(isinstance(value, dict))
    for name, text in value.items():
        _require(_VARIABLE.fullmatch(name) is not None and isinstance(text, str))
        one_line(text, name)
    return dict(value)


_KINDS = {
    "whole": (_whole, "a whole number of at least 1"),
    "text": (_text, "a text that is not empty"),
    "time": (_time, "a time as Slurm reads it, such as 02:00:00"),
    "launcher": (_one_of(LAUNCHERS), f"one of {', '.join(LAUNCHERS)}"),
    "binding": (_one_of(BINDINGS), f"one of {', '.join(BINDINGS)}"),
    "switch": (_switch, "true or false"),
    "lines": (_lines, "a list of lines of shell"),
    "options": (_options, "a list of words"),
    "directives": (_directives, f"a list of options --NAME or --NAME=VALUE, none of them {', '.join(_OURS)}"),
    "variables": (_variables, "a table of names of variables and texts"),
}
