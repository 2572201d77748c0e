"""What was found: one line each, with the remedy where something is wrong; findings of many ranks become one."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

LEVELS = ("ok", "warning", "failure")
_WIDTH = 80
_MOST_NAMES = 4
ALIKE = "give all nodes the same environment and settings"


@dataclass(frozen=True)
class Finding:
    """What a check found; ``remedy`` says what to do, and is there unless all is well."""

    check: str
    level: str
    text: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.level not in LEVELS or (self.level == "ok") != (self.remedy == ""):
            raise ValueError(f"{self} must be ok, or a warning or failure with a remedy")

    def lines(self, width: int = _WIDTH) -> str:
        """One line, wrapped with an indent where it is long; words (paths) are never broken."""
        text = f"{self.level:<8} {self.check}: {self.text}" + (f"; remedy: {self.remedy}" if self.remedy else "")
        return textwrap.fill(text, width, subsequent_indent=" " * 9, break_long_words=False, break_on_hyphens=False)


def ok(check: str, text: str) -> Finding:
    return Finding(check, "ok", text)


def warning(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, "warning", text, remedy)


def failure(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, "failure", text, remedy)


def worst(findings: Sequence[Finding]) -> str:
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")


def merged(found: Sequence[Finding | None], hosts: Sequence[str]) -> Finding | None:
    """One finding of one check from that of each rank (None: it did not look); what differs names the hosts.

    ``hosts[rank]`` is where a rank runs. What most ranks found is said of ``elsewhere``.
    """
    of: dict[Finding, list[int]] = {}
    for rank, finding in enumerate(found):
        if finding is not None:
            of.setdefault(finding, []).append(rank)
    if len(of) < 2:
        return next(iter(of), None)
    usual = max(of, key=lambda finding: len(of[finding]))
    looked = [rank for ranks in of.values() for rank in ranks]
    parts = [f"{_where(ranks, looked, hosts)}: {one.text}" for one, ranks in of.items() if one is not usual]
    text = f"{'; '.join(parts)}; elsewhere: {usual.text}"
    level = worst(list(of))
    remedies = dict.fromkeys(one.remedy for one in of if one.level == level and one.remedy)
    if level == "ok":
        return warning(usual.check, text, ALIKE)
    return Finding(usual.check, level, text, "; ".join(remedies))


def _where(ranks: Sequence[int], looked: Sequence[int], hosts: Sequence[str]) -> str:
    """Hosts by name, where all ranks of a host that looked are among ``ranks``; else the ranks."""
    here = {hosts[rank] for rank in ranks}
    whole = [host for host in here if all(rank in ranks for rank in looked if hosts[rank] == host)]
    single = [f"rank {rank} of {hosts[rank]}" for rank in ranks if hosts[rank] not in whole]
    return named([*sorted(whole, key=lambda host: hosts.index(host)), *single])


def named(names: Sequence[str]) -> str:
    """Some names and how many more there are."""
    if len(names) <= _MOST_NAMES + 1:
        return ", ".join(names)
    return f"{', '.join(names[:_MOST_NAMES])} and {len(names) - _MOST_NAMES} more"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def closing(findings: Sequence[Finding], where: str) -> str:
    """The last line: how many of each level, and where."""
    count = {level: sum(finding.level == level for finding in findings) for level in LEVELS}
    counts = f"{count['ok']} ok, {counted(count['warning'], 'warning')}, {counted(count['failure'], 'failure')}"
    return f"preflight: {counts}; {where}"


def to_json(findings: Sequence[Finding], **more: Any) -> dict[str, Any]:
    """The same as plain JSON values."""
    return {"schema": 1, "status": worst(findings), **more, "findings": [asdict(finding) for finding in findings]}
