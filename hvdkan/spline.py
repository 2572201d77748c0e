"""B-spline activations: a slow reference and an exact fast sum over edges, both with pykan's rules.

``basis_reference`` is the Cox-de Boor recursion written out (de Boor, "A Practical Guide to Splines", chapter IX).
``spline_sum`` computes what a KAN layer needs, ``y[b, j] = sum_i scale[i, j] sum_m coef[i, j, m] B_m(x[b, i])``, from
the ``order + 1`` bases that are not zero at x. On each cell of the knots every basis is one polynomial, kept as
``sum_s c_s u^s (1 - u)^(order - s)`` with u the place within the cell: all factors are non-negative, so that nothing
cancels in float32. No tensor of shape [batch, in, out] is ever made.

pykan's rules, kept by both: a cell holds ``t_i <= x < t_{i+1}``; the spline is zero beyond the extended knots (and at
NaN and infinities); a basis whose recursion meets a repeated knot (0/0) is zero, so some splines are lost there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hvdkan import kernels
from hvdkan.kinds import ConfigError
from hvdkan.matrix import equal_cells, matrix_sum

#: Above this many knots a binary search beats comparing with each knot in turn.
_COMPARE_AT_MOST = 64
#: From this many outputs on, the kernel's vectors go across outputs, below across samples. Measured, forward and
#: backward, batch 1000, one thread: 64 inputs, 12 outputs 1.4 ms narrow and 1.7 wide, 24 outputs 2.6 and 1.9.
#: The dense matrix product never won, up to 1024 outputs: 256 by 256 with grid 10 took 35 ms wide and 94 dense, with
#: grid 3 31 and 49; 64 by 1024 with grid 3 came nearest, 33 and 38. It serves where there is no kernel.
_WIDE_FROM = 16
#: From this many outputs on, one dense matrix product beats a pass over the points per output.
_DENSE_FROM = 8

FORMS = ("narrow", "wide", "local", "dense", "matrix")


class ModelError(ConfigError):
    """A model or layer cannot be built, converted or applied as asked; one line that names the value."""


def uniform_knots(count: int, grid: int, order: int, grid_range: tuple[float, float] = (-1.0, 1.0)) -> Tensor:
    """Knots [count, grid + 1 + 2 order], float32: ``grid`` equal intervals, ``order`` more of that width on each side.

    The arithmetic is pykan's (repeated addition in float32), so that cells agree to the last bit.
    """
    knots = torch.linspace(grid_range[0], grid_range[1], grid + 1, dtype=torch.float32)
    return extend(knots.expand(count, grid + 1), order)


def extend(grid: Tensor, order: int) -> Tensor:
    """Add ``order`` knots on each side of [in, intervals + 1] at the mean spacing: [in, intervals + 1 + 2 order]."""
    step = (grid[:, -1:] - grid[:, :1]) / (grid.shape[1] - 1)
    for _ in range(order):
        grid = torch.cat([grid[:, :1] - step, grid, grid[:, -1:] + step], dim=1)
    return grid


def basis_reference(x: Tensor, knots: Tensor, order: int) -> Tensor:
    """All B-spline bases by the Cox-de Boor recursion, in plain differentiable torch: slow, and easy to check.

    x: [batch, in]; knots: [in, grid + 1 + 2 order], extended already, never decreasing. Returns
    [batch, in, grid + order].
    """
    x = torch.where(x.isfinite(), x, knots[:, 0] - 1).unsqueeze(2)
    t = knots.unsqueeze(0)
    bases = ((x >= t[..., :-1]) & (x < t[..., 1:])).to(x.dtype)
    for degree in range(1, order + 1):
        rise = t[..., degree:-1] - t[..., : -degree - 1]
        fall = t[..., degree + 1 :] - t[..., 1:-degree]
        defined = (rise > 0) & (fall > 0)
        up = (x - t[..., : -degree - 1]) / torch.where(defined, rise, 1)
        down = (t[..., degree + 1 :] - x) / torch.where(defined, fall, 1)
        bases = torch.where(defined, up * bases[..., :-1] + down * bases[..., 1:], 0)
    return bases


def fit(x: Tensor, y: Tensor, knots: Tensor, order: int) -> Tensor:
    """Least squares: the coefficients [in, out, grid + order] of the splines nearest to y [batch, in, out] at x.

    x: [batch, in]. With fewer points than coefficients, the smallest of the exact solutions. Solved in float64.
    """
    bases = basis_reference(x.double(), knots.double(), order).transpose(0, 1)
    solution = torch.linalg.pinv(bases) @ y.double().transpose(0, 1)
    return solution.transpose(1, 2).to(y.dtype).contiguous()


class Cells(NamedTuple):
    """What is known of a set of knots before any x. Row n of an input serves the points with n knots at or below them.

    Row 0 and the last row lie outside all knots; their tables are zero.
    """

    knots: Tensor  #: [in, knots]
    left: Tensor  #: [in * rows] left end of the cell
    inverse_width: Tensor  #: [in * rows]; 0 where the cell is empty or outside
    bases: Tensor  #: [order + 1, order + 1, in * rows]: local basis r is sum_s bases[r, s] u^s (1 - u)^(order - s)
    uniform: bool  #: each knot is within a quarter of a cell of where equal cells would put it
    equal: bool  #: :func:`hvdkan.matrix.equal_cells`

    @property
    def order(self) -> int:
        return self.bases.shape[0] - 1

    @property
    def rows(self) -> int:
        return self.knots.shape[1] + 1


def cells(knots: Tensor, order: int) -> Cells:
    """Tables for :func:`spline_sum` from knots [in, grid + 1 + 2 order], computed in float64, in the knots' dtype."""
    if knots.dtype not in (torch.float32, torch.float64):
        raise ModelError(f"splines of {knots.dtype} are not supported; choose torch.float32 or torch.float64")
    knots = knots.detach().clone()
    decreasing = ~(knots[:, 1:] >= knots[:, :-1]).all(dim=1)
    if decreasing.any():
        raise ModelError(f"knots of input {int(decreasing.nonzero()[0])} decrease or are not numbers")
    padded = functional.pad(knots.double(), (order + 1, order + 1), mode="replicate")
    rows = knots.shape[1] + 1

    def knot(offset: int) -> Tensor:
        """t_{c + offset} for the cell c of every row (c = row - 1), [in, rows]."""
        return padded[:, order + offset : order + offset + rows]

    left, right = knot(0), knot(1)
    width = right - left
    polynomials = [[(width > 0).double()]]
    for degree in range(1, order + 1):
        polynomials = _raise(polynomials, degree, knot, left, right)
    first = torch.arange(rows, device=knots.device) - 1 - order
    exists = [(first + r >= 0) & (first + r < rows - 2 - order) for r in range(order + 1)]
    bases = torch.stack([torch.stack([p * exists[r] for p in polynomials[r]]) for r in range(order + 1)])
    inverse_width = torch.where(width > 0, 1 / width.clamp_min(torch.finfo(torch.float64).tiny), 0)
    return Cells(
        knots=knots,
        left=left.to(knots.dtype).flatten(),
        inverse_width=inverse_width.to(knots.dtype).flatten(),
        bases=bases.to(knots.dtype).flatten(2),
        uniform=_uniform(knots.double()),
        equal=equal_cells(knots),
    )


