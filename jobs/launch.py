"""One launch: its command, its run, and the record that stands for it, whatever became of it."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hvdkan import record
from hvdkan.config import Config
from jobs import processes
from jobs.launchers import Mpirun, inherited
from jobs.store import Launch, Store, StoreError, read, succeeded

#: Lines of a log that go into the record of a launch that wrote none.
LAST_LINES = 12
#: The signal that a batch job asks for some time before its limit (jobs/slurm.py).
_NEAR_THE_END = 128 + signal.SIGUSR2
_TRACEBACK = "Traceback (most recent call last):"
_BAR = re.compile(r"^\s*\d+%\|.*?\| \d+/\d+ \[[^\]]*\]")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: .*)?$")


@dataclass(frozen=True)
class Result:
    """What became of a launch: seconds it took; ``failure`` is one line, None where it succeeded.

    ``preempted``: Slurm ended it, as the time of the job around it was nearly over.
    """

    wall_s: float
    failure: str | None
    preempted: bool = False


def command(launch: Launch, launcher: Mpirun, module: str, file: Path) -> tuple[list[str], dict[str, str]]:
    """The words that start a launch, and what its environment needs beside the runner's."""
    flags = flags_of(launch.variant.settings)
    labels = [word for name, value in launch.labels().items() for word in ("--label", f"{name}={value}")]
    program = [sys.executable, "-m", module, *flags, "--record", str(file), *labels]
    threads = launch.variant.config.threads or 1
    return launcher.command(launch.variant.ranks, program, launch.variant.hosts), launcher.environment(threads)


def flags_of(settings: dict[str, Any]) -> list[str]:
    """Settings as flags of ``hvdkan.train``, in the order of the fields of Config."""
    flags = []
    for field in dataclasses.fields(Config):
        if field.name not in settings:
            continue
        flag, value = field.name.replace("_", "-"), settings[field.name]
        if value is False and field.default is False:
            continue  # such a switch has no flag for off
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list | tuple):
            flags += [f"--{flag}", ",".join(map(str, value))]
        else:
            flags += [f"--{flag}", str(value)]
    return flags


def run(
    launch: Launch, launcher: Mpirun, module: str, store: Store, timeout_s: float, tick: Callable[[float], None]
) -> Result:
    """Run a launch and put its records in place. An exception (Ctrl-C) leaves no record, and no process."""
    written, log = store.running / f"{launch.file}.jsonl", store.logs / f"{launch.file}.log"
    words, own = command(launch, launcher, module, written)
    started_at = datetime.now(UTC)
    outcome = processes.run(words, inherited(os.environ) | own, log, timeout_s, tick=tick)
    final = store.records / f"{launch.file}.jsonl"
    kind, message, records = _judged(launch, written, outcome, timeout_s)
    if kind is None:
        written.replace(final)
        return Result(outcome.wall_s, None)
    if kind != "timeout" and records and not succeeded(records):
        # Its own account of what went wrong knows more than the log.
        written.replace(final)
    else:
        lines = _lines(log)
        traceback = _traceback(lines)
        if kind == "exit_status" and (cause := _cause(lines, traceback)):
            message = f"{message}: {cause}"
        error = {"kind": kind, "message": "\n".join([message, *lines[-LAST_LINES:]])}
        error |= {"rank": None, "host": None, "traceback": traceback, "exit_status": outcome.status}
        status = {"status": "preempted" if kind == "preempted" else "failed", "error": error}
        whole = records or [_failed(launch, error, started_at, outcome.wall_s)]
        record.write(final, [one | status for one in whole])
    # Ended from here, its own account is only of the signal.
    reason = message if kind == "timeout" else said(records) or message
    return Result(outcome.wall_s, reason, kind == "preempted")


