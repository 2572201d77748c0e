"""The networks: a pykan-compatible KAN, a plain MLP as its control, and how to build each by name.

A KAN layer has pykan 0.2.8's parameters and mathematics, without multiplication nodes and without the symbolic branch::

    s[j] = sum_i mask[i, j] (scale_base[i, j] silu(x[i]) + scale_sp[i, j] sum_m coef[i, j, m] B_m(x[i]))
    y[j] = node_scale[j] (subnode_scale[j] s[j] + subnode_bias[j]) + node_bias[j]

Building a model draws from a generator of its own; the global random state is neither read nor changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from hvdkan.config import OPERATORS
from hvdkan.spline import ModelError, cells, fit, spline_sum, uniform_knots

_DTYPES = (torch.float32, torch.float64)


class KANLayer(nn.Module):
    """One layer of a KAN: [batch, inputs] to [batch, outputs], a learned function on every edge.

    Parameters (I inputs, J outputs, G grid intervals, k order), as pykan's: ``coef`` [I, J, G + k], ``scale_base`` and
    ``scale_sp`` [I, J] are trained; ``grid`` [I, G + 1 + 2k], ``mask`` [I, J], ``node_scale``, ``node_bias``,
    ``subnode_scale`` and ``subnode_bias`` [J] are Parameters that do not require a gradient, so that a count over
    ``parameters()`` is pykan's count. ``grid`` may be set to any non-decreasing knots at any time; the layer notices.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        grid: int,
        order: int,
        *,
        grid_range: tuple[float, float] = (-1.0, 1.0),
        noise_scale: float = 0.3,
        scale_base_mu: float = 0.0,
        scale_base_sigma: float = 1.0,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
        form: str | None = None,
    ):
        super().__init__()
        for name, value in (("inputs", inputs), ("outputs", outputs), ("grid", grid), ("order", order)):
            _whole(name, value)
        _check_range(grid_range)
        _check_dtype(dtype)
        generator = _generator(0) if generator is None else generator
        self.inputs, self.outputs, self.grid_intervals, self.order, self.form = inputs, outputs, grid, order, form
        knots = uniform_knots(1, grid, order, grid_range)
        # pykan's draws, in its order and its dtype: the same seed starts from pykan's own parameters.
        noise = (torch.rand(grid + 1, inputs, outputs, generator=generator) - 0.5) * (noise_scale / grid)
        inner = knots[:, order:-order].t()
        coef = fit(inner, noise.flatten(1).unsqueeze(1), knots, order).view(inputs, outputs, grid + order)
        base = torch.rand(inputs, outputs, generator=generator) * 2 - 1
        root = inputs**0.5
        self.coef = nn.Parameter(coef.to(dtype))
        self.scale_base = nn.Parameter(((scale_base_mu + scale_base_sigma * base) / root).to(dtype))
        self.scale_sp = nn.Parameter(torch.full((inputs, outputs), 1 / root, dtype=dtype))
        self.grid = _frozen(knots.repeat(inputs, 1).to(dtype))
        self.mask = _frozen(torch.ones(inputs, outputs, dtype=dtype))
        self.node_scale, self.subnode_scale = (_frozen(torch.ones(outputs, dtype=dtype)) for _ in range(2))
        self.node_bias, self.subnode_bias = (_frozen(torch.zeros(outputs, dtype=dtype)) for _ in range(2))
        self._table = None

    def forward(self, x: Tensor, form: str | None = None) -> Tensor:
        """[batch, inputs] to [batch, outputs]; ``form`` (default: the layer's) as in ``hvdkan.spline.spline_sum``."""
        form = self.form if form is None else form
        edge = self.mask * (self.node_scale * self.subnode_scale)
        bias = self.node_scale * self.subnode_bias + self.node_bias
        return spline_sum(x, self.coef, edge * self.scale_sp, self._cells(), form, edge * self.scale_base, bias)

    def _cells(self):
        # Compared by value: a broadcast or a write through .data changes the knots and no version counter.
        table, grid = self._table, self.grid
        known = table is not None and table.knots.dtype == grid.dtype and table.knots.device == grid.device
        if not (known and torch.equal(table.knots, grid)):
            table = self._table = cells(grid, self.order)
        return table

    def __getstate__(self) -> dict:
        return {**super().__getstate__(), "_table": None}

    def extra_repr(self) -> str:
        return f"{self.inputs}, {self.outputs}, grid={self.grid_intervals}, order={self.order}"


