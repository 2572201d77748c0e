"""The trained model in a file: parameters and what is needed to build the model again."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import torch

from hvdkan.config import Config
from hvdkan.files import replacing
from hvdkan.kinds import ConfigError, first_line
from hvdkan.models import build_model
from hvdkan.tasks import FORMULAS, Scaling

FORMAT = "hvdkan.model/1"


def model_for(config: Config, inputs: int | None = None) -> torch.nn.Module:
    """The untrained model that ``config`` describes, on the CPU; the same on all ranks.

    ``inputs`` is their number where the task does not tell it, as of a table.
    """
    width = [inputs or FORMULAS[config.task].inputs, *config.hidden, 1]
    dtype = getattr(torch, config.dtype)
    return build_model(config.operator, width, config.grid, config.order, config.seed, dtype, symbolic=config.symbolic)


def save(path: Path, model: torch.nn.Module, config: Config, scaling: Scaling | None = None) -> None:
    """Write the model, complete or not at all, and the ``scaling`` of its data (None: that of its formula)."""
    state = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    with replacing(path) as stream:
        saved = {"format": FORMAT, "config": config.to_dict(), "state": state}
        torch.save(saved if scaling is None else {**saved, "scaling": scaling.to_dict()}, stream)


def load(path: Path) -> tuple[torch.nn.Module, Config]:
    """The model of :func:`save` and its config. Raises ConfigError for any other file.

    The model sees inputs on the grid's range: :func:`predictor` takes and gives units. ``hvdkan.pykan.to_pykan`` makes
    of a ``spline`` model one of pykan's.
    """
    model, config, _ = _load(path)
    return model, config


class Predictor:
    """A trained model in the units of its data: ``predict(rows)`` is [n] for ``rows`` [n, inputs].

    ``columns`` names the inputs in the order in which ``rows`` has them, ``target`` what is predicted.
    """

    def __init__(self, model: torch.nn.Module, scaling: Scaling):
        self.model, self.scaling = model, scaling
        self.columns, self.target = scaling.columns, scaling.target

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """float64. Raises ValueError for another number of columns."""
        rows = np.asarray(rows, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != len(self.columns):
            raise ValueError(f"rows have the shape {rows.shape}; they must be [n, {len(self.columns)}]")
        dtype = next(self.model.parameters()).dtype
        with torch.no_grad():
            answers = self.model(torch.from_numpy(self.scaling.seen(rows)).to(dtype))
        return self.scaling.target_units(answers[:, 0].double().numpy())


def predictor(path: Path) -> Predictor:
    """What was trained and saved in ``path``, to predict with. Raises ConfigError for any other file."""
    model, _, scaling = _load(path)
    return Predictor(model, scaling)


def _load(path: Path) -> tuple[torch.nn.Module, Config, Scaling]:
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise ConfigError(f"{path} holds no model that can be read: {first_line(error)}") from error
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise ConfigError(f"{path} holds no model of format {FORMAT}")
    try:
        config = Config.from_dict(saved["config"])
        kept = saved.get("scaling")
        scaling = FORMULAS[config.task].scaling if kept is None else Scaling.from_dict(kept)
        model = model_for(config, len(scaling.columns))
        model.load_state_dict(saved["state"])
    except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{path} holds no model that can be built: {first_line(error)}") from error
    return model, config, scaling
