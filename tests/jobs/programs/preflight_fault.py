"""jobs.preflight with a fault on rank 1 alone, run under mpirun: ``preflight_fault.py FAULT FLAGS...``."""

import sys
import time

from hvdkan.launcher import detect
from jobs.preflight import cli, links, look


def deaf(*_):
    """Never answer: what a link looks like that lets nothing through."""
    time.sleep(3600)


FAULTS = {
    "late": lambda: setattr(links, "wall", lambda: time.time() - 7.5),
    "deaf": lambda: setattr(links, "_receive", deaf),
    # Before it has told the others anything.
    "stuck": lambda: setattr(cli, "look", deaf),
    "raises": lambda: setattr(links, "_receive", None),
    # Hosts that are told apart by their name alone, as containers of one kernel are.
    "two_hosts": lambda: None,
}


def main(fault, *flags):
    rank = detect().rank
    if fault in ("late", "two_hosts"):
        label = f"host{rank} kernel"
        look.node_label = lambda: label
    if rank == 1:
        FAULTS[fault]()
    return cli.main(list(flags))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
