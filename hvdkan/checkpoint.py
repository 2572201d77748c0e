"""The trained model in a file: parameters and what is needed to build the model again."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch

from hvdkan.config import Config, ConfigError, first_line
from hvdkan.files import replacing
from hvdkan.models import build_model
from hvdkan.tasks import TASKS

FORMAT = "hvdkan.model/1"


def model_for(config: Config) -> torch.nn.Module:
    """The untrained model that ``config`` describes, on the CPU; the same on all ranks."""
    width = [TASKS[config.task].inputs, *config.hidden, 1]
    dtype = getattr(torch, config.dtype)
    return build_model(config.operator, width, config.grid, config.order, config.seed, dtype, symbolic=config.symbolic)


def save(path: Path, model: torch.nn.Module, config: Config) -> None:
    """Write the model, complete or not at all."""
    state = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    with replacing(path) as stream:
        torch.save({"format": FORMAT, "config": config.to_dict(), "state": state}, stream)


def load(path: Path) -> tuple[torch.nn.Module, Config]:
    """The model of :func:`save` and its config. Raises ConfigError for any other file.

    ``hvdkan.pykan.to_pykan`` makes of a ``spline`` model one of pykan's.
    """
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise ConfigError(f"{path} holds no model that can be read: {first_line(error)}") from error
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise ConfigError(f"{path} holds no model of format {FORMAT}")
    try:
        config = Config.from_dict(saved["config"])
        model = model_for(config)
        model.load_state_dict(saved["state"])
    except (KeyError, TypeError, AttributeError, RuntimeError, ConfigError) as error:
        raise ConfigError(f"{path} holds no model that can be built: {first_line(error)}") from error
    return model, config
