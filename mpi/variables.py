"""Settings of the MPI library as the library itself has them, read by its tools interface (MPI_T)."""

from __future__ import annotations

import ctypes


def control_variable(name: str) -> int | None:
    """The value of an integer control variable, such as Open MPI's `coll_han_priority`; None where there is none.

    Open MPI has one for each parameter of each component that was loaded: None also says that it has no such
    component. Read it when MPI is up.
    """
    from mpi4py import MPI

    library = ctypes.CDLL(MPI.__file__)
    if getattr(library, "MPI_T_cvar_get_index", None) is None:
        return None
    library.MPI_T_init_thread(ctypes.c_int(0), ctypes.byref(ctypes.c_int()))
    try:
        index, count = ctypes.c_int(), ctypes.c_int()
        if library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)) != MPI.SUCCESS:
            return None
        handle = ctypes.c_void_p()
        if library.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count)) != MPI.SUCCESS:
            return None
        # Room for more than an int: a variable of another type must not write past it.
        values = (ctypes.c_int * max(16, 2 * count.value))()
        status = library.MPI_T_cvar_read(handle, values)
        library.MPI_T_cvar_handle_free(ctypes.byref(handle))
        return values[0] if status == MPI.SUCCESS else None
    finally:
        library.MPI_T_finalize()
