"""One process, no exchange."""

from __future__ import annotations

from hvdkan.backends.base import Backend, Effective
from hvdkan.kinds import ConfigError


class Single(Backend):
    name = "single"

    def start(self) -> None:
        super().start()
        if self.launcher.size > 1:
            raise ConfigError(
                f"--backend single has one worker, but {self.launcher.kind} started {self.launcher.size}; "
                "use horovod, ddp or mpi"
            )
        reason = None if self.config.allreduce == "stock" else "one worker, nothing to exchange"
        self.effective = Effective("none", "none", "none", reason)