def _uniform(knots: Tensor) -> bool:
    step = (knots[:, -1:] - knots[:, :1]) / (knots.shape[1] - 1)
    equal = knots[:, :1] + step * torch.arange(knots.shape[1], device=knots.device)
    return bool((step > 0).all() and ((knots - equal).abs() <= step / 4).all())


def _raise(lower: list[list[Tensor]], degree: int, knot, left: Tensor, right: Tensor) -> list[list[Tensor]]:
    """One step of Cox-de Boor: coefficients lower[r][s] of u^s v^(degree - 1 - s) to [r][s] of u^s v^(degree - s)."""
    zero = torch.zeros_like(left)
    raised = []
    for r in range(degree + 1):
        i = r - degree  # this basis is B_{c + i}
        rise, fall = knot(i + degree) - knot(i), knot(i + degree + 1) - knot(i + 1)
        defined = (rise > 0) & (fall > 0)
        up = lower[r - 1] if r > 0 else [zero] * degree
        down = lower[r] if r < degree else [zero] * degree
        rise, fall = torch.where(defined, rise, 1), torch.where(defined, fall, 1)
        up_left, up_right = (left - knot(i)) / rise, (right - knot(i)) / rise
        down_left, down_right = (knot(i + degree + 1) - left) / fall, (knot(i + degree + 1) - right) / fall
        coefficients = [zero] * (degree + 1)
        for s in range(degree):
            coefficients[s] = coefficients[s] + up_left * up[s] + down_left * down[s]
            coefficients[s + 1] = coefficients[s + 1] + up_right * up[s] + down_right * down[s]
        raised.append([torch.where(defined, value, 0) for value in coefficients])
    return raised


