"""For the benchmark: a KAN as efficient-kan writes it, and how much arithmetic a step needs at least."""

from __future__ import annotations

import time
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from hvdkan.models import KAN, KANLayer, count_parameters


class DenseLayer(nn.Module):
    """As efficient-kan's KANLinear: the recursion over all bases, then one matrix product."""

    def __init__(self, layer: KANLayer):
        super().__init__()
        self.order = layer.order
        self.register_buffer("grid", layer.grid.detach().clone())
        self.base_weight = nn.Parameter(layer.scale_base.detach().t().clone())
        self.spline_weight = nn.Parameter(layer.coef.detach().transpose(0, 1).clone())
        self.spline_scaler = nn.Parameter(layer.scale_sp.detach().t().clone())

    def forward(self, x: Tensor) -> Tensor:
        weight = (self.spline_weight * self.spline_scaler.unsqueeze(2)).flatten(1)
        return functional.linear(functional.silu(x), self.base_weight) + functional.linear(self.bases(x), weight)

    def bases(self, x: Tensor) -> Tensor:
        """[batch, inputs] to [batch, inputs * (grid + order)]."""
        x, t = x.unsqueeze(2), self.grid
        bases = ((x >= t[:, :-1]) & (x < t[:, 1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            up = (x - t[:, : -k - 1]) / (t[:, k:-1] - t[:, : -k - 1])
            down = (t[:, k + 1 :] - x) / (t[:, k + 1 :] - t[:, 1:-k])
            bases = up * bases[..., :-1] + down * bases[..., 1:]
        return bases.flatten(1)


class DenseKAN(nn.Sequential):
    """The network of a KAN's parameters in this form."""

    def __init__(self, kan: KAN):
        super().__init__(*map(DenseLayer, kan.layers))

    def parameter_counts(self) -> dict[str, int]:
        return count_parameters(self)


def operations(width: list[int], order: int) -> int:
    """Floating-point operations that one sample's step needs with local support, none of them twice.

    An edge: order + 1 bases and silu, a multiplication and an addition each, forward, for the weights' gradient, and
    for the input's but in the first layer. An input: its cell and place (6), powers (2 order) and silu (20), forward
    and again backward, where slopes of powers (3 each) and silu (4) come to it. An optimiser's are not counted.
    """
    total = 0
    for depth, (inputs, outputs) in enumerate(pairwise(width)):
        total += inputs * outputs * 2 * (order + 2) * (2 if depth == 0 else 3)
        total += inputs * (2 * (26 + 2 * order) + 3 * (order + 1) + 4)
    return total


def sgemm_rate(side: int = 1024, times: int = 5) -> float:
    """Operations a second of torch's float32 matrix product, the best of a few."""
    a, b = torch.rand(side, side), torch.rand(side, side)
    best = float("inf")
    for _ in range(times + 1):
        start = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - start)
    return 2 * side**3 / best
