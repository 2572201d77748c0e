"""A study as batch jobs: one job a block, so that what is compared shares its nodes, and a last one for the report.

`python -m jobs.study PLAN --launcher sbatch --site NAME` submits and waits; inside each job runs

    python -m jobs.batch run-block results/STUDY/plan.toml --results results --block N --site FILE

which is the local runner with the launches of one block, each a step of the job.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hvdkan import record
from hvdkan.streams import outlive_readers
from jobs import launch as launching
from jobs import plan as plans
from jobs import queue, runner, signals, slurm
from jobs.launchers import AT_SITE, LauncherError
from jobs.ledger import Entry, Ledger, LedgerError
from jobs.sites import Site, SiteError, find, load
from jobs.store import Launch, Store, StoreError
from jobs.waiting import settle, wait

REFUSALS = (plans.PlanError, StoreError, LauncherError, SiteError, LedgerError, slurm.SlurmError, queue.QueueError)
REFUSALS += (record.SchemaError,)


class Batch:
    """A plan's batch jobs at a site. Raises :class:`SiteError` or :class:`PlanError` where they cannot be made."""

    def __init__(self, plan: plans.Plan, store: Store, site_file: Path):
        self.plan, self.store, self.site_file, self.site = plan, store, site_file, load(site_file)
        self.shape = shape(plan, self.site)
        self.directory = (store.root / "slurm").absolute()

    def script(self, block: int, name: str) -> str:
        """The script of a block's job."""
        results = self.store.root.parent.absolute()
        command = [sys.executable, "-m", "jobs.batch", "run-block", str(self.store.plan_file.absolute())]
        command += ["--results", str(results), "--block", str(block), "--site", str(self.site_file)]
        nodes, each = self.shape
        gpus = self.site.gpus(each)
        options = [*self.site.asking(), *([("--mem", self.site.memory_per_node)] if self.site.memory_per_node else [])]
        options += [*([("--gres", gpus)] if gpus else []), *_flags(self.site.sbatch_options)]
        return slurm.script(
            slurm.Job(
                name=name,
                directory=str(self.directory),
                work_directory=str(Path.cwd()),
                command=tuple(command),
                time_s=self.site.time_s,
                nodes=nodes,
                workers_per_node=each,
                cpus_per_worker=self.site.cpus_per_worker,
                exclusive=self.site.exclusive,
                options=tuple(options),
                environment=tuple(self.site.environment.items()),
                prolog=self.site.prolog,
            )
        )

    def report_script(self, name: str) -> str:
        """The script of the job that writes the report."""
        return slurm.script(
            slurm.Job(
                name=name,
                directory=str(self.directory),
                work_directory=str(Path.cwd()),
                command=(sys.executable, "-m", "analysis.report", str(self.store.root.absolute())),
                time_s=slurm.read_time(self.site.report_time_limit),
                options=(*self.site.asking(), *_flags(self.site.report_options)),
                prolog=self.site.prolog,
            )
        )

    def submit(self, ledger: Ledger, block: int | None, after: Sequence[str] = ()) -> Entry:
        """Submit a block's job, or the report's. Raises :class:`queue.QueueError`."""
        entry = ledger.add(self.plan.study, block)
        text = self.report_script(entry.name) if block is None else self.script(block, entry.name)
        file = self.directory / f"{entry.name}.sh"
        file.write_text(text)
        try:
            entry.job = queue.submit(file, after)
        finally:
            ledger.save()
        what = "the report, when they have ended" if block is None else f"block {block}"
        print(f"job {entry.job}: {what}")
        return entry


