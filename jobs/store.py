"""What a study has on disk: records, logs, a copy of the plan, and which launches are done.

results/STUDY/plan.toml                                    the plan the records were made with
results/STUDY/records/VARIANT-bBLOCK-aATTEMPT.jsonl        a launch's records, there only when complete
results/STUDY/logs/VARIANT-bBLOCK-aATTEMPT.log             what it printed
results/STUDY/running/, running-bBLOCK/                    a record being written
results/STUDY/slurm/                                       batch jobs: scripts, what they printed, their numbers
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hvdkan import record
from jobs import plan as plans

_FILE = re.compile(r"(?P<variant>.+)-b(?P<block>\d+)-a(?P<attempt>\d+)\.jsonl(\.gz|\.xz)?")


class StoreError(ValueError):
    """Results that cannot be added to; the message is one line."""


@dataclass(frozen=True)
class Launch:
    """One start of a variant: its block, its place within the block (from 1), which try it is (from 1)."""

    study: str
    variant: plans.Variant
    block: int
    order: int
    attempt: int = 1

    @property
    def file(self) -> str:
        return f"{self.variant.name}-b{self.block}-a{self.attempt}"

    def labels(self) -> dict[str, str | int]:
        """What its records must say of it."""
        launch_id = f"{self.study}/b{self.block:02d}/{self.variant.name}"
        own = {"study": self.study, "block": self.block, "order": self.order}
        return own | {"variant": self.variant.name, "attempt": self.attempt, "launch_id": launch_id}


@dataclass
class State:
    """What is known of a variant in a block: whether a try succeeded, and the number of the last try."""

    ok: bool = False
    attempts: int = 0


class Store:
    """The directory of one study's results, for the runner of all of it or of one ``block``.

    Nothing is created before :meth:`locked`.
    """

    def __init__(self, results: Path, study: str, block: int | None = None):
        self.study = study
        self.root = results / study
        # The jobs of several blocks are at work at once, and the runner that waits for them beside them.
        own = "" if block is None else f"-b{block}"
        self.records, self.logs, self.running = (self.root / name for name in ("records", "logs", f"running{own}"))
        self.plan_file, self._lock = self.root / "plan.toml", self.root / f".lock{own}"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runners of this study away. Raises :class:`StoreError` where one is at work or writing fails.

        The lock is the kernel's: it goes with the process that held it, whatever ended it.
        """
        try:
            for directory in (self.records, self.logs):
                directory.mkdir(parents=True, exist_ok=True)
            stream = self._lock.open("a+")
        except OSError as error:
            raise StoreError(f"{self.root} cannot be written: {error.strerror}") from error
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                stream.seek(0)
                who = stream.read().strip() or "an unknown process"
                raise StoreError(f"another runner is at work on {self.root}: {who}") from error
            except OSError as error:
                raise StoreError(f"{self.root} cannot be locked: {error.strerror}") from error
            stream.truncate(0)
            stream.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            stream.flush()
            # What a killed runner left half done is not a record.
            shutil.rmtree(self.running, ignore_errors=True)
            self.running.mkdir()
            try:
                yield
            finally:
                shutil.rmtree(self.running, ignore_errors=True)

    def check(self, plan: plans.Plan) -> None:
        """Raises :class:`StoreError` where the records here were made with another plan."""
        if not self.records.is_dir() or not any(self.records.iterdir()):
            return
        if not self.plan_file.is_file():
            raise StoreError(f"{self.root} has records and no plan.toml that says what they are; use another --results")
        try:
            old = plans.load(self.plan_file)
        except plans.PlanError as error:
            raise StoreError(f"the plan of the records cannot be read any more: {error}") from error
        if said := plans.difference(old, plan):
            raise StoreError(
                f"the plan changed since the records in {self.root} were made: {said}; "
                f"undo that, or use another study name or --results"
            )

    def keep(self, plan: plans.Plan) -> None:
        """Store a copy of the plan."""
        part = self.plan_file.with_name(".plan.toml.part")
        part.write_bytes(plan.text.encode())
        part.replace(self.plan_file)

    def states(self) -> tuple[dict[tuple[str, int], State], list[str]]:
        """The state by (variant, block), and a note on every file that could not be used.

        A torn file counts as a try without a result. Raises ``hvdkan.record.SchemaError`` for another major schema.
        """
        states: dict[tuple[str, int], State] = {}
        notes = []
        for file in sorted(self.records.iterdir()):
            match = _FILE.fullmatch(file.name)
            if match is None:
                continue
            block, attempt = int(match["block"]), int(match["attempt"])
            state = states.setdefault((match["variant"], block), State())
            state.attempts = max(state.attempts, attempt)
            labels = {"study": self.study, "variant": match["variant"], "block": block, "attempt": attempt}
            try:
                state.ok |= succeeded(read(file, labels))
            except StoreError as error:
                notes.append(f"{file}: {error}; this launch counts as missing")
        return states, notes


def read(file: Path, labels: dict[str, str | int]) -> list[dict]:
    """The records of a launch. Raises :class:`StoreError` where they are missing, torn or another launch's."""
    reading = record.read(file) if file.is_file() else record.Reading()
    for _, line, reason in reading.damaged:
        raise StoreError(f"line {line} is damaged: {reason}")
    if not reading.records:
        raise StoreError("no record was written")
    for one in reading.records:
        for name, value in labels.items():
            if one.get(name) != value:
                raise StoreError(f"the record's {name} is {one.get(name)!r} and not {value!r}")
        if one["status"] not in record.STATUSES:
            raise StoreError(f"the record's status is {one['status']!r}, none of {', '.join(record.STATUSES)}")
    return reading.records


def succeeded(records: list[dict]) -> bool:
    return all(one["status"] == "ok" for one in records)
