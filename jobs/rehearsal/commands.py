"""Short commands with an end, marked as the cluster's own so that `down` finds them when `up` was killed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from jobs.rehearsal.errors import Failed

#: In the environment of every process that belongs to a cluster, with the cluster's name.
MARK = "HVDKAN_REHEARSAL"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_mark: dict[str, str] = {}


def mark(name: str) -> None:
    """From now on commands of this process belong to the cluster ``name``."""
    _mark[MARK] = name


def bare_environment() -> dict[str, str]:
    """The environment of daemons and tools: nothing of the caller's but its language, and the mark."""
    return {"PATH": _PATH, "LC_ALL": "C", "HOME": os.environ.get("HOME", "/root"), **_mark}


def run(
    command: Sequence[str],
    *,
    timeout_s: float = 60.0,
    check: bool = True,
    environment: Mapping[str, str] | None = None,
) -> str:
    """What ``command`` prints. Raises :class:`Failed`, with the command and its last line, where it fails or lasts."""
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env={**(environment or bare_environment()), **_mark},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        said = error.stderr or error.stdout or b""
        raise Failed(f"{_short(command)} was still running after {timeout_s:.0f} s{_last(said.decode())}") from None
    except OSError as error:
        raise Failed(f"{_short(command)}: {error.strerror}") from None
    if check and done.returncode != 0:
        raise Failed(f"{_short(command)} failed with status {done.returncode}{_last(done.stderr or done.stdout)}")
    return done.stdout


def _short(command: Sequence[str]) -> str:
    text = " ".join(command)
    return text if len(text) <= 120 else text[:117] + "..."


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f": {lines[-1]}" if lines else ""
