"""Which batch jobs a study has: kept beside its results, so that a second start finds them again.

A job is written down before it is submitted, by a name that nobody else has: also a start that was killed between
submitting and writing leaves jobs that can be found.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from hvdkan.files import replacing


class LedgerError(ValueError):
    """A ledger that cannot be read; one line."""


@dataclass
class Entry:
    """A job: ``block`` None for the one that writes the report; ``job`` None until sbatch gave its number.

    ``ended`` is how it ended, None as long as nobody saw that; ``submitted`` in seconds since 1970.
    """

    name: str
    block: int | None
    submitted: float
    job: str | None = None
    ended: str | None = None

    @property
    def said(self) -> str:
        return f"job {self.job or self.name}"

    @property
    def output(self) -> str:
        """The name of the file with what it printed."""
        return f"{self.name}-{self.job}.out"


class Ledger:
    """The jobs of one study, in the file ``jobs.json`` of ``directory``; every change is on disk at once."""

    def __init__(self, directory: Path):
        self.directory = directory
        self._file = directory / "jobs.json"
        self.entries: list[Entry] = []
        try:
            if self._file.exists():
                self.entries = [Entry(**one) for one in json.loads(self._file.read_text())]
        except (ValueError, TypeError) as error:
            raise LedgerError(f"{self._file} cannot be read ({error}); squeue shows the jobs") from error

    def open(self) -> list[Entry]:
        """Those that nobody saw end."""
        return [entry for entry in self.entries if entry.ended is None]

    def add(self, study: str, block: int | None) -> Entry:
        """Write down a job that is about to be submitted."""
        part = "report" if block is None else f"b{block:02d}"
        entry = Entry(f"{study}-{part}-{secrets.token_hex(3)}", block, time.time())
        self.entries.append(entry)
        self.save()
        return entry

    def save(self) -> None:
        with replacing(self._file) as stream:
            stream.write(json.dumps([dataclasses.asdict(entry) for entry in self.entries], indent=1).encode())
