"""Signals that end a runner: each becomes the exception that Ctrl-C raises, so that one way out serves all."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any, NoReturn


class Ended(KeyboardInterrupt):
    """The runner got a signal other than Ctrl-C's."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number


def status_of(ended: KeyboardInterrupt) -> int:
    """The exit status that says which signal it was."""
    return 128 + getattr(ended, "number", signal.SIGINT)


@contextlib.contextmanager
def raised() -> Iterator[None]:
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
