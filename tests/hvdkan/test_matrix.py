"""The matrix form against pykan's own functions on even knots, and as an operator beside spline."""

import math

import pytest
import torch
from kan.spline import coef2curve

from hvdkan.matrix import power_matrix
from hvdkan.models import KAN, ModelError, build_model
from hvdkan.pykan import from_pykan, to_pykan
from hvdkan.spline import cells, spline_sum, uniform_knots

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
INPUTS, OUTPUTS, GRID = 3, 2, 7


def even_knots(order, dtype, inputs=INPUTS):
    """Even to the rounding of ``dtype`` itself, where pykan's are even to that of float32."""
    steps = torch.arange(-order, GRID + order + 1, dtype=torch.float64)
    return (steps / GRID * 2 - 1).expand(inputs, -1).to(dtype)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def case(order, dtype):
    knots = even_knots(order, dtype)
    on = knots.t()
    beside = [torch.nextafter(on, torch.full_like(on, side)) for side in (-math.inf, math.inf)]
    far = torch.tensor([[-1e6], [-50.0], [50.0], [1e6]], dtype=dtype).expand(4, INPUTS)
    x = torch.cat([draw(60, INPUTS).to(dtype), on, *beside, far])
    return x, draw(INPUTS, OUTPUTS, GRID + order, seed=1).to(dtype), draw(INPUTS, OUTPUTS, seed=2).to(dtype), knots


def with_gradients(function, *tensors):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, draw(*y.shape, seed=3).to(y.dtype))]


def test_the_cubic_matrix_is_the_published_one():
    sixths = [[round(6 * value, 12) for value in row] for row in power_matrix(3)]
    assert sixths == [[1, 4, 1, 0], [-3, 0, 3, 0], [3, -6, 3, 0], [-1, 3, -3, 1]]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_values_and_gradients_are_pykans(order, dtype):
    x, coef, scale, knots = case(order, dtype)
    table = cells(knots, order)
    ours = with_gradients(lambda x, c, s: spline_sum(x, c, s, table, "matrix"), x, coef, scale)
    theirs = with_gradients(lambda x, c, s: (coef2curve(x, knots, c, order) * s).sum(1), x, coef, scale)
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).abs().max() <= TOLERANCE[dtype] * max(1.0, other.abs().max().item())


def test_first_and_second_derivatives():
    _, coef, scale, knots = case(3, torch.float64)
    x = ((knots[:, 1:] + knots[:, :-1]) / 2).t().contiguous()
    leaves = [tensor.clone().requires_grad_() for tensor in (x, coef, scale)]
    table = cells(knots, 3)
    assert torch.autograd.gradcheck(lambda *t: spline_sum(*t, table, "matrix"), leaves)
    assert torch.autograd.gradgradcheck(lambda x: spline_sum(x, coef, scale, table, "matrix"), leaves[:1])


def test_what_is_not_a_number_has_no_spline():
    _, coef, scale, knots = case(3, torch.float64)
    x = torch.tensor([math.nan, math.inf, -math.inf, 1e300], dtype=torch.float64)[:, None].expand(4, INPUTS)
    parts = with_gradients(lambda *t: spline_sum(*t, cells(knots, 3), "matrix"), x, coef, scale)
    assert all((part == 0).all() for part in parts)


def test_no_samples():
    _, coef, scale, knots = case(3, torch.float64)
    y = spline_sum(torch.zeros(0, INPUTS, dtype=torch.float64), coef, scale, cells(knots, 3), "matrix")
    assert y.shape == (0, OUTPUTS)


@pytest.mark.parametrize("move", [1e-3, 0.3])
def test_uneven_knots_are_refused(move):
    x, coef, scale, knots = case(3, torch.float64)
    knots = knots.clone()
    knots[1, 5] += move * (knots[1, 1] - knots[1, 0])
    with pytest.raises(ModelError, match="the operator matrix needs evenly spaced knots, and these are not"):
        spline_sum(x, coef, scale, cells(knots, 3), "matrix")
    model = build_model("matrix", [INPUTS, 4, 1], GRID, 3, 0, torch.float64)
    model.layers[0].grid.data.copy_(knots)
    with pytest.raises(ModelError, match="choose spline"):
        model(x)


@pytest.mark.parametrize("grid_range", [(-1.0, 1.0), (0.0, 100.0), (99.0, 101.0)])
def test_pykans_own_knots_are_even_enough(grid_range):
    for order in (1, 3, 5):
        assert cells(uniform_knots(2, 200, order, grid_range), order).equal


def test_as_an_operator_it_trains_as_spline_does():
    x = torch.rand(200, 2, generator=torch.Generator().manual_seed(1)) * 3 - 1.5
    curves = []
    for operator in ("spline", "matrix"):
        model = build_model(operator, [2, 8, 1], 5, 3, 0)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        curves.append([])
        for _ in range(10):
            optimiser.zero_grad()
            loss = (model(x) - x.square().sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimiser.step()
            curves[-1].append(loss.item())
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)
    assert model.parameter_counts() == KAN([2, 8, 1], 5, 3).parameter_counts()
    assert torch.allclose(to_pykan(model)(x), model(x), atol=1e-5)
    assert torch.equal(from_pykan(to_pykan(model)).layers[0].coef, model.layers[0].coef)
