"""The ranks of a job as whatever started them offers it: for placement, agreement and results, never for gradients."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from hvdkan.launcher import Launcher, check_size


class World:
    """A world of one; the others derive from it."""

    rank = 0
    size = 1

    def allgather(self, value: Any) -> list[Any]:
        """One picklable object from every rank, in rank order, on all ranks."""
        return [value]

    def broadcast(self, value: Any) -> Any:
        """The object of rank 0, on all ranks."""
        return self.allgather(value)[0]

    def barrier(self) -> None:
        self.allgather(None)

    def close(self) -> None:
        """Leave in good order; the process may end afterwards."""


class MpiWorld(World):
    def __init__(self) -> None:
        from mpi.start import initialise

        initialise()
        from mpi4py import MPI

        self.comm = MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size

    def allgather(self, value: Any) -> list[Any]:
        return self.comm.allgather(value)

    def broadcast(self, value: Any) -> Any:
        return self.comm.bcast(value)

    def barrier(self) -> None:
        self.comm.Barrier()


class TorchWorld(World):
    """The ranks of torchrun, over Gloo."""

    def __init__(self, timeout_s: float) -> None:
        import torch.distributed as dist

        self._dist = dist
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def allgather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        self._dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        self._dist.barrier()

    def close(self) -> None:
        # A process that ends without this can abort.
        if self._dist.is_initialized():
            self._dist.destroy_process_group()


class HorovodWorld(World):
    """The ranks of horovodrun without MPI."""

    def __init__(self) -> None:
        import horovod.torch as hvd

        self._hvd = hvd
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()

    def allgather(self, value: Any) -> list[Any]:
        # Its own name: Horovod's default has the object's type in it, and ranks with another type wait for ever.
        return self._hvd.allgather_object(value, name="hvdkan.world") if self.size > 1 else [value]


def open_world(launcher: Launcher, timeout_s: float) -> World:
    """The world of this process. Raises LaunchError where it is not the one that the launcher started."""
    if launcher.has_mpi:
        world, library = MpiWorld(), "MPI (mpi4py)"
    elif launcher.kind == "torchrun":
        world, library = TorchWorld(timeout_s), "torch.distributed"
    elif launcher.kind == "horovodrun":
        world, library = HorovodWorld(), "Horovod"
    else:
        return World()
    check_size(launcher, world.size, library)
    return world


def abort(status: int) -> None:
    """End the whole job now, from any rank and any thread."""
    import sys

    sys.stdout.flush()
    sys.stderr.flush()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.size > 1:
        mpi.COMM_WORLD.Abort(status)
    # torchrun and horovodrun end the other ranks when one leaves with a status other than 0.
    os._exit(status)
