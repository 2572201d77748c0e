"""Waiting for batch jobs: a line for each launch that finishes, from the record files; jobs from Slurm's queue."""

from __future__ import annotations

import time
from pathlib import Path

from jobs import launch as launching
from jobs import queue
from jobs.ledger import Entry, Ledger
from jobs.progress import Progress
from jobs.runner import tell_failures
from jobs.store import Launch, Store

#: Seconds between looks at the records, and at the queue (from, to: many waiting users are a load on its server).
RECORDS_S = 2.0
QUEUE_S = (5.0, 15.0)
#: Seconds for which Slurm may not answer, and for which a shared file system may hide a new file.
SILENCE_S, LAG_S = 600.0, 20.0


class Jobs(Progress):
    """Lines without the time left: nobody knows when the jobs start, and how many at once."""

    def _left(self, running_s: float) -> str:
        return ""


def wait(ledger: Ledger, store: Store, launches: list[Launch], limit_s: float) -> int:
    """Wait until every job has ended, at most ``limit_s`` seconds. The exit status of the study."""
    watch = _Watch(store, launches)
    begin = heard = time.monotonic()
    pause, ask_at, ends = QUEUE_S[0], begin, {}
    try:
        while ledger.open():
            now = time.monotonic()
            new = watch.look()
            if now >= ask_at:
                try:
                    known, heard = queue.entries(), now
                    _follow(ledger, known, watch, ends, now)
                except queue.QueueError as error:
                    if now - heard > SILENCE_S:
                        print(f"{error}; the jobs may go on: start the study again to follow them")
                        return 1
                pause = QUEUE_S[0] if new else min(pause * 1.5, QUEUE_S[1])
                ask_at = now + pause
            if now - begin > limit_s:
                print("waited as long as --wait says; the jobs go on: start the study again to follow them")
                return 1
            time.sleep(RECORDS_S)
    except KeyboardInterrupt:
        numbers = " ".join(entry.job or entry.name for entry in ledger.open())
        print(f"the jobs go on; to end them: scancel {numbers}")
        raise
    watch.look()
    return _summary(ledger, store, launches)


def _follow(ledger: Ledger, known: dict[str, queue.Entry], watch: _Watch, ends: dict[str, float], now: float) -> None:
    """Tell what changed in the queue, and settle jobs that ended."""
    for entry in ledger.open():
        one = known.get(entry.job or "")
        if one is not None and not one.ended:
            watch.tell(entry, one)
        elif not _complete(entry, watch) and now - ends.setdefault(entry.name, now) < LAG_S:
            continue
        else:
            settle(entry, one.state if one else "no longer known to Slurm", watch.store, watch.launches)
            ledger.save()


def _complete(entry: Entry, watch: _Watch) -> bool:
    """Whether nothing more can come from an ended job."""
    return entry.block is None or not watch.without_record(entry.block)


def settle(entry: Entry, state: str, store: Store, launches: list[Launch]) -> None:
    """A job ended: record the launch that it was at, if that could not do so itself."""
    entry.ended = state
    if entry.block is None:
        return
    states, _ = store.states()
    for one in launches:
        known = states.get((one.variant.name, one.block))
        if one.block != entry.block:
            continue
        tried = launching.again(one, known.attempts + 1 if known else 1)
        log = store.logs / f"{tried.file}.log"
        if log.is_file() and log.stat().st_mtime >= entry.submitted:
            launching.lost(tried, store, f"{entry.said} ended ({state}) while this launch ran")


class _Watch:
    """What has been told already."""

    def __init__(self, store: Store, launches: list[Launch]):
        self.store, self.launches = store, launches
        self._numbers = {(one.variant.name, one.block): number for number, one in enumerate(launches, start=1)}
        self._seen = {file.name for file in store.records.iterdir()}
        self._new: set[tuple[str, int]] = set()
        self._shown: dict[str, str] = {}
        self._progress = Jobs(len(launches), len(launches))

    def look(self) -> int:
        """Tell of launches that finished since; how many."""
        found = 0
        for file in sorted(self.store.records.iterdir(), key=_age):
            if file.name in self._seen:
                continue
            self._seen.add(file.name)
            for one in self.launches:
                if file.name.startswith(f"{one.variant.name}-b{one.block}-a"):
                    found += 1
                    self._tell_launch(file, one)
        return found

    def _tell_launch(self, file: Path, one: Launch) -> None:
        records = launching.record.read(file).records
        status = next((made["status"] for made in records if made["status"] != "ok"), "ok" if records else "failed")
        seconds = sum(made.get("wall_s") or 0.0 for made in records)
        self._new.add((one.variant.name, one.block))
        self._progress.finished(
            self._numbers[one.variant.name, one.block], one, status, seconds, launching.said(records)
        )

    def without_record(self, block: int) -> list[Launch]:
        states, _ = self.store.states()
        return [one for one in self.launches if one.block == block and (one.variant.name, block) not in states]

    def tell(self, entry: Entry, one: queue.Entry) -> None:
        """A line where a job's state, or the reason why it waits, is another than before."""
        text = f"{entry.said} ({'report' if entry.block is None else f'block {entry.block}'}): {one.state.lower()}"
        text += f" ({one.reason})" if one.reason and one.reason != "None" else ""
        if self._shown.get(entry.name) != text:
            self._shown[entry.name] = text
            print(text)


def _age(file: Path) -> float:
    return file.stat().st_mtime


def _summary(ledger: Ledger, store: Store, launches: list[Launch]) -> int:
    states, _ = store.states()
    failures = []
    for one in launches:
        known = states.get((one.variant.name, one.block))
        if known is None or not known.ok:
            attempts = known.attempts if known else 0
            failures.append((launching.again(one, max(attempts, 1)), _why(store, one, attempts)))
    print(f"{len(launches)} launches: {len(launches) - len(failures)} done, {len(failures)} failed or missing")
    if not states:
        for entry in ledger.entries:
            if entry.block is not None:
                print(f"{entry.said} ended ({entry.ended}) without starting any; see {ledger.directory / entry.output}")
    tell_failures(failures, store)
    report = next((entry for entry in reversed(ledger.entries) if entry.block is None), None)
    if report is not None and report.ended != "COMPLETED":
        print(f"the report's {report.said} ended ({report.ended}); see {ledger.directory / report.output}")
    return 1 if failures else 0


def _why(store: Store, one: Launch, attempts: int) -> str:
    if attempts == 0:
        return "its job ended before it was started"
    file = store.records / f"{launching.again(one, attempts).file}.jsonl"
    return (launching.said(launching.record.read(file).records) if file.is_file() else None) or "failed"
