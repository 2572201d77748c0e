"""What a cluster needs of this machine, and a crash that is not ours."""

import os

import pytest

from jobs.rehearsal import requirements
from jobs.rehearsal.errors import RehearsalError


def required(rate):
    """Skip by name and reason where a cluster (with shaped links) cannot be; CI has everything it takes."""
    try:
        requirements.check_root()
        requirements.check_programs()
        requirements.check_kernel(rate=rate, delay=False)
    except RehearsalError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))


def crashed_in_init(text):
    """Whether this is it, so that a test may start its job again, once, and nothing else.

    Open MPI 5 under srun: a rank that still waits in MPI_Init is sent to by one that was let go too early;
    open-mpi/ompi#12495; seen now and then in steps of eight ranks on emulated nodes, over TCP.
    """
    return "mca_pml_ob1_recv_frag_callback_match" in text and "ompi_mpi_init" in text
