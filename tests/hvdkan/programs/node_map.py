"""Run under mpirun: a back end's hierarchical mean over ranks whose nodes are given as letters, such as ABAB ABBB."""

import sys

import torch

from hvdkan.backends import make_backend
from hvdkan.config import Config
from hvdkan.launcher import detect
from mpi.topology import Topology


def main(backend_name, *maps):
    for labels in maps:
        average(backend_name, labels)


def average(backend_name, labels):
    # What real hosts would say; --simulate-nodes knows consecutive ranks only.
    Topology.simulated = classmethod(lambda cls, workers, size: cls.from_labels(labels))
    config = Config(backend=backend_name, allreduce="hierarchical", simulate_nodes=(len(labels),))
    backend = make_backend(config, detect())
    backend.start()
    for count in (1, 2, 5, 64, 1001):
        rank = backend.world.rank
        # Multiples of the number of ranks, small: every sum and the mean are exact in any order.
        mine = torch.arange(count, dtype=torch.float32) * len(labels) * (rank + 1)
        for _ in range(2):
            buffer = mine.clone()
            backend.average_(buffer)
            total = sum(r + 1 for r in range(len(labels)))
            assert torch.equal(buffer, torch.arange(count) * float(total)), (count, buffer)
    print("map", backend.effective.evidence["calls"], flush=True)
    backend.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
