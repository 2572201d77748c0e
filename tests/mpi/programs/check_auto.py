"""Run under mpirun: `auto` by a table, and by one that it measures itself."""

import sys

import numpy as np
from mpi4py import MPI

from mpi import tuning
from mpi.allreduce import Allreduce
from mpi.topology import Topology

COMM = MPI.COMM_WORLD
TOPOLOGY = Topology.from_labels("ABAB")
SENDS = ["MPI_Isend over 2"]
TWO_LEVEL = ["MPI_Reduce_scatter over 2", "MPI_Allreduce over 2", "MPI_Allgatherv over 2"]
SIZES = {2: SENDS, 60: SENDS, 300: ["MPI_Allreduce over 4"], 4000: TWO_LEVEL, 100_000: SENDS}

calls = []


def traced(call, members, elements):
    calls.append(f"{call} over {members}")


table = tuning.read(COMM, sys.argv[1], TOPOLOGY)
with Allreduce(COMM, TOPOLOGY, "auto", traced, table=table) as allreduce:
    assert allreduce.algorithm == "auto"
    for count, wanted in SIZES.items():
        calls.clear()
        assert (allreduce(np.ones(count, np.float32)) == 4).all()
        assert calls == wanted, (count, calls)
    # Started together, whatever carries them out.
    buffers = [np.full(count, 1.0, np.float32) for count in SIZES]
    pending = [allreduce.start(buffer) for buffer in buffers]
    for place in np.random.default_rng(COMM.rank).permutation(len(pending)):
        pending[place].wait()
    assert all((buffer == 4).all() for buffer in buffers)

measured = tuning.measured(COMM, TOPOLOGY)
assert len(set(COMM.allgather(str(measured.rows)))) == 1
with Allreduce(COMM, TOPOLOGY, "auto") as allreduce:
    assert (allreduce(np.ones(1000)) == 4).all()

try:
    tuning.read(COMM, __file__, TOPOLOGY)
except tuning.TableError as error:
    assert len(set(COMM.allgather(str(error)))) == 1
else:
    raise AssertionError("not refused")
print("checked", flush=True)
