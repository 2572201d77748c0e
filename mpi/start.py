"""The moment between MPI_Init and the first message."""

from __future__ import annotations

import ctypes
import os


def leave_init_together() -> None:
    """Wait, without a message of MPI, until every rank has left MPI_Init.

    Open MPI 5 waits for the others inside MPI_Init before its point-to-point layer knows the world: a rank that is
    let go first and sends at once crashes one that still waits (open-mpi/ompi#12495, seen under srun). This closes the
    gap where the launcher's fence is a barrier; Slurm 22.05's was seen to let a rank go early here too. PMIx is already
    loaded and started by MPI_Init; where it is not, the launcher is another and has no such gap.
    """
    if "PMIX_RANK" not in os.environ:
        return
    try:
        pmix = ctypes.CDLL("libpmix.so.2", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return
    pmix.PMIx_Fence(None, ctypes.c_size_t(0), None, ctypes.c_size_t(0))
