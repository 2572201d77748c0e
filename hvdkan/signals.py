"""Signals that end a rank in good order: Ctrl-C, and what batch systems send before they take the nodes away."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

#: The signals, and whether the run should count as preempted: worth another try, since nothing was wrong with it.
#: SIGTERM tells nothing: launchers send it to the ranks that are left when one was killed.
_PREEMPTED = {signal.SIGINT: False, signal.SIGTERM: False, signal.SIGUSR2: True}


class Stopped(Exception):
    """A signal asked this rank to end; ``number`` says which."""

    def __init__(self, number: int):
        self.number = number
        self.preempted = _PREEMPTED[signal.Signals(number)]
        super().__init__("interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}")


def watch(stopped: Callable[[Stopped], None]) -> None:
    """Call ``stopped`` from a thread of its own as soon as such a signal comes.

    Not from the handler: the main thread may wait inside MPI, where no Python runs. A signal that is ignored (nohup)
    stays ignored. Raises ValueError when not called from the main thread.
    """
    receiver, sender = os.pipe()
    os.set_blocking(sender, False)
    signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    for number in _PREEMPTED:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, lambda *_: None)
    threading.Thread(target=_wait, args=(receiver, stopped), name="signals", daemon=True).start()


def _wait(receiver: int, stopped: Callable[[Stopped], None]) -> None:
    while True:
        for number in os.read(receiver, 16):
            if number in _PREEMPTED:
                stopped(Stopped(number))
