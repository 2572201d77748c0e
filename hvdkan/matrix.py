"""The matrix form of the literature: on equal cells all bases are one fixed matrix times the powers of the place.

A uniform B-spline of order k is, in every cell, ``[1, u, ..., u^k] @ M`` with u the place within the cell (K. Qin,
"General matrix representations for B-splines", 1998); MatrixKAN (Coffman and Chen, 2025) builds KAN layers from it, and
the paper this project follows proposes it. Here for comparison: all of it is plain torch, as there.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional


@functools.cache
def power_matrix(order: int) -> tuple[tuple[float, ...], ...]:
    """M [order + 1 powers][order + 1 bases]: basis r of those not zero in a cell is ``sum_p M[p][r] u^p``.

    By Cox-de Boor on knots at the whole numbers: ``B_r = ((u + k - r) B'_{r-1} + (r + 1 - u) B'_r) / k``.
    """
    bases = [[1.0]]
    for k in range(1, order + 1):
        raised = [[0.0] * (k + 1) for _ in range(k + 1)]
        for r, lower in enumerate(bases):
            for power, value in enumerate(lower):
                raised[r + 1][power] += (k - r - 1) * value / k
                raised[r + 1][power + 1] += value / k
                raised[r][power] += (r + 1) * value / k
                raised[r][power + 1] -= value / k
        bases = raised
    return tuple(zip(*bases, strict=True))


def equal_cells(knots: Tensor) -> bool:
    """Whether every row of knots [in, knots] is evenly spaced, to the rounding of float32.

    pykan makes its knots in float32. In float64 the matrix form takes them for even all the same: its results then
    differ from the recursion's by the rounding of those knots (about 1e-6), and by 1e-10 where they are even.
    """
    knots = knots.double()
    step = (knots[:, -1:] - knots[:, :1]) / (knots.shape[1] - 1)
    off = (knots - knots[:, :1] - step * torch.arange(knots.shape[1], device=knots.device)).abs()
    return bool((step > 0).all() and off.max() <= 16 * torch.finfo(torch.float32).eps * knots.abs().max())


def matrix_sum(x: Tensor, row: Tensor, knots: Tensor, weight: Tensor) -> Tensor:
    """``y[b, j] = sum_i sum_m weight[i, j, m] B_m(x[b, i])`` on evenly spaced knots [in, grid + 1 + 2 order].

    x: [batch, in]; row: int64, how many knots of its input are at or below each x; weight: [in, out, grid + order].
    """
    count, bases = knots.shape[1], weight.shape[2]
    order = count - 1 - bases
    inside = (row > 0) & (row < count)
    cell = torch.where(inside, row - 1, 0)
    width = (knots[:, -1] - knots[:, 0]) / (count - 1)
    # Outside x itself may be infinite or NaN, and its gradient must still be zero.
    place = torch.where(inside, x, 0) - knots.t().gather(0, cell)
    u = torch.where(inside, place / width, 0)
    powers = u.unsqueeze(2) ** torch.arange(order + 1, device=x.device)
    local = powers @ torch.tensor(power_matrix(order), dtype=x.dtype, device=x.device)
    local = torch.where(inside.unsqueeze(2), local, 0)
    columns = cell.unsqueeze(2) + torch.arange(order + 1, device=x.device)
    # Cells beyond the grid have bases that do not exist; they fall into `order` columns on each side, which are cut.
    dense = x.new_zeros(*x.shape, bases + 2 * order).scatter(2, columns, local)
    dense = dense[..., order : order + bases].flatten(1)
    return functional.linear(dense, weight.transpose(0, 1).reshape(weight.shape[1], -1))
