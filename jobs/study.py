"""Run a study: every variant of a plan in every block, one launch after another, each a process of its own.

    python -m jobs.study jobs/plans/quick.toml
    python -m jobs.study jobs/plans/quick.toml --dry-run        # the commands, and nothing else

Started again it does what is missing: finished launches are never repeated, failed ones are, as a new attempt.
Exit status: 0 all launches are done, 1 some failed, 2 refused, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from hvdkan import record
from jobs import launch as launching
from jobs import order
from jobs import plan as plans
from jobs.launchers import LAUNCHERS, LauncherError
from jobs.progress import Progress, duration
from jobs.store import Launch, Store, StoreError

REFUSALS = (plans.PlanError, StoreError, LauncherError, record.SchemaError)


class Ended(KeyboardInterrupt):
    """The runner got a signal other than Ctrl-C's."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number


def main(arguments: Sequence[str] | None = None, *, module: str = "hvdkan.train") -> int:
    """The command line; ``module`` is what each launch runs. Returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parser().parse_args(words)
        with _signals():
            return _study(options, module)
    except REFUSALS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        # A full disk, say, in the middle of a study: what is finished is kept.
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as ended:
        print(f"interrupted; what is finished is kept. To go on: python -m jobs.study {shlex.join(words)}")
        return 128 + getattr(ended, "number", signal.SIGINT)


def expand(plan: plans.Plan, blocks: int | None = None) -> list[Launch]:
    """Every launch of a study in the order in which they are to run; ``blocks`` instead of the plan's number, if given.

    More blocks add to the same first ones, so that a study can be extended.
    """
    variants = {variant.name: variant for variant in plan.variants}
    orders = order.balanced(list(variants), plan.primary + plan.aa, blocks or plan.blocks, plan.order_seed)
    return [
        Launch(plan.study, variants[name], block, place)
        for block, names in enumerate(orders, start=1)
        for place, name in enumerate(names, start=1)
    ]


def _study(options: argparse.Namespace, module: str) -> int:
    plan = plans.load(Path(options.plan))
    store = Store(Path(options.results), plan.study)
    launcher = LAUNCHERS[options.launcher]()
    launches = expand(plan, options.blocks)
    # A launcher that cannot act is refused before the first launch, not in the middle.
    launcher.command(max(variant.ranks for variant in plan.variants), [])
    if options.dry_run:
        store.check(plan)
        for one in launches:
            command, environment = launching.command(one, launcher, module, store.running / f"{one.file}.jsonl")
            print(shlex.join(["env", *(f"{name}={value}" for name, value in environment.items()), *command]))
        return 0
    with store.locked():
        store.check(plan)
        store.keep(plan)
        failed = _run(launches, plan, store, launcher, module)
    if not options.no_report:
        # What was printed so far must stand before what the report prints.
        sys.stdout.flush()
        status = subprocess.run([sys.executable, "-m", "analysis.report", str(store.root)], check=False).returncode
        if status != 0:
            print(f"the report ended with status {status}")
            return 1
    return 1 if failed else 0


def _run(launches: list[Launch], plan: plans.Plan, store: Store, launcher: Any, module: str) -> int:
    """Run what is missing; the number of launches that failed."""
    states, notes = store.states()
    for note in notes:
        print(f"note: {note}")
    todo = []
    for number, one in enumerate(launches, start=1):
        state = states.get((one.variant.name, one.block))
        if state is None or not state.ok:
            todo.append((number, replace(one, attempt=state.attempts + 1 if state else 1)))
    done = len(launches) - len(todo)
    if done:
        print(f"{done} of {len(launches)} launches were done before")
    progress = Progress(len(launches), len(todo))
    seconds, failures = 0.0, []
    try:
        for number, one in todo:
            result = launching.run(
                one, launcher, module, store, plan.timeout_s, lambda s, n=number, o=one: progress.running(n, o, s)
            )
            progress.finished(number, one, "ok" if result.failure is None else "failed", result.wall_s)
            seconds += result.wall_s
            if result.failure is not None:
                failures.append((one, result.failure))
    except KeyboardInterrupt:
        progress.interrupted()
        raise
    good = len(launches) - len(failures)
    print(f"{len(launches)} launches: {good} done, {len(failures)} failed; this run took {duration(seconds)}")
    for one, failure in failures:
        print(f"failed: {one.variant.name} block {one.block}: {failure}\n  log: {store.logs / one.file}.log")
    if failures:
        print("start the study again to repeat what failed")
    return len(failures)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the running launch as Ctrl-C does; one that is ignored (nohup) stays ignored."""

    def end(number: int, _frame: Any) -> NoReturn:
        raise Ended(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler == signal.SIG_DFL:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
    add("--launcher", default="local", choices=sorted(LAUNCHERS), help="how launches are started (default: local)")
    add("--dry-run", action="store_true", help="print the command of every launch and stop")
    add("--blocks", type=_blocks, default=None, metavar="N", help="run N blocks instead of the plan's number")
    add("--no-report", action="store_true", help="do not write the report at the end")
    return parser


def _blocks(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    sys.exit(main())
