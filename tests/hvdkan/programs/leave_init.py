"""Run under mpirun: no rank goes on from MPI_Init before all have left it, and no message of MPI is needed for that."""

import sys
import time
from pathlib import Path

from mpi4py import MPI

from mpi.start import leave_init_together


def main(folder):
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    # The last one comes long after the others: without a wait they would look too early.
    time.sleep(0.3 * rank)
    there = Path(folder)
    (there / str(rank)).touch()
    leave_init_together()
    assert len(list(there.iterdir())) == size, f"rank {rank} went on before the others came"
    print("together", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
