"""Our own all-reduce over mpi4py."""

from __future__ import annotations

import os

import torch

from hvdkan.backends.base import Backend, Fused
from hvdkan.config import ConfigError


class Mpi(Backend):
    name = "mpi"

    def start(self) -> None:
        mca = pin_han(self.config.allreduce)
        super().start()
        if self.launcher.kind in ("torchrun", "horovodrun"):
            raise ConfigError(f"--backend mpi has no MPI under {self.launcher.kind}; start it with mpirun or srun")
        from mpi4py import MPI

        from mpi.allreduce import Allreduce

        engine = self.engine()
        engine = "flat" if engine == "builtin" else engine
        evidence = {"mca": mca, "library": MPI.Get_library_version().split(",")[0]}
        if self.device.type == "cuda":
            evidence["staged_through_host"] = True
        self.effective, topology = self.resolve(engine, "mpi", evidence)
        self._allreduce = Allreduce(MPI.COMM_WORLD, topology, engine, self.traced)
        self.observe()

    def stop(self) -> None:
        self._allreduce.close()
        super().stop()

    def wrap(self, model, optimizer):
        return Fused(model, optimizer, self.average_)

    def average_(self, buffer: torch.Tensor) -> None:
        # On the CPU this is the buffer itself; a GPU's goes through host memory.
        host = buffer.cpu()
        self._allreduce(host.numpy())
        # Ranks that differ are told so in the probe and in training's first step; later steps are the same calls.
        self._allreduce.checked = self.trace is not None
        host /= self.world.size
        if host is not buffer:
            buffer.copy_(host)


def pin_han(allreduce: str) -> dict[str, str]:
    """Keep Open MPI's own hierarchical collectives off, unless stock was asked for; before MPI is initialised.

    Open MPI 5 prefers `han` across nodes, so that its plain MPI_Allreduce is no flat baseline.
    """
    name = "OMPI_MCA_coll_han_priority"
    if allreduce != "stock":
        os.environ[name] = "0"
    return {name: os.environ.get(name, "unset")}