def shape(plan: plans.Plan, site: Site) -> tuple[int, int]:
    """Nodes and workers a node of a job that holds every variant. Raises SiteError, PlanError."""
    layouts = []
    threads = {variant.config.threads or 1 for variant in plan.variants}
    if len(threads) > 1:
        raise plans.PlanError(
            f"threads are {', '.join(map(str, sorted(threads)))}; in one allocation all must be equal"
        )
    if max(threads) > site.cpus_per_worker:
        raise SiteError(f"threads is {max(threads)}, more than the site's cpus_per_worker {site.cpus_per_worker}")
    if plan.timeout_s > site.time_s:
        raise SiteError(
            f"timeout_s of the plan is {plan.timeout_s:g}, more than a whole job may take: time_limit {site.time_limit}"
        )
    for variant in plan.variants:
        try:
            layouts.append(site.layout(variant.ranks, variant.hosts))
        except SiteError as error:
            raise SiteError(f"variant {variant.name}: {error}") from error
    return max(nodes for nodes, _ in layouts), max(each for _, each in layouts)


def dry_run(batch: Batch, launches: list[Launch], module: str) -> int:
    """Print the scripts, and the commands that each job would run."""
    batch.store.check(batch.plan)
    launcher = AT_SITE[batch.site.launcher](batch.site, batch.plan.timeout_s)
    for block in dict.fromkeys(one.block for one in launches):
        store = Store(batch.store.root.parent, batch.plan.study, block)
        print(f"# --- sbatch --parsable: block {block}")
        print(batch.script(block, f"{batch.plan.study}-b{block:02d}"), end="")
        for one in (one for one in launches if one.block == block):
            words, own = launching.command(one, launcher, module, store.running / f"{one.file}.jsonl")
            print("#   " + shlex.join(["env", *(f"{name}={value}" for name, value in own.items()), *words]))
    print("# --- sbatch --parsable --dependency=afterany:... --kill-on-invalid-dep=yes: the report")
    print(batch.report_script(f"{batch.plan.study}-report"), end="")
    return 0


def run(batch: Batch, launches: list[Launch], *, report: bool, detach: bool, limit_s: float) -> int:
    """Submit what is missing, and wait for it unless ``detach``. The exit status of the study."""
    store, plan = batch.store, batch.plan
    with store.locked():
        store.check(plan)
        ledger = Ledger(batch.directory)
        alive = refresh(ledger, store, launches)
        if alive and (said := plans.difference(plans.load(store.plan_file), plan)):
            raise StoreError(f"{_listed(alive)} still at work on another plan: {said}; wait, or scancel them")
        store.keep(plan)
        batch.directory.mkdir(exist_ok=True)
        todo = runner.missing(launches, store)
        covered = {entry.block for entry in alive}
        wanted = [block for block in dict.fromkeys(one.block for _, one in todo) if block not in covered]
        if alive:
            print(f"{_listed(alive)} at work already")
        for block in wanted:
            batch.submit(ledger, block)
        jobs = [entry.job for entry in ledger.open() if entry.block is not None]
        if report and (wanted or not any(entry.block is None for entry in alive)):
            if not jobs:
                return _report_here(store)
            batch.submit(ledger, None, jobs)
        if detach:
            print("they go on by themselves; start the study again to follow them, or to repeat what failed")
            return 0
        status = wait(ledger, store, launches, limit_s)
        if report and not ledger.open() and _report_is_old(store):
            # What a lost node cut off is recorded here, after the report's job.
            status = _report_here(store) or status
        return status


def refresh(ledger: Ledger, store: Store, launches: list[Launch]) -> list[Entry]:
    """Ask Slurm about jobs that nobody saw end, and settle what they left. Those that are still there."""
    if not ledger.open():
        return []
    known = queue.entries()
    for entry in ledger.open():
        if entry.job is None:
            # The start that wrote it down was ended before it had a number, or before it submitted anything.
            entry.job = queue.named(entry.name)
        one = known.get(entry.job or "") or (queue.entries().get(entry.job) if entry.job else None)
        if one is None or one.ended:
            settle(entry, one.state if one else "no longer known to Slurm", store, launches)
    ledger.save()
    return ledger.open()


def refuse_beside_jobs(store: Store) -> None:
    """Raises :class:`StoreError` where batch jobs are at work on these results."""
    ledger = Ledger(store.root / "slurm")
    if not ledger.open():
        return
    try:
        known = queue.entries()
    except queue.QueueError as error:
        raise StoreError(f"{_numbers(ledger.open())} may be at work on {store.root}, and {error}") from error
    alive = [entry for entry in ledger.open() if entry.job in known and not known[entry.job].ended]
    if alive:
        raise StoreError(f"{_listed(alive)} at work on {store.root}: use --launcher sbatch, or scancel them")