def spline_sum(
    x: Tensor,
    coef: Tensor,
    scale: Tensor,
    table: Cells,
    form: str | None = None,
    base: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """``y[b, j] = sum_i scale[i, j] sum_m coef[i, j, m] B_m(x[b, i])``, exact, with first derivatives by hand.

    x: [batch, in]; coef: [in, out, grid + order]; scale: [in, out]; table: :func:`cells` of the layer's knots. Returns
    [batch, out]. With ``base`` [in, out], ``sum_i base[i, j] silu(x[b, i])`` is added, with ``bias`` [out] that.

    ``form`` is "narrow" or "wide" (compiled, on CPUs; vectors across samples or across outputs), "local" (per output, a
    gather of the polynomial of each point's cell), "dense" (a basis matrix [batch, in * (grid + order)] times the
    coefficients), "matrix" (:mod:`hvdkan.matrix`, evenly spaced knots only) or None: the fastest exact one for these
    shapes. Under autocast it computes in the layer's dtype all the same. Raises :class:`ModelError` for shapes, dtypes
    and knots that do not fit, and when a second derivative is taken (of "matrix" there are some).
    """
    if form is not None and form not in FORMS:
        raise ModelError(f"spline form {form!r} is unknown; choose from {', '.join(FORMS)}")
    if x.dim() != 2 or x.shape[1] != coef.shape[0]:
        raise ModelError(
            f"input of shape {list(x.shape)} does not fit a layer of {coef.shape[0]} inputs: [batch, inputs]"
        )
    if torch.is_autocast_enabled(x.device.type):
        with torch.autocast(x.device.type, enabled=False):
            return spline_sum(x.to(coef.dtype), coef, scale, table, form, base, bias)
    if x.dtype != coef.dtype:
        raise ModelError(f"input is {x.dtype} but the layer is {coef.dtype}; convert one of them")
    if torch.compiler.is_compiling() and x.device.type == "cpu":
        # torch.compile cannot look into the kernel; it breaks its graph here and goes on behind.
        return torch.compiler.disable(_sum)(x, coef, scale, table, form, base, bias)
    return _sum(x, coef, scale, table, form, base, bias)


def _sum(x: Tensor, coef: Tensor, scale: Tensor, table: Cells, form: str | None, base, bias) -> Tensor:
    if form is None:
        form = _form_for(x, coef, table)
    if form in ("narrow", "wide"):
        if not _has_kernel(x, table):
            raise ModelError(f"the spline form {form!r} needs the compiled kernel, a CPU, and an order of at most 5")
        return _Kernel.apply(x, coef, scale, base, bias, table, form)
    if form == "matrix":
        if not table.equal:
            raise ModelError("the operator matrix needs evenly spaced knots, and these are not; choose spline")
        y = matrix_sum(x, _locate(x.detach(), table.knots), table.knots, coef * scale.unsqueeze(2))
    else:
        y = (_Local if form == "local" else _Dense).apply(x, coef, scale, table)
    if base is not None:
        smooth = functional.silu(x)
        y = y + (smooth @ base if bias is None else torch.addmm(bias, smooth, base))
    return y


def _has_kernel(x: Tensor, table: Cells) -> bool:
    return x.device.type == "cpu" and table.order in kernels.ORDERS and bool(kernels.load())


def _form_for(x: Tensor, coef: Tensor, table: Cells) -> str:
    if _has_kernel(x, table):
        return "wide" if coef.shape[1] >= _WIDE_FROM else "narrow"
    return "dense" if coef.shape[1] >= _DENSE_FROM else "local"


def _locate(x: Tensor, knots: Tensor) -> Tensor:
    """How many knots of its own input are at or below each x: int64 [batch, in]. NaN falls outside."""
    if knots.shape[1] > _COMPARE_AT_MOST:
        return torch.searchsorted(knots, x.t().contiguous(), right=True).t()
    count, at_or_above = torch.zeros_like(x), torch.empty_like(x)
    for knot in knots.t().contiguous():
        # In x's own dtype: a bool result would keep torch from vectorising.
        count += torch.ge(x, knot, out=at_or_above)
    return count.long()


def _place(x: Tensor, table: Cells) -> tuple[Tensor, Tensor]:
    """Each point's row in the flat tables and its place u in [0, 1] within its cell, both [batch * in]."""
    offsets = torch.arange(0, x.shape[1] * table.rows, table.rows, device=x.device)
    row = _locate(x, table.knots).add_(offsets).flatten()
    u = table.left.index_select(0, row)
    torch.sub(x.reshape(-1), u, out=u)
    u.mul_(table.inverse_width.index_select(0, row))
    return row, u.nan_to_num_(0.0, 0.0, 0.0)


def _evaluate(values: Tensor, row: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """sum_s values[s, row] u^s v^(degree - s) with v = 1 - u, one number a point (Horner's rule in v)."""
    total = values[0].index_select(0, row)
    if len(values) == 1:
        return total
    # New memory costs more than arithmetic here, so buffers are used again.
    picked, power = torch.empty_like(u), u.clone()
    for s in range(1, len(values)):
        torch.index_select(values[s], 0, row, out=picked)
        total.mul_(v).addcmul_(picked, power)
        power.mul_(u)
    return total


def _accumulate(into: Tensor, weight: Tensor, row: Tensor, u: Tensor, v: Tensor) -> None:
    """The transpose of :func:`_evaluate`: into[s, row] += weight u^s v^(degree - s). Overwrites weight."""
    degree = len(into) - 1
    powers = [v]
    for _ in range(1, degree):
        powers.append(powers[-1] * v)
    term = torch.empty_like(u)
    for s in range(degree):
        into[s].scatter_add_(0, row, torch.mul(weight, powers[degree - s - 1], out=term))
        weight.mul_(u)
    into[degree].scatter_add_(0, row, weight)


def _slope(values: Tensor, table: Cells) -> Tensor:
    """Coefficients [..., order, in * rows] of d/dx of polynomials with coefficients [..., order + 1, in * rows]."""
    s = torch.arange(table.order, dtype=values.dtype, device=values.device).unsqueeze(1)
    return ((s + 1) * values[..., 1:, :] - (table.order - s) * values[..., :-1, :]) * table.inverse_width


class _FirstOnly(torch.autograd.Function):
    """A gradient as it is, and an error instead of its own gradient."""

    @staticmethod
    def forward(ctx, gradient: Tensor, *_: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx, grad: Tensor):
        raise ModelError("second derivatives of the spline operator are not available; choose the operator pykan")


def _first_derivative(backward: Callable) -> Callable:
    """Backward under ``no_grad``. A graph made of it (``create_graph``) ends in an error, never in a missing term."""

    @functools.wraps(backward)
    def guarded(ctx, grad: Tensor):
        with torch.no_grad():
            gradients = backward(ctx, grad)
        if torch.is_grad_enabled():
            depends_on = (grad, *ctx.saved_tensors[:4])
            gradients = tuple(None if g is None else _FirstOnly.apply(g, *depends_on) for g in gradients)
        return (*gradients, None)

    return guarded


class _Kernel(torch.autograd.Function):
    """The compiled kernel (:mod:`hvdkan.kernels`): the whole layer in one call, forward and backward."""

    @staticmethod
    def forward(ctx, x: Tensor, coef: Tensor, scale: Tensor, base, bias, table: Cells, form: str) -> Tensor:
        parts = {name: _whole(t) for name, t in (("x", x), ("coef", coef), ("scale", scale), ("base", base))}
        y = x.new_empty(x.shape[0], coef.shape[1])
        _run(table, parts, form, False, bias=_whole(bias), y=y)
        ctx.save_for_backward(*parts.values())
        ctx.table, ctx.form = table, form
        return y

    @staticmethod
    @_first_derivative
    def backward(ctx, grad: Tensor):
        parts = dict(zip(("x", "coef", "scale", "base"), ctx.saved_tensors, strict=True))
        needed = ctx.needs_input_grad
        made = dict.fromkeys(("grad_x", "grad_coef", "grad_scale", "grad_base"))
        if needed[0]:
            made["grad_x"] = torch.empty_like(parts["x"])
        if any(needed[1:4]):
            made["grad_coef"], made["grad_scale"] = torch.empty_like(parts["coef"]), torch.empty_like(parts["scale"])
            if parts["base"] is not None:
                made["grad_base"] = torch.empty_like(parts["base"])
        _run(ctx.table, parts, ctx.form, True, grad=grad.contiguous(), **made)
        return *made.values(), grad.sum(dim=0) if needed[4] else None, None


def _whole(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _run(table: Cells, parts: dict, form: str, backward: bool, **tensors: Tensor | None) -> None:
    kernels.call(
        table.order, table.uniform, form == "wide", backward, knots=table.knots, bases=table.bases, **parts, **tensors
    )


class _Local(torch.autograd.Function):
    """One pass over the points per output: gathers order + 1 numbers a point forward, adds as many back."""

    @staticmethod
    def forward(ctx, x: Tensor, coef: Tensor, scale: Tensor, table: Cells) -> Tensor:
        row, u = _place(x, table)
        v = 1 - u
        edges = _edge_polynomials(coef * scale.unsqueeze(2), table)
        y = x.new_empty(x.shape[0], coef.shape[1])
        for j, edge in enumerate(edges):
            torch.sum(_evaluate(edge, row, u, v).view(x.shape), dim=1, out=y[:, j])
        ctx.save_for_backward(x, coef, scale, row, u)
        ctx.table = table
        return y

    @staticmethod
    @_first_derivative
    def backward(ctx, grad: Tensor):
        _, coef, scale, row, u = ctx.saved_tensors
        table, shape = ctx.table, (grad.shape[0], coef.shape[0])
        columns = grad.t().contiguous().unsqueeze(2)
        v = 1 - u
        grad_x = grad_coef = grad_scale = None
        if ctx.needs_input_grad[0]:
            slopes = _slope(_edge_polynomials(coef * scale.unsqueeze(2), table), table)
            for column, slope in zip(columns, slopes, strict=True):
                term = _evaluate(slope, row, u, v).view(shape).mul_(column)
                grad_x = term if grad_x is None else grad_x.add_(term)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            edges = grad.new_zeros(len(columns), table.order + 1, len(table.left))
            weight = torch.empty_like(u)
            for column, edge in zip(columns, edges, strict=True):
                weight.view(shape).copy_(column)
                _accumulate(edge, weight, row, u, v)
            grad_coef, grad_scale = _unscale(_edge_coefficients(edges, table), coef, scale)
        return grad_x, grad_coef, grad_scale


def _edge_polynomials(weight: Tensor, table: Cells) -> Tensor:
    """Every edge's spline on every cell: weight [in, out, bases] to coefficients [out, order + 1, in * rows]."""
    count, out = weight.shape[:2]
    windows = functional.pad(weight, (table.order + 1, table.order + 1)).unfold(2, table.rows, 1)
    local = windows.permute(1, 2, 0, 3).reshape(out, table.order + 1, 1, count * table.rows)
    return (local * table.bases).sum(dim=1)


def _edge_coefficients(edges: Tensor, table: Cells) -> Tensor:
    """The transpose of :func:`_edge_polynomials`: [out, order + 1, in * rows] to [in, out, bases]."""
    count, pad = len(table.knots), table.order + 1
    local = (edges.unsqueeze(1) * table.bases).sum(dim=2).view(len(edges), pad, count, table.rows)
    total = edges.new_zeros(len(edges), count, table.rows + table.order)
    for r in range(pad):
        total[..., r : r + table.rows] += local[:, r]
    return total[..., pad:-pad].transpose(0, 1)


def _unscale(grad_weight: Tensor, coef: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    # In the layout of the coefficients, that of a dimension of size 1 too: DDP compares strides with its buckets'.
    grad_coef = (grad_weight * scale.unsqueeze(2)).reshape(-1).view(coef.shape)
    return grad_coef, (grad_weight * coef).sum(dim=2)


class _Dense(torch.autograd.Function):
    """A basis matrix, computed from the local bases, times the coefficients of all edges."""

    @staticmethod
    def forward(ctx, x: Tensor, coef: Tensor, scale: Tensor, table: Cells) -> Tensor:
        row, u = _place(x, table)
        bases = coef.shape[2]
        v = 1 - u
        matrix = x.new_zeros(x.shape[0], x.shape[1] * bases)
        for place, values in zip(_columns(row, table, bases), table.bases, strict=True):
            matrix.view(-1).scatter_add_(0, place, _evaluate(values, row, u, v))
        ctx.save_for_backward(x, coef, scale, row, u, matrix)
        ctx.table = table
        return matrix @ _flat(coef * scale.unsqueeze(2))

    @staticmethod
    @_first_derivative
    def backward(ctx, grad: Tensor):
        _, coef, scale, row, u, matrix = ctx.saved_tensors
        count, out, bases = coef.shape
        grad_x = grad_coef = grad_scale = None
        if ctx.needs_input_grad[0]:
            grad_matrix = (grad @ _flat(coef * scale.unsqueeze(2)).t()).view(-1)
            v = 1 - u
            slopes = _slope(ctx.table.bases, ctx.table)
            grad_x = torch.zeros_like(u)
            for place, values in zip(_columns(row, ctx.table, bases), slopes, strict=True):
                grad_x.addcmul_(grad_matrix.index_select(0, place), _evaluate(values, row, u, v))
            grad_x = grad_x.view(-1, count)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            grad_weight = (matrix.t() @ grad).view(count, bases, out).transpose(1, 2)
            grad_coef, grad_scale = _unscale(grad_weight, coef, scale)
        return grad_x, grad_coef, grad_scale


def _flat(weight: Tensor) -> Tensor:
    """[in, out, bases] to [in * bases, out]."""
    return weight.transpose(1, 2).reshape(-1, weight.shape[1])


def _columns(row: Tensor, table: Cells, bases: int) -> list[Tensor]:
    """For each local basis, where it stands in the flat basis matrix; bases that do not exist are zero, so anywhere."""
    first = row % table.rows - 1 - table.order
    start = torch.arange(0, len(row) * bases, bases, device=row.device)
    return [(first + r).clamp_(0, bases - 1).add_(start) for r in range(table.order + 1)]
