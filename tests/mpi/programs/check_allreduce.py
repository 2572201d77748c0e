"""Run under mpirun: our all-reduce against MPI's own, over every node map and count that is asked for."""

import sys

import numpy as np
from mpi4py import MPI

from mpi.allreduce import ALGORITHMS, Allreduce
from mpi.topology import Topology

GUARD = -12345.0


def check(labels):
    comm = MPI.COMM_WORLD
    topology = Topology.from_labels(labels)
    size = comm.size
    for algorithm in ALGORITHMS:
        with Allreduce(comm, topology, algorithm) as allreduce:
            for dtype in (np.float32, np.float64, np.int64):
                for count in (0, 1, 2, size - 1, size, size + 1, 2 * size - 1, 1000, 10007):
                    for exact in (True, False):
                        if not exact and dtype == np.int64:
                            continue
                        check_one(comm, allreduce, dtype, count, exact)
        check_refusals(comm, topology, algorithm)


def check_one(comm, allreduce, dtype, count, exact):
    random = np.random.default_rng([comm.rank, count])
    # Small whole numbers: their sum is exact in any order.
    data = random.integers(-50, 50, count) if exact else random.standard_normal(count)
    padded = np.full(count + 7, GUARD).astype(dtype)
    padded[:count] = data.astype(dtype)
    buffer = padded[:count]
    wanted = np.empty_like(buffer)
    comm.Allreduce(buffer.copy(), wanted)
    magnitude = np.empty(count)
    comm.Allreduce(np.abs(buffer).astype(np.float64), magnitude)
    for _ in range(2):  # twice on the same communicators
        padded[:count] = data.astype(dtype)
        assert allreduce(buffer) is buffer
        assert (padded[count:] == np.asarray(GUARD, dtype)).all(), "wrote behind the buffer"
        if exact:
            assert (buffer == wanted).all(), (allreduce.algorithm, count, dtype)
        else:
            # Any order of p - 1 additions errs by at most (p - 1) eps sum|x|; two orders differ by twice that.
            bound = 2 * comm.size * np.finfo(dtype).eps * magnitude
            assert (np.abs(buffer.astype(float) - wanted) <= bound).all()
        assert len(set(comm.allgather(buffer.tobytes()))) == 1, "ranks hold different bits"


def check_refusals(comm, topology, algorithm):
    with Allreduce(comm, topology, algorithm) as allreduce:
        for bad, error in ((np.zeros(4, np.float16), TypeError), (np.zeros((4, 4))[:, 1], ValueError)):
            try:
                allreduce(bad)
            except error as raised:
                assert bad.dtype.name in str(raised) or "not contiguous" in str(raised)
            else:
                raise AssertionError(f"{bad.dtype} was not refused")


def make_and_close(times):
    """More objects than MPI has communicators for."""
    comm = MPI.COMM_WORLD
    topology = Topology.simulated((comm.size,), comm.size)
    for _ in range(times):
        with Allreduce(comm, topology) as allreduce:
            pass
    with Allreduce(comm, topology) as allreduce:
        assert allreduce(np.ones(3))[0] == comm.size


if __name__ == "__main__":
    if sys.argv[1] == "close":
        make_and_close(int(sys.argv[2]))
    else:
        for node_map in sys.argv[1:]:
            check(node_map)
    print("checked", flush=True)