def lost(launch: Launch, store: Store, message: str, wall_s: float = 0.0) -> None:
    """Put a record in place for a launch that was cut off with the job around it; ``message`` says by what."""
    log = store.logs / f"{launch.file}.log"
    lines = _lines(log)[-LAST_LINES:] if log.is_file() else []
    error = {"kind": "preempted", "message": "\n".join([message, *lines]), "rank": None, "host": None}
    record.write(
        store.records / f"{launch.file}.jsonl",
        [_failed(launch, error, datetime.now(UTC), wall_s) | {"status": "preempted"}],
    )


def _judged(
    launch: Launch, written: Path, outcome: processes.Outcome, timeout_s: float
) -> tuple[str | None, str, list[dict]]:
    """What went wrong as a kind (None: nothing) and a sentence, and the launch's own records if they are whole."""
    try:
        records, reason = read(written, launch.labels()), ""
    except (StoreError, record.SchemaError) as error:
        records, reason = [], str(error)
    if outcome.timed_out:
        return "timeout", f"not finished after {timeout_s:g} s, and ended", records
    if records and not succeeded(records):
        own = "preempted" if any(one["status"] == "preempted" for one in records) else "failed"
        return own, f"exit status {outcome.status}", records
    if outcome.status == _NEAR_THE_END:
        return "preempted", "ended by SIGUSR2: the time of the job around it was nearly over", records
    if outcome.status != 0:
        # Also with a complete record: nobody knows what of a launch that broke down can be trusted.
        return "exit_status", f"exit status {outcome.status}", records
    if not records:
        return "no_record", f"exit status 0, but {reason}", records
    planned = launch.variant.placement if launch.variant.nodes is not None else None
    observed = next((one.get("placement") for one in records if planned not in (None, one.get("placement"))), planned)
    if observed != planned:
        # Nothing that ran elsewhere may stand for what was planned.
        return "placement", f"ran as {observed} and not as {planned}, which was planned", records
    return None, "", records


def _failed(launch: Launch, error: dict[str, Any], started_at: datetime, wall_s: float) -> dict[str, Any]:
    config = launch.variant.config.to_dict()
    return {
        "schema": record.SCHEMA,
        "run_id": f"{started_at:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}",
        **launch.labels(),
        "cell": "main",
        "status": "failed",
        "error": error,
        "started_at": f"{started_at:%Y-%m-%dT%H:%M:%SZ}",
        "wall_s": round(wall_s, 3),
        "config": config,
        "requested": {name: config[name] for name in ("allreduce", "engine", "transport")},
        "effective": None,
    }


def again(launch: Launch, attempt: int) -> Launch:
    """The same launch as another try."""
    return dataclasses.replace(launch, attempt=attempt)


def said(records: list[dict]) -> str | None:
    """What records say went wrong, in one line, or None."""
    for one in records:
        error = one.get("error")
        if one["status"] != "ok" and isinstance(error, dict) and error.get("message"):
            return str(error["message"]).splitlines()[0]
    return None


def _lines(log: Path) -> list[str]:
    """What was printed, without empty lines and the states of a progress bar."""
    # A message may stand right behind a bar, which ends without a newline.
    lines = (_BAR.sub("", line).rstrip() for line in log.read_text(errors="replace").splitlines())
    return [line for line in lines if line]


def _cause(lines: list[str], traceback: str | None) -> str | None:
    """The exception, or the line in which the program refused what it was told."""
    if traceback is not None:
        return traceback.splitlines()[-1]
    return next((line for line in lines if line.startswith("error: ")), None)


def _traceback(lines: list[str]) -> str | None:
    """The first traceback of a log, for what comes after it is mostly the ends of other ranks.

    Lines of other ranks may stand between its own; its last one is told by its form, ``Name: message``.
    """
    start = next((number for number, line in enumerate(lines) if _TRACEBACK in line), None)
    if start is None:
        return None
    end = next((n for n in range(start + 1, len(lines)) if _EXCEPTION.match(lines[n])), len(lines) - 1)
    return "\n".join(lines[start : end + 1])
