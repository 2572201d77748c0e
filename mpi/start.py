"""From MPI_Init to the first message: so that a hang in it can be ended, and no rank sends before all are there."""

from __future__ import annotations

import atexit
import ctypes
import os


def initialise() -> None:
    """Initialise MPI, once, with all threads allowed, and leave MPI_Init together. Raises RuntimeError where it fails.

    mpi4py's own call, made as it is imported, keeps all other threads of Python waiting: where a rank never comes, the
    watchdog's too. MPI is finalised when the process ends.
    """
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI

    if not MPI.Is_initialized():
        # A symbol of mpi4py's module or of what it was linked to: the very library that mpi4py calls.
        call = getattr(ctypes.CDLL(MPI.__file__), "MPI_Init_thread", None)
        if call is None:
            MPI.Init_thread(MPI.THREAD_MULTIPLE)
        elif call(None, None, ctypes.c_int(MPI.THREAD_MULTIPLE), ctypes.byref(ctypes.c_int())) != MPI.SUCCESS:
            raise RuntimeError("MPI_Init_thread failed")
        # As mpi4py does where it initialises: errors are exceptions, and do not end the process.
        MPI.COMM_SELF.Set_errhandler(MPI.ERRORS_RETURN)
        MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
        # Who initialises finalises.
        atexit.register(lambda: MPI.Is_finalized() or MPI.Finalize())
    leave_init_together()


class _Value(ctypes.Structure):
    """pmix_value_t of PMIx 2 to 5: a type and a union, none of whose members is longer."""

    _fields_ = (("type", ctypes.c_uint16), ("data", ctypes.c_uint64 * 8))


class _Info(ctypes.Structure):
    """pmix_info_t."""

    _fields_ = (("key", ctypes.c_char * 512), ("directives", ctypes.c_uint32), ("value", _Value))


#: PMIX_BOOL.
_BOOL = 1


def leave_init_together() -> None:
    """Wait, without a message of MPI, until every rank has left MPI_Init.

    Open MPI 5 waits for the others inside MPI_Init before its point-to-point layer knows the world: a rank that is
    let go first and sends at once crashes one that still waits (open-mpi/ompi#12495). Slurm 22.05 lets ranks of
    different nodes go at once from a fence that collects no data, as that of MPI_Init; one that collects is a barrier.
    PMIx is already loaded and started by MPI_Init; where it is not, the launcher is another and has no such gap.
    """
    if "PMIX_RANK" not in os.environ:
        return
    try:
        pmix = ctypes.CDLL("libpmix.so.2", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return
    collect = _Info(b"pmix.collect", 0, _Value(_BOOL, (1,)))
    pmix.PMIx_Fence(None, ctypes.c_size_t(0), ctypes.byref(collect), ctypes.c_size_t(1))
