"""Run under mpirun: how many buffers' worth of bytes one exchange of DDP's hook sends over the loopback interface."""

import sys
from pathlib import Path

import torch

from hvdkan.backends import make_backend
from hvdkan.config import Config
from hvdkan.launcher import detect


def sent():
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.strip().startswith("lo:"))


def main(allreduce):
    backend = make_backend(Config(backend="ddp", allreduce=allreduce, simulate_nodes=(2, 2)), detect())
    backend.start()
    buffer, times = torch.ones(4 << 20), 5
    backend.average_(buffer)
    backend.world.barrier()
    before = sent()
    for _ in range(times):
        backend.average_(buffer)
    backend.world.barrier()
    if backend.world.rank == 0:
        print("sent", (sent() - before) / times / buffer.nbytes, flush=True)
    assert (buffer == 1).all()
    backend.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
