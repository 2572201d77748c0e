"""Our own all-reduce over mpi4py."""

from __future__ import annotations

import torch

from hvdkan.backends.base import Backend, Wrapped
from hvdkan.backends.buckets import DEFAULT_MIB, Buckets
from hvdkan.backends.han import pin_han
from hvdkan.backends.over_mpi import OverMpi, chosen, open_over_mpi
from hvdkan.kinds import ConfigError


class Mpi(Backend):
    name = "mpi"
    _exchange: OverMpi | None = None

    def start(self) -> None:
        mca = pin_han(self.config)
        super().start()
        if self.launcher.kind in ("torchrun", "horovodrun"):
            raise ConfigError(f"--backend mpi has no MPI under {self.launcher.kind}; start it with mpirun or srun")
        self.effective, self._exchange = open_over_mpi(self, mca)
        self.observe()

    def stop(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
        super().stop()

    def wrap(self, model, optimizer) -> Wrapped:
        mib = DEFAULT_MIB if self.config.fusion_mb is None else self.config.fusion_mb
        most = int(mib * 2**20)
        wrapped = Buckets(model, optimizer, self.average_, self._exchange.start, most, self.config.overlap)
        self.effective = chosen(self.effective, self._exchange, wrapped.evidence()["bytes"])
        return wrapped

    def average_(self, buffer: torch.Tensor) -> None:
        self._exchange.average_(buffer, observed=self.trace is not None)
