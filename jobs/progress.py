"""One line on the terminal for each launch, at most 79 columns; rewritten in place only where there is a terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TextIO

from jobs.store import Launch

WIDTH = 79


class Progress:
    """Tells how far a study is. ``total`` counts its launches, ``to_run`` those that are still to be done."""

    def __init__(self, total: int, to_run: int, stream: TextIO | None = None):
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty()
        self._total, self._to_run = total, to_run
        self._seconds: list[float] = []
        self._shown = 0

    def running(self, number: int, launch: Launch, seconds: float) -> None:
        """Where there is a terminal, show that the launch is at work."""
        if self._live:
            self._rewrite(self._line(number, launch, f"{seconds:.0f} s", self._left(seconds)))

    def finished(self, number: int, launch: Launch, result: str, seconds: float, reason: str | None = None) -> None:
        """The launch's line, for good: ``result`` is ok, failed or preempted, the ``reason`` goes on a second one."""
        self._seconds.append(seconds)
        line = self._line(number, launch, f"{result} {seconds:.1f} s", self._left(0))
        if reason is not None:
            width = min(WIDTH, shutil.get_terminal_size().columns - 1) if self._live else WIDTH
            line += "\n  " + textwrap.shorten(reason, width - 2, placeholder=" ...")
        if self._live:
            self._rewrite(line)
            self._stream.write("\n")
            self._shown = 0
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def interrupted(self) -> None:
        """Leave the line that was being rewritten."""
        if self._shown:
            self._stream.write("\n")
            self._shown = 0

    def _line(self, number: int, launch: Launch, result: str, left: str) -> str:
        width = min(WIDTH, shutil.get_terminal_size().columns - 1) if self._live else WIDTH
        parts = [f"launch {number} of {self._total}", f"block {launch.block}", "", result, left]
        room = width - len("  ".join(part for part in parts if part)) - 2
        parts[2] = f"{_short(launch.variant.name, room - len(launch.variant.placement) - 1)} {launch.variant.placement}"
        return "  ".join(part for part in parts if part)[:width]

    def _left(self, running_s: float) -> str:
        """Time left, from the mean of the launches so far."""
        left = self._to_run - len(self._seconds)
        if not self._seconds or not left:
            return ""
        return f"about {duration(max(0.0, left * sum(self._seconds) / len(self._seconds) - running_s))} left"

    def _rewrite(self, line: str) -> None:
        self._stream.write("\r" + line.ljust(self._shown))
        self._stream.flush()
        self._shown = len(line)


def duration(seconds: float) -> str:
    """``40 s``, ``3 min``, ``2 h 5 min``."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _short(name: str, room: int) -> str:
    room = max(room, 8)
    return name if len(name) <= room else f"{name[: room - 2 - room // 3]}..{name[-(room // 3) :]}"
