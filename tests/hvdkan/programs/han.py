"""Run under mpirun: the priority of Open MPI's component han as MPI has read it, and that of no component."""

import sys

from hvdkan.backends.han import pin_han
from hvdkan.config import Config
from mpi.start import initialise
from mpi.variables import control_variable

pin_han(Config(allreduce=sys.argv[1], engine="han"))
initialise()
print("priority", control_variable("coll_han_priority"), "of none:", control_variable("coll_none_priority"), flush=True)
