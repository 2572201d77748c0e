"""The launches of a study, which of them are missing, and running those one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobs import launch as launching
from jobs import order
from jobs import plan as plans
from jobs.progress import Progress, duration
from jobs.store import Launch, Store


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


def missing(launches: list[Launch], store: Store) -> list[tuple[int, Launch]]:
    """What is still to be done: number in ``launches`` (from 1), and the launch as its next attempt."""
    states, notes = store.states()
    for note in notes:
        print(f"note: {note}")
    todo = []
    for number, one in enumerate(launches, start=1):
        state = states.get((one.variant.name, one.block))
        if state is None or not state.ok:
            todo.append((number, launching.again(one, state.attempts + 1 if state else 1)))
    if len(todo) < len(launches):
        print(f"{len(launches) - len(todo)} of {len(launches)} launches were done before")
    return todo


def run(
    launches: list[Launch],
    plan: plans.Plan,
    store: Store,
    launcher: Any,
    module: str,
    interrupted: Callable[[Launch, float], None] = lambda launch, seconds: None,
) -> int:
    """Run what is missing; the number of launches that failed.

    ``interrupted`` is told the launch that an exception such as KeyboardInterrupt ended, and the seconds it ran.
    """
    todo = missing(launches, store)
    progress = Progress(len(launches), len(todo))
    seconds, failures, left = 0.0, [], len(todo)
    for number, one in todo:
        at = [0.0]

        def tick(so_far: float, number: int = number, one: Launch = one, at: list[float] = at) -> None:
            at[0] = so_far
            progress.running(number, one, so_far)

        try:
            result = launching.run(one, launcher, module, store, plan.timeout_s, tick)
        except KeyboardInterrupt:
            progress.interrupted()
            interrupted(one, at[0])
            raise
        left -= 1
        outcome = "ok" if result.failure is None else "preempted" if result.preempted else "failed"
        progress.finished(number, one, outcome, result.wall_s, result.failure)
        seconds += result.wall_s
        if result.failure is not None:
            failures.append((one, result.failure))
        if result.preempted:
            print(f"no time left; {left} launches of this job were not started")
            break
    else:
        left = 0
    good = len(launches) - len(failures) - left
    print(f"{len(launches)} launches: {good} done, {len(failures)} failed; this run took {duration(seconds)}")
    tell_failures(failures, store)
    return len(failures) + left


def tell_failures(failures: list[tuple[Launch, str]], store: Store) -> None:
    """A line or two on each launch that failed."""
    for one, failure in failures:
        print(f"failed: {one.variant.name} block {one.block}: {failure}")
        if (log := store.logs / f"{one.file}.log").is_file():
            print(f"  log: {log}")
    if failures:
        print("start the study again to repeat what failed")