# --- inside a job ---


def main(arguments: Sequence[str] | None = None, *, module: str = "hvdkan.train") -> int:
    """The command line inside a job; ``module`` is what each launch runs. Returns the exit status."""
    try:
        options = _parser().parse_args(arguments)
        with signals.raised():
            return run_block(Path(options.plan), Path(options.results), options.block, find(options.site), module)
    except REFUSALS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as ended:
        return signals.status_of(ended)


def run_block(plan_file: Path, results: Path, block: int, site_file: Path, module: str) -> int:
    """Run what is missing of a block in the allocation around; 1 where launches failed."""
    plan, site = plans.load(plan_file), load(site_file)
    store = Store(results, plan.study, block)
    launcher = AT_SITE[site.launcher](site, plan.timeout_s)
    launcher.ready()
    check_allocation(os.environ, *shape(plan, site))
    launches = [one for one in runner.expand(plan, max(plan.blocks, block)) if one.block == block]

    def cut_off(one: Launch, seconds: float) -> None:
        job = os.environ["SLURM_JOB_ID"]
        said = f"job {job} was told to end while this ran (scancel, preemption, its time limit, or a failed node)"
        launching.lost(one, store, said, seconds)

    with store.locked():
        store.check(plan)
        return 1 if runner.run(launches, plan, store, launcher, module, cut_off) else 0


def check_allocation(environment: os._Environ | dict[str, str], nodes: int, each: int) -> None:
    """The allocation is what was planned. Raises :class:`LauncherError` where it is smaller."""
    names = slurm.expand_nodes(environment.get("SLURM_JOB_NODELIST", ""))
    counts = slurm.task_counts(environment.get("SLURM_TASKS_PER_NODE", "0"))
    if len(names) < nodes or len(counts) < nodes or min(counts[:nodes]) < each:
        raise LauncherError(
            f"planned were {nodes} nodes for {each} workers each; the allocation has {', '.join(names) or 'no nodes'} "
            f"for {', '.join(map(str, counts))}"
        )


def _report_is_old(store: Store) -> bool:
    """Whether there are records that the report cannot know."""
    page = store.root / "report.html"
    made = [file.stat().st_mtime for file in store.records.iterdir()]
    return bool(made) and (not page.exists() or page.stat().st_mtime < max(made))


def _report_here(store: Store) -> int:
    sys.stdout.flush()
    status = subprocess.run([sys.executable, "-m", "analysis.report", str(store.root)], check=False).returncode
    if status != 0:
        print(f"the report ended with status {status}")
    return 1 if status else 0


def _flags(options: Sequence[str]) -> list[tuple[str, str | None]]:
    return [(flag, value if equals else None) for flag, equals, value in (one.partition("=") for one in options)]


def _numbers(entries: list[Entry]) -> str:
    return ("job " if len(entries) == 1 else "jobs ") + ", ".join(entry.job or entry.name for entry in entries)


def _listed(entries: list[Entry]) -> str:
    return _numbers(entries) + (" is" if len(entries) == 1 else " are")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        raise plans.PlanError(message)


def whole(text: str) -> int:
    """A number of blocks, for argparse."""
    # Its length first: Python reads no number of thousands of digits.
    digits = text.isascii() and text.isdigit() and len(text) < 20
    if not digits or not 1 <= int(text) <= plans.MOST_BLOCKS:
        most = plans.MOST_BLOCKS
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1 and at most {most}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m jobs.batch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("command", choices=["run-block"])
    add("plan", help="the study's own copy of its plan")
    add("--results", required=True, metavar="DIR", help="where results/STUDY is")
    add("--block", required=True, type=whole, metavar="N", help="the block to run")
    add("--site", required=True, metavar="NAME", help="a site of jobs/sites, or a site file")
    return parser


if __name__ == "__main__":
    outlive_readers()
    sys.stdout.reconfigure(line_buffering=True)
    sys.exit(main())
