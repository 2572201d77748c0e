"""The compiled CPU kernel of the spline layer: local support, forward and backward, in ``spline.cpp``.

``make setup`` compiles it (:mod:`hvdkan.kernels.compile`); nothing is compiled when a program runs. Of the libraries
the one for the features that torch sees in this processor is loaded. Threads are torch's in number, and share work so
that each sum is made in one order: equal bits for any number of them.
"""

from __future__ import annotations

import ctypes
import functools
import warnings

import torch
from torch import Tensor

from hvdkan.kernels import compile

#: The orders that the kernel is compiled for.
ORDERS = (1, 2, 3, 4, 5)
_POINTERS = ("x", "coef", "scale", "base", "bias", "knots", "bases", "y")
_GRADIENTS = ("grad", "grad_x", "grad_coef", "grad_scale", "grad_base")


class _Layer(ctypes.Structure):
    """The struct Layer of points.hpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "inputs", "outputs", "knot_count")),
        ("uniform", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in (*_POINTERS, *_GRADIENTS)),
        ("threads", ctypes.c_int),
    )


@functools.cache
def load() -> dict[torch.dtype, ctypes._CFuncPtr]:
    """The kernel's entry by dtype; empty, after one warning, where it cannot be used."""
    capability = torch.backends.cpu.get_cpu_capability()
    path = compile.library(capability)
    why = f"there is none for a processor with torch's capability {capability}"
    if capability in compile.variants():
        why = f"it has not been compiled ({path} is missing); run make setup"
    if path.exists():
        try:
            library = ctypes.CDLL(str(path))
            return {torch.float32: library.spline_float, torch.float64: library.spline_double}
        except (OSError, AttributeError) as error:
            why = str(error)
    warnings.warn(f"the spline operator runs without its compiled kernel, slower: {why}", stacklevel=2)
    return {}


def in_use() -> str:
    """The processor features of the kernel that runs here, or ``none``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.backends.cpu.get_cpu_capability() if load() else "none"


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def call(order: int, uniform: bool, wide: bool, backward: bool, **tensors: Tensor | None) -> None:
    """Run forward or backward on contiguous CPU tensors of one dtype; shapes as in points.hpp."""
    x, coef = tensors["x"], tensors["coef"]
    layer = _Layer(
        batch=x.shape[0],
        inputs=coef.shape[0],
        outputs=coef.shape[1],
        knot_count=tensors["knots"].shape[1],
        uniform=uniform,
        threads=torch.get_num_threads(),
        **{name: _pointer(tensor) for name, tensor in tensors.items()},
    )
    status = load()[x.dtype](ctypes.byref(layer), order, backward, wide)
    if status != 0:
        raise MemoryError(f"no memory for a spline layer of {coef.shape[0]} x {coef.shape[1]} at batch {x.shape[0]}")
