"""What exchanges gradients: one small class for each back end, its library imported only when it is made."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvdkan.backends.base import Backend
    from hvdkan.config import Config
    from hvdkan.launcher import Launcher

_CLASSES = {
    "single": ("hvdkan.backends.single", "Single"),
    "horovod": ("hvdkan.backends.horovod", "Horovod"),
    "ddp": ("hvdkan.backends.ddp", "DDP"),
    "mpi": ("hvdkan.backends.mpi", "Mpi"),
}


def make_backend(config: Config, launcher: Launcher) -> Backend:
    """The back end that ``config`` names, not yet started."""
    module, name = _CLASSES[config.backend]
    return getattr(import_module(module), name)(config, launcher)
