"""A cluster comes up, verified, or not at all; and goes, whatever is left of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from jobs.rehearsal import commands, daemons, home, network, processes, requirements, verify
from jobs.rehearsal.cluster import Cluster
from jobs.rehearsal.errors import Failed, RehearsalError
from jobs.rehearsal.outside import python

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(KeyboardInterrupt):
    """`up` got a signal."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number


def check(cluster: Cluster) -> None:
    """Everything that can be refused before anything is made. Raises :class:`~jobs.rehearsal.errors.Refused`."""
    requirements.check_programs()
    requirements.check_kernel(cluster.rate_bits is not None, cluster.delay_us is not None)
    requirements.check_python(python())


def up(cluster: Cluster, say: Callable[[str], None]) -> None:
    """Bring ``cluster`` up and verify it; where anything fails or a signal comes, everything is taken down again."""
    commands.mark(cluster.name)
    made = False
    with _signals(), contextlib.ExitStack() as stack:
        try:
            with _blocked():
                home.make(cluster)
                made = True
            # Held until all is taken down, should it come to that.
            stack.enter_context(_held(cluster.path()))
            home.fill(cluster)
            daemons.write_files(cluster)
            network.make(cluster)
            say(f"{cluster.network} holds {cluster.nodes} nodes; everything is in {cluster.directory}")
            running = daemons.start(cluster)
            say(verify.nodes_idle(cluster, running))
            say(verify.tasks(cluster))
            for line in verify.links(cluster):
                say(line)
            say(verify.mpi(cluster))
            cluster.path(home.UP).unlink()
        except BaseException as error:
            if not made:
                # Another `up` was quicker; what is there is not this one's to take down.
                raise
            with _deaf():
                said = _message(error)
                take_down(cluster.name, cluster.path())
            if said is not None:
                raise Failed(f"{said}\nerror: everything was taken down again") from None
            raise


def down(name: str, given: Path | None) -> bool:
    """Take down what there is of the cluster ``name``; whether there was anything."""
    home.check_given(given)
    with _deaf(), home.locked(name, given, wait_s=60.0) as stopped:
        return take_down(name, given) or stopped


def take_down(name: str, given: Path | None) -> bool:
    """Processes, network, directory, in this order, however much of each there is; whether there was anything."""
    try:
        ended = processes.end(name, home.places(name, given))
    except TimeoutError as error:
        raise Failed(str(error)) from None
    removed = network.unmake(name)
    left = network.links(name) + network.namespaces(name)
    if left:
        raise Failed(f"still there, though nothing runs in it: {', '.join(left)}")
    return home.remove(name, given) or removed or ended > 0


def remains(name: str, given: Path | None) -> str | None:
    """What there is of a cluster of this name, in words; None where nothing is."""
    places = [str(place) for place in home.places(name, given) if os.path.lexists(place) and place != given]
    found = places + network.links(name) + network.namespaces(name)
    return ", ".join(found[:3]) if found else None


def _message(error: BaseException) -> str | None:
    """An error that has words of its own; a signal and a mistake in this program keep their shape."""
    if isinstance(error, RehearsalError):
        return str(error)
    return f"{error}" if isinstance(error, OSError) else None


@contextlib.contextmanager
def _held(directory: Path) -> Iterator[None]:
    """Tells `down` that somebody is at work here."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    def end(number: int, _frame: Any) -> NoReturn:
        raise Ended(number)

    before = {number: signal.signal(number, end) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    """Signals wait for the end of this."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """What takes down is not to be stopped half-way; it has an end of its own."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
