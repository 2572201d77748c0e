"""pykan 0.2.8 itself, as the reference operator, and conversion of models to it and from it.

What pykan does by default and is prevented here: writing ``./model`` from every process (``auto_save``), reseeding
torch, numpy and random for the whole process, and models that can be neither copied nor pickled after a forward. What
is left on, because it is what its users run: the symbolic branch (a Python loop over all edges) and the recording of
activations (``save_act``), which its plots, pruning and regularisation read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy
import torch
from kan import MultKAN
from torch import nn

from hvdkan.models import KAN, count_parameters
from hvdkan.spline import ModelError

#: Parameters of one of our layers and where pykan keeps them; the second group hangs on the model, one per layer.
_OF_LAYER = ("coef", "scale_base", "scale_sp", "grid", "mask")
_OF_MODEL = ("node_scale", "node_bias", "subnode_scale", "subnode_bias")


class ReferenceKAN(MultKAN):
    """pykan's model, with what is needed to train it among others; its mathematics is untouched.

    A copy and a pickle work, without the activations of the last forward (fixed symbolic edges hold functions that
    cannot be pickled: such a model is refused by name). ``to`` takes a dtype too. Pruning and refining keep the dtype,
    the global random state and ``auto_save`` as they are, where pykan's would write to ``./model`` and fail without it.
    """

    def parameter_counts(self) -> dict[str, int]:
        """``all``, frozen ones included, and ``trainable``: what requires a gradient.

        With the symbolic branch on, ``trainable`` holds its affine parameters (12 W for [2, W, 1]); their gradient is
        zero while no edge is symbolic. With the branch off they would get none, and are frozen.
        """
        return count_parameters(self)

    def to(self, *args, **kwargs) -> ReferenceKAN:
        nn.Module.to(self, *args, **kwargs)
        self.device = self.act_fun[0].coef.device
        for layer in (*self.act_fun, *self.symbolic_fun):
            layer.device = self.device
        return self

    def prune_node(self, *args, **kwargs) -> MultKAN:
        return self._derived(super().prune_node, *args, **kwargs)

    def prune_input(self, *args, **kwargs) -> MultKAN:
        return self._derived(super().prune_input, *args, **kwargs)

    def refine(self, *args, **kwargs) -> MultKAN:
        return self._derived(super().refine, *args, **kwargs)

    def _derived(self, derive, *args, **kwargs) -> MultKAN:
        default = torch.get_default_dtype()
        with global_random_state_kept():
            torch.set_default_dtype(self.act_fun[0].coef.dtype)
            try:
                model = derive(*args, **kwargs)
            finally:
                torch.set_default_dtype(default)
        model.auto_save = self.auto_save
        return model

    def __reduce__(self):
        _refuse_symbolic(self)
        arguments = {
            "width": [_widths(width) for width in self.width],
            "grid": [layer.num for layer in self.act_fun],
            "order": [layer.k for layer in self.act_fun],
            "base_fun": self.base_fun_name,
            "symbolic_enabled": self.symbolic_enabled,
            "grid_eps": self.grid_eps,
            "grid_range": list(self.grid_range),
            "save_act": self.save_act,
        }
        trained = {name: parameter.requires_grad for name, parameter in self.named_parameters()}
        return _rebuild, (arguments, self.state_dict(), trained, self.training)

    def __deepcopy__(self, memo: dict) -> ReferenceKAN:
        build, arguments = self.__reduce__()
        return memo.setdefault(id(self), build(*arguments))


def reference_model(
    width: Sequence[int],
    grid: int,
    order: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
    symbolic: bool = True,
) -> ReferenceKAN:
    """pykan's own model for one run, e.g. ``reference_model([2, 32, 1], 10, 3, seed=0)``, on the CPU.

    It starts where ``KAN(width, grid, order, seed=seed)`` starts. pykan's own constructor draws the same numbers, but
    its least-squares fit differs between two calls with one seed, in the last bits up to order 3 and badly above
    (torch.linalg.lstsq with its default driver reads memory that was never set: pytorch issues 71222 and 187411).
    ``symbolic`` off skips the loop over edges, as pykan's ``speed()`` does, and freezes the affine parameters that
    would never get a gradient.
    """
    model = to_pykan(KAN(width, grid, order, seed=seed, dtype=dtype))
    model.symbolic_enabled = symbolic
    for layer in model.symbolic_fun:
        layer.affine.requires_grad_(symbolic)
    return model


def from_pykan(model: MultKAN) -> KAN:
    """Our KAN with the parameters, masks, knots, trainable set, dtype and device of pykan's model.

    Raises :class:`ModelError`, naming layer and edge, for what ours does not have: multiplication nodes, fixed symbolic
    edges, base functions other than SiLU, pruned inputs.
    """
    for index, width in enumerate(model.width):
        _, multiplications = _widths(width)
        if multiplications:
            raise ModelError(f"layer {index} has {multiplications} multiplication nodes, which cannot be converted")
    _refuse_symbolic(model)
    for index, layer in enumerate(model.act_fun):
        if not isinstance(layer.base_fun, nn.SiLU):
            raise ModelError(f"layer {index} has the base function {layer.base_fun}; only SiLU can be converted")
    inputs = model.act_fun[0].coef.shape[0]
    if model.input_id.tolist() != list(range(inputs)):
        raise ModelError(f"inputs were pruned to columns {model.input_id.tolist()}; select them in the data instead")
    kan = KAN(
        [_widths(width)[0] for width in model.width],
        [layer.num for layer in model.act_fun],
        [layer.k for layer in model.act_fun],
        dtype=model.act_fun[0].coef.dtype,
        grid_range=tuple(model.grid_range),
        grid_eps=model.grid_eps,
    ).to(model.act_fun[0].coef.device)
    for ours, theirs in _pairs(kan, model):
        _copy(theirs, ours)
    return kan.train(model.training)


def to_pykan(kan: KAN) -> ReferenceKAN:
    """pykan's model with our parameters, for its plots, pruning and symbolic fits (after one forward of it, as always).

    It writes no checkpoints (``auto_save`` is off); the symbolic branch is there and on.
    """
    model = _build(
        [[w, 0] for w in kan.width], kan.grid, kan.order, grid_range=list(kan.grid_range), grid_eps=kan.grid_eps
    ).to(kan.layers[0].coef.device, kan.layers[0].coef.dtype)
    for ours, theirs in _pairs(kan, model):
        _copy(ours, theirs)
    return model.train(kan.training)


@contextmanager
def global_random_state_kept() -> Iterator[None]:
    """Restore the states of ``random``, numpy and torch (all devices in use) on leaving."""
    python, legacy = random.getstate(), numpy.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            numpy.random.set_state(legacy)


def _build(width: list, grid: Sequence[int], order: Sequence[int], **options) -> ReferenceKAN:
    with global_random_state_kept():
        return ReferenceKAN(width, _one_or_list(grid), _one_or_list(order), auto_save=False, **options)


def _rebuild(arguments: dict, state: dict, trained: dict, training: bool) -> ReferenceKAN:
    coef = state["act_fun.0.coef"]
    model = _build(**arguments).to(coef.device, coef.dtype)
    model.load_state_dict(state)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained[name])
    return model.train(training)


def _one_or_list(values: Sequence[int]) -> int | list[int]:
    # pykan's later constructions (refine, prune) expect a number where all layers agree.
    return values[0] if len(set(values)) == 1 else list(values)


def _widths(width: int | Sequence[int]) -> list[int]:
    """Additions and multiplications of one of pykan's layers."""
    return [int(width), 0] if not isinstance(width, Sequence) else [int(width[0]), int(width[1])]


def _pairs(kan: KAN, model: MultKAN) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
    for index, layer in enumerate(kan.layers):
        for name in _OF_LAYER:
            yield getattr(layer, name), getattr(model.act_fun[index], name)
        for name in _OF_MODEL:
            yield getattr(layer, name), getattr(model, name)[index]


def _copy(source: nn.Parameter, target: nn.Parameter) -> None:
    target.requires_grad_(source.requires_grad)
    target.data.copy_(source.data)


def _refuse_symbolic(model: MultKAN) -> None:
    for index, layer in enumerate(model.symbolic_fun):
        for j, names in enumerate(layer.funs_name):
            for i, name in enumerate(names):
                if layer.mask[j, i] != 0:
                    raise ModelError(
                        f"layer {index}, edge {i} -> {j} is fixed to the symbolic function {name!r}; "
                        "unfix it first (pykan's unfix_symbolic)"
                    )
