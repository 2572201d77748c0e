"""Open MPI's own hierarchical collectives, its component `han`: kept off, or asked for."""

from __future__ import annotations

import os

from hvdkan.backends.base import Backend
from hvdkan.config import Config
from hvdkan.kinds import ConfigError

_PRIORITY = "OMPI_MCA_coll_han_priority"
#: Open MPI 4.1's default way through han aborted (4.1.4); 5 has no such parameter and ignores it.
_SIMPLE = "OMPI_MCA_coll_han_use_simple_allreduce"


def pin_han(config: Config) -> dict[str, str]:
    """Keep han off, unless it is the engine or stock was asked for; before MPI is initialised. What is now set.

    Open MPI 5 prefers it across nodes, so that its plain MPI_Allreduce is no flat baseline.
    """
    if config.engine == "han" and config.allreduce == "hierarchical":
        os.environ.update({_PRIORITY: "100", _SIMPLE: "1"})
        return {_PRIORITY: "100", _SIMPLE: "1"}
    if config.allreduce != "stock":
        os.environ[_PRIORITY] = "0"
    return {_PRIORITY: os.environ.get(_PRIORITY, "unset")}


def need_han(backend: Backend, transport: str) -> dict[str, object]:
    """Evidence that han can act on the ranks of a started back end. Collective; raises ConfigError where it cannot."""
    why = None
    if transport != "mpi":
        why = f"the transport is {transport}, not MPI"
    elif backend.config.simulate_nodes is not None:
        why = "Open MPI acts on real nodes only, and --simulate-nodes is given"
    else:
        from mpi4py import MPI

        from mpi.variables import control_variable

        library, priority = MPI.Get_library_version().split(",")[0], control_variable("coll_han_priority")
        if not backend.agree(priority is not None):
            why = f"this MPI has no such component ({library})"
    if why is not None:
        raise ConfigError(f"--engine is 'han', but {why}; it must be process_sets, nccl or torus")
    # As MPI read it: another priority may be higher, so that this is no proof that han was chosen.
    return {"library": library, "coll_han_priority": priority}