class KAN(nn.Module):
    """A pykan-compatible Kolmogorov-Arnold network, e.g. ``KAN([2, 32, 1], grid=10, order=3, seed=0)``.

    ``grid`` and ``order`` are one number or one per layer; ``dtype`` is float32 or float64. A seed gives the numbers
    that pykan's constructor draws for it, in float32 for either dtype. ``form`` says how splines are computed, as in
    :func:`hvdkan.spline.spline_sum`: parameters are the same for all. Raises :class:`ModelError` naming a value that
    cannot be used.
    """

    def __init__(
        self,
        width: Sequence[int],
        grid: int | Sequence[int] = 10,
        order: int | Sequence[int] = 3,
        *,
        seed: int = 0,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
        grid_range: tuple[float, float] = (-1.0, 1.0),
        noise_scale: float = 0.3,
        scale_base_mu: float = 0.0,
        scale_base_sigma: float = 1.0,
        grid_eps: float = 0.02,
        form: str | None = None,
    ):
        super().__init__()
        self.width, self.grid, self.order = check_network(width, grid, order, dtype)
        self.grid_range = (float(grid_range[0]), float(grid_range[1]))
        self.grid_eps = grid_eps  # pykan's, for its grid update after to_pykan
        generator = _generator(seed) if generator is None else generator
        self.layers = nn.ModuleList(
            KANLayer(
                *(self.width[i], self.width[i + 1], self.grid[i], self.order[i]),
                grid_range=self.grid_range,
                noise_scale=noise_scale,
                scale_base_mu=scale_base_mu,
                scale_base_sigma=scale_base_sigma,
                generator=generator,
                dtype=dtype,
                form=form,
            )
            for i in range(len(self.width) - 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[batch, width[0]] to [batch, width[-1]], in the model's dtype."""
        for layer in self.layers:
            x = layer(x)
        return x

    def parameter_counts(self) -> dict[str, int]:
        """How many numbers the model has, by three definitions.

        ``all`` is pykan's count for the same network, frozen ones included, so that it compares with published sizes:
        this model's Parameters plus five an edge for pykan's symbolic branch (mask and affine), which this operator
        does not have. [2, W, 1] with grid 10 and order 3 has 84 W + 38. ``trainable`` is what the optimiser changes and
        what travels between workers: coef, scale_base, scale_sp; 45 W there. ``stored`` is this model's own
        Parameters, trained and frozen: 69 W + 38 there.
        """
        counts = count_parameters(self)
        symbolic = 5 * sum(layer.inputs * layer.outputs for layer in self.layers)
        return {"all": counts["all"] + symbolic, "trainable": counts["trainable"], "stored": counts["all"]}


class MLP(nn.Module):
    """The control: linear layers with SiLU (the base function of the KAN) between them, torch's own initialisation."""

    def __init__(
        self,
        width: Sequence[int],
        *,
        seed: int = 0,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        self.width = _check_width(width)
        _check_dtype(dtype)
        generator = _generator(seed) if generator is None else generator
        self.layers = nn.ModuleList(
            nn.utils.skip_init(nn.Linear, self.width[i], self.width[i + 1], dtype=dtype)
            for i in range(len(self.width) - 1)
        )
        with torch.no_grad():
            for layer in self.layers:
                bound = layer.in_features**-0.5
                for parameter in (layer.weight, layer.bias):
                    drawn = torch.rand(parameter.shape, generator=generator) * (2 * bound) - bound
                    parameter.copy_(drawn)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, width[0]] to [batch, width[-1]]."""
        for layer in self.layers[:-1]:
            x = functional.silu(layer(x))
        return self.layers[-1](x)

    def parameter_counts(self) -> dict[str, int]:
        """``all`` and ``trainable``; they are equal."""
        return count_parameters(self)


def build_model(
    operator: str,
    width: Sequence[int],
    grid: int,
    order: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
    symbolic: bool = True,
) -> nn.Module:
    """The network for one run, on the CPU. Every one has ``parameter_counts()``.

    ``spline`` is :class:`KAN`, ``matrix`` the same in the matrix form; ``pykan`` is pykan itself
    (:func:`hvdkan.pykan.reference_model`), with its symbolic branch when ``symbolic``; all three start from the same
    parameters. ``mlp`` is :class:`MLP` with the hidden widths of :func:`matched_width`. Raises :class:`ModelError` for
    any other name.
    """
    if operator in ("spline", "matrix"):
        return KAN(width, grid, order, seed=seed, dtype=dtype, form="matrix" if operator == "matrix" else None)
    if operator == "pykan":
        from hvdkan.pykan import reference_model

        return reference_model(width, grid, order, seed, dtype, symbolic)
    if operator == "mlp":
        return MLP(matched_width(width, grid, order), seed=seed, dtype=dtype)
    raise ModelError(f"operator {operator!r} is unknown; choose from {', '.join(OPERATORS)}")


def matched_width(width: Sequence[int], grid: int, order: int) -> list[int]:
    """Widths of the MLP whose trainable parameters come nearest in number to the KAN's.

    All hidden widths are the KAN's times one factor, rounded, at least 1; inputs and outputs stay. The factor is found
    by bisection, as the count grows with it. Without a hidden layer there is nothing to scale.
    """
    width, grids, orders = check_network(width, grid, order)
    goal = sum(a * b * (g + k + 2) for (a, b), g, k in zip(_pairs(width), grids, orders, strict=True))

    def scaled(factor: float) -> list[int]:
        return [width[0], *(max(1, round(w * factor)) for w in width[1:-1]), width[-1]]

    def count(widths: list[int]) -> int:
        return sum((a + 1) * b for a, b in _pairs(widths))

    low, high = 0.0, 4.0 * goal
    while len(width) > 2 and scaled(high) != scaled(low) and high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if count(scaled(middle)) <= goal else (low, middle)
    return min(scaled(low), scaled(high), key=lambda widths: abs(count(widths) - goal))


def check_network(
    width: Sequence[int], grid: int | Sequence[int], order: int | Sequence[int], dtype: torch.dtype = torch.float32
) -> tuple[list[int], list[int], list[int]]:
    """Widths, and the grid and order of each layer, as lists. Raises :class:`ModelError` naming a wrong value."""
    width = _check_width(width)
    _check_dtype(dtype)
    return width, _per_layer("grid", grid, len(width) - 1), _per_layer("order", order, len(width) - 1)


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Elements of all Parameters, and of those that require a gradient."""
    parameters = list(model.parameters())
    return {
        "all": sum(p.numel() for p in parameters),
        "trainable": sum(p.numel() for p in parameters if p.requires_grad),
    }


def parameter_digest(model: nn.Module) -> str:
    """Equal for two models exactly where all their parameters have the same bits."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _pairs(width: list[int]) -> Iterable[tuple[int, int]]:
    return pairwise(width)


def _frozen(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)


def _generator(seed: int) -> torch.Generator:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ModelError(f"seed is {seed!r}; it must be a whole number")
    return torch.Generator().manual_seed(seed)


def _whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"{name} is {value!r}; it must be a whole number, at least 1")


def _check_width(width: Sequence[int]) -> list[int]:
    if not isinstance(width, Sequence) or isinstance(width, str) or len(width) < 2:
        raise ModelError(f"width is {width!r}; it must list the inputs, any hidden widths, and the outputs")
    for value in width:
        _whole("a width", value)
    return list(width)


def _per_layer(name: str, value: int | Sequence[int], depth: int) -> list[int]:
    values = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value] * depth
    if len(values) != depth:
        raise ModelError(f"{name} is {value!r}; it must be one number, or {depth}, one for each layer")
    for item in values:
        _whole(name, item)
    return values


def _check_range(grid_range: tuple[float, float]) -> None:
    if not len(grid_range) == 2 or not grid_range[0] < grid_range[1]:
        raise ModelError(f"grid range is {grid_range!r}; it must be two numbers, the lower first")


def _check_dtype(dtype: torch.dtype) -> None:
    if dtype not in _DTYPES:
        raise ModelError(f"dtype is {dtype}; choose from {', '.join(str(d) for d in _DTYPES)}")
