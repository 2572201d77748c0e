"""hvdkan.train with a fault on rank 1 alone (0 of 1): ``faulty.py FAULT CALL FLAGS...`` fails at a call of a step."""

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
    if launcher.rank == min(1, launcher.size - 1):
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
