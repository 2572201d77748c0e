"""Run under srun: a training for each line of a file, ``VARIABLE=VALUE FLAGS...``, and what leaves the nodes meanwhile.

The bytes are the kernel's count on each node's interface; rank 0 writes them, one JSON list for all runs.
"""

import json
import os
import socket
import sys
from pathlib import Path

from hvdkan import train
from mpi.start import initialise

# As each run would by itself: MPI reads it once, here.
os.environ.update({"OMPI_MCA_coll_han_priority": "0"})
initialise()
from mpi4py import MPI  # noqa: E402


def sent():
    lines = Path("/proc/net/dev").read_text().splitlines()
    return sum(int(line.split()[9]) for line in lines if line.strip().startswith("eth0:"))


def main(runs, record, counts):
    world = MPI.COMM_WORLD
    hosts = world.allgather(socket.gethostname())
    counts_here = hosts.index(hosts[world.rank]) == world.rank
    found = []
    for line in Path(runs).read_text().splitlines():
        assignment, *flags = line.split()
        os.environ.update([assignment.split("=")])
        world.Barrier()
        before = sent()
        world.Barrier()
        status = train.main([*flags, "--record", record])
        world.Barrier()
        found.append(world.reduce(sent() - before if counts_here else 0))
        if status != 0:
            return status
    if world.rank == 0:
        Path(counts).write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
