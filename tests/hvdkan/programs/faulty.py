"""hvdkan.train with a fault on one rank alone: ``faulty.py FAULT CALL FLAGS...`` fails at a call of a step.

FAULT is of rank 1 (0 of 1), or as in ``SIGKILL@0`` of another. CALL 0 is before the first step, ``init`` before MPI's.
"""

import errno
import os
import signal
import sys
import time

import torch

from hvdkan import train
from hvdkan.launcher import detect


def fail(fault):
    if fault == "missing":
        open("/no/such/file")  # noqa: PTH123, SIM115
    if fault == "full":
        raise OSError(errno.ENOSPC, "No space left on device")
    if fault == "interrupt":
        raise KeyboardInterrupt
    if fault == "exit":
        sys.exit(3)
    if fault == "nan":
        return torch.tensor(float("nan"))
    if fault.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[fault])
        time.sleep(3600)
    if fault == "sleep":
        time.sleep(3600)
    raise AssertionError(fault)


def main(fault, call, *flags):
    launcher = detect()
    fault, _, rank = fault.partition("@")
    if launcher.rank == int(rank or min(1, launcher.size - 1)):
        if call == "init":
            fail(fault)
        calls = 0
        original = {0: train.provenance.load}.get(int(call), train.train_step)

        def broken(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls >= int(call):
                value = fail(fault)
                return original(*arguments, **options) * value
            return original(*arguments, **options)

        if int(call) == 0:
            train.provenance.load = broken
        else:
            train.train_step = broken
    return train.main(list(flags))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
