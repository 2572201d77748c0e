"""A command run to its end or to a time limit, with everything it started.

mpirun gives each rank a process group of its own, so that a signal to mpirun's group does not reach them: what belongs
to a command is told by its session and by a mark in its environment, which also a process that left the session keeps.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "HVDKAN_LAUNCH"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Outcome:
    """How a command ended: exit status (128 + n for signal n), whether the time limit ended it, seconds it took."""

    status: int
    timed_out: bool
    wall_s: float


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    timeout_s: float,
    *,
    grace_s: float = 5.0,
    tick: Callable[[float], None] = lambda seconds: None,
) -> Outcome:
    """Run ``command`` with both outputs in the file ``log``; ``tick`` is told the seconds so far about once a second.

    Whatever ends the command (its own end, the limit, an exception such as KeyboardInterrupt), nothing of it is left
    behind: what still runs gets SIGTERM and after ``grace_s`` SIGKILL. Raises OSError where it cannot be started.
    """
    mark = uuid.uuid4().hex
    start = time.monotonic()
    with log.open("wb") as stream:
        process = subprocess.Popen(
            list(command),
            env={**environment, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent(),
        )
    try:
        timed_out = not _wait(process, start, timeout_s, tick)
        wall_s = time.monotonic() - start
    finally:
        _end(process, mark, grace_s)
    status = process.returncode
    return Outcome(status if status >= 0 else 128 - status, timed_out, wall_s)


def _wait(process: subprocess.Popen, start: float, timeout_s: float, tick: Callable[[float], None]) -> bool:
    while True:
        left = timeout_s - (time.monotonic() - start)
        if left <= 0:
            return process.poll() is not None
        try:
            process.wait(min(1.0, left))
            return True
        except subprocess.TimeoutExpired:
            tick(time.monotonic() - start)


def _end(process: subprocess.Popen, mark: str, grace_s: float) -> None:
    """End what is left of a command; after a second Ctrl-C without grace."""
    try:
        if process.poll() is None or _alive(process.pid, mark):
            for pid in {process.pid, *_alive(process.pid, mark)}:
                _signal(pid, signal.SIGTERM)
            _until_gone(process, mark, grace_s)
    finally:
        for _ in range(100):
            left = _alive(process.pid, mark)
            if process.poll() is not None and not left:
                break
            if process.returncode is None:
                _signal(process.pid, signal.SIGKILL)
            for pid in left:
                _signal(pid, signal.SIGKILL)
            time.sleep(0.05)


def _until_gone(process: subprocess.Popen, mark: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and (process.poll() is None or _alive(process.pid, mark)):
        time.sleep(0.05)


def _alive(session: int, mark: str) -> list[int]:
    """The processes of a session or with the mark, without those that are dead and only not yet collected."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The command's name, in brackets, may hold anything: read behind the last bracket.
            state, _, _, sid = (directory / "stat").read_bytes().rpartition(b")")[2].split()[:4]
            if state in (b"Z", b"X"):
                continue
            if int(sid) == session or wanted in (directory / "environ").read_bytes().split(b"\0"):
                found.append(int(directory.name))
    return found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _end_with_parent() -> Callable[[], None]:
    """For the child, before it becomes the command: get SIGTERM when the runner dies, even by SIGKILL (Linux)."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    return lambda: prctl and prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
