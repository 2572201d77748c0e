"""Run a study: every variant of a plan in every block, one launch after another, each a process of its own.

    python -m jobs.study jobs/plans/quick.toml
    python -m jobs.study jobs/plans/quick.toml --dry-run        # the commands, and nothing else
    python -m jobs.study jobs/plans/paper.toml --launcher sbatch --site finisterrae3    # a batch job for each block

Started again it does what is missing: finished launches are never repeated, failed ones are, as a new attempt.
Exit status: 0 all launches are done, 1 some failed, 2 refused, 130 interrupted.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from hvdkan.streams import outlive_readers
from jobs import batch, runner, signals, sites, slurm
from jobs import launch as launching
from jobs import plan as plans
from jobs.launchers import AT_SITE, LAUNCHERS, Mpirun
from jobs.runner import expand
from jobs.sites import find, load
from jobs.store import Store

__all__ = ["expand", "main"]

REFUSALS = batch.REFUSALS
#: Seven days, as Slurm writes them.
LONGEST_WAIT = "7-00"
CHOICES = sorted({*LAUNCHERS, *AT_SITE, "sbatch"})


def main(arguments: Sequence[str] | None = None, *, module: str = "hvdkan.train") -> int:
    """The command line; ``module`` is what each launch runs. Returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parser().parse_args(words)
        with signals.raised():
            return _study(options, module)
    except REFUSALS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        # A full disk, say, in the middle of a study: what is finished is kept.
        # The system names the file where it was opened, and none where writing to it failed.
        where = "" if error.filename else f"{options.results}: "
        print(f"error: {where}{error.strerror or error}" if where else f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as ended:
        print(f"interrupted; what is finished is kept. To go on: python -m jobs.study {shlex.join(words)}")
        return signals.status_of(ended)


def _study(options: argparse.Namespace, module: str) -> int:
    plan = plans.load(Path(options.plan))
    store = Store(Path(options.results), plan.study)
    launches = expand(plan, options.blocks)
    if options.launcher == "sbatch":
        made = batch.Batch(plan, store, find(_site(options)))
        if options.dry_run:
            return batch.dry_run(made, launches, module)
        limit_s = slurm.read_time(options.wait or LONGEST_WAIT, "--wait")
        return batch.run(made, launches, report=not options.no_report, detach=options.detach, limit_s=limit_s)
    launcher = _launcher(options, plan)
    # A launcher that cannot act is refused before the first launch, not in the middle.
    for variant in plan.variants:
        launcher.command(variant.ranks, [], variant.hosts)
    if options.dry_run:
        store.check(plan)
        for one in launches:
            command, environment = launching.command(one, launcher, module, store.running / f"{one.file}.jsonl")
            print(shlex.join(["env", *(f"{name}={value}" for name, value in environment.items()), *command]))
        return 0
    launcher.ready()
    with store.locked():
        batch.refuse_beside_jobs(store)
        store.check(plan)
        store.keep(plan)
        failed = runner.run(launches, plan, store, launcher, module)
    if not options.no_report:
        # What was printed so far must stand before what the report prints.
        sys.stdout.flush()
        status = subprocess.run([sys.executable, "-m", "analysis.report", str(store.root)], check=False).returncode
        if status != 0:
            print(f"the report ended with status {status}")
            return 1
    return 1 if failed else 0


def _launcher(options: argparse.Namespace, plan: plans.Plan) -> Mpirun:
    for flag, given in (("--detach", options.detach), ("--wait", options.wait)):
        if given:
            raise plans.PlanError(f"{flag} is for --launcher sbatch; {options.launcher} stays until all is done")
    if options.launcher == "local" and options.site is not None:
        others = ", ".join(name for name in CHOICES if name != "local")
        raise plans.PlanError(f"--site is {options.site!r}, which --launcher local does not use; use one of {others}")
    if options.launcher == "local" or (options.launcher == "mpirun" and options.site is None):
        return LAUNCHERS[options.launcher]()
    site = load(find(_site(options)))
    return AT_SITE[options.launcher](site, plan.timeout_s, own_variables=True)


def _site(options: argparse.Namespace) -> str:
    if options.site is None:
        known = ", ".join(sites.names())
        raise plans.PlanError(f"--launcher {options.launcher} needs --site: one of {known}, or the path of a site file")
    return options.site


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise plans.PlanError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m jobs.study",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("plan", help="a plan, as jobs/plans/quick.toml")
    add("--results", default="results", metavar="DIR", help="where results/STUDY goes (default: results)")
    add("--launcher", default="local", choices=CHOICES, help="how launches are started (default: local)")
    add("--site", metavar="NAME", help="for srun and sbatch: a site of jobs/sites, or the path of a site file")
    add("--dry-run", action="store_true", help="print the command of every launch, or the batch scripts, and stop")
    add("--detach", action="store_true", help="sbatch: do not wait for the jobs")
    add("--wait", metavar="TIME", help=f"sbatch: the longest time to wait for the jobs (default: {LONGEST_WAIT})")
    add("--blocks", type=batch.whole, default=None, metavar="N", help="run N blocks instead of the plan's number")
    add("--no-report", action="store_true", help="do not write the report at the end")
    return parser


if __name__ == "__main__":
    outlive_readers()
    sys.stdout.reconfigure(line_buffering=True)
    sys.exit(main())
