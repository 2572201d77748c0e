"""Time all-reduce algorithms: ``mpirun -n 8 python -m mpi.bench -b 8 -e 16M -f 2 --algorithms all``.

Times are the slowest rank's after a barrier. Bus bandwidth is size / time * 2(p-1)/p, as in nccl-tests, so that numbers
of ranks can be compared; ``of bound`` is the least time that the links allow, measured before, over the median time.
"""

from __future__ import annotations

import os
import sys
import traceback


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 1 where a result was wrong, 2 where an argument cannot be used."""
    # Open MPI 5 would run `flat` as its own hierarchy; read when MPI is initialised.
    os.environ.setdefault("OMPI_MCA_coll_han_priority", "0")
    from mpi.start import initialise

    # Before anything that imports MPI from mpi4py, which would initialise it in its own way.
    initialise()
    from mpi4py import MPI

    from mpi.algorithms import AlgorithmError
    from mpi.options import UsageError, parser, read_options
    from mpi.session import Session
    from mpi.topology import TopologyError
    from mpi.tuning import TableError

    arguments = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help"} & set(arguments):
        if MPI.COMM_WORLD.rank == 0:
            parser().print_help()
        return 0
    try:
        return Session(MPI.COMM_WORLD, read_options(arguments)).run()
    except (UsageError, AlgorithmError, TopologyError, TableError) as error:
        # The same one on all ranks.
        if MPI.COMM_WORLD.rank == 0:
            print(f"error: {error}", file=sys.stderr)
        return 2


def _main_or_abort() -> int:
    """An error on one rank ends all of them."""
    try:
        return main()
    except Exception:
        from mpi4py import MPI

        traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
        return 1


if __name__ == "__main__":
    from hvdkan.streams import outlive_readers

    outlive_readers()
    sys.exit(_main_or_abort())
