"""The fast spline sum against Cox-de Boor, against pykan's own functions, and at the edges of what is defined."""

import math

import numpy
import pytest
import torch
from kan.spline import B_batch, coef2curve
from torch.utils._python_dispatch import TorchDispatchMode

from hvdkan import kernels
from hvdkan.spline import FORMS as ALL_FORMS
from hvdkan.spline import ModelError, _locate, basis_reference, cells, extend, fit, spline_sum, uniform_knots

ORDERS = [1, 2, 3, 4, 5]
FORMS = [form for form in ALL_FORMS if form != "matrix"]  # which needs even knots: test_matrix.py
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
INPUTS, OUTPUTS, GRID = 3, 2, 7


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def knots_of(kind, order, dtype, grid=GRID):
    """Per input: equal cells as pykan makes them, unequal ones, or some knots twice and three times."""
    if kind == "uniform":
        return uniform_knots(INPUTS, grid, order).to(dtype)
    widths = 0.2 + torch.rand(INPUTS, grid, generator=generator(1), dtype=torch.float64) ** 2 * 2
    if kind == "repeated":
        widths[0, 2], widths[1, 3:5], widths[2, 0] = 0, 0, 0
    places = torch.cat([torch.zeros(INPUTS, 1, dtype=torch.float64), widths.cumsum(1)], dim=1)
    return extend((places / places[:, -1:] * 2 - 1).to(dtype), order)


def points_for(knots):
    """Inside, on every knot, one step of the dtype beside every knot, on both ends, and far outside."""
    on = knots.t()
    beside = [torch.nextafter(on, torch.full_like(on, side)) for side in (-math.inf, math.inf)]
    scattered = torch.randn(60, len(knots), generator=generator(2), dtype=torch.float64).to(knots.dtype)
    # Not further: pykan's own float32 gradient is NaN at 1e30.
    far = torch.tensor([[-1e6], [-50.0], [50.0], [1e6]], dtype=knots.dtype).expand(4, len(knots))
    return torch.cat([scattered, on, *beside, far])


def weights(order, dtype, inputs=INPUTS, outputs=OUTPUTS, grid=GRID):
    g = generator(3)
    coef = torch.randn(inputs, outputs, grid + order, generator=g, dtype=torch.float64)
    scale = torch.randn(inputs, outputs, generator=g, dtype=torch.float64)
    return coef.to(dtype), scale.to(dtype)


def with_gradients(function, x, coef, scale):
    """Output, and its gradients in x, coef and scale under a fixed random weighting."""
    leaves = [tensor.clone().requires_grad_() for tensor in (x, coef, scale)]
    y = function(*leaves)
    weight = torch.randn(y.shape, generator=generator(4), dtype=torch.float64).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, leaves, weight)]


def assert_near(ours, theirs, tolerance):
    for one, other in zip(ours, theirs, strict=True):
        assert one.isfinite().all()
        assert one.dtype == other.dtype
        assert (one - other).abs().max() <= tolerance * max(1.0, other.abs().max().item())


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_known_sums_of_bases(dtype):
    knots = uniform_knots(1, 5, 3).to(dtype)
    x = torch.tensor([[-1.0], [1.0], [1.5], [2.19], [2.2], [5.0]], dtype=dtype)
    right = [1, 1, 0.68229, 2.6e-6, 0, 0]
    ones = torch.ones(1, 1, 8, dtype=dtype)
    sums = [basis_reference(x, knots, 3).sum(2)]
    sums += [spline_sum(x, ones, ones[..., 0], cells(knots, 3), form) for form in FORMS]
    for found in sums:
        assert found.flatten().tolist() == pytest.approx(right, rel=1e-2, abs=1e-12)
        assert found[2].item() == pytest.approx(right[2], abs=5e-6)


@pytest.mark.parametrize("kind", ["uniform", "unequal", "repeated"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("order", ORDERS)
def test_reference_is_pykans_basis(order, dtype, kind):
    knots = knots_of(kind, order, dtype)
    x = points_for(knots).requires_grad_()
    ours, theirs = basis_reference(x, knots, order), B_batch(x, knots, k=order)
    assert torch.equal(ours, theirs)
    weight = torch.randn(ours.shape, generator=generator(4), dtype=dtype)
    slope, pykans = (torch.autograd.grad(bases, x, weight)[0] for bases in (ours, theirs))
    # Where knots are repeated, pykan's own gradient is NaN.
    assert slope.isfinite().all()
    assert kind == "repeated" or (slope - pykans).abs().max() <= TOLERANCE[dtype] * pykans.abs().max()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["uniform", "unequal"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("order", ORDERS)
def test_values_and_gradients_are_pykans(order, dtype, kind, form):
    knots = knots_of(kind, order, dtype)
    x = points_for(knots)
    coef, scale = weights(order, dtype)
    table = cells(knots, order)
    ours = with_gradients(lambda x, c, s: spline_sum(x, c, s, table, form), x, coef, scale)
    theirs = with_gradients(lambda x, c, s: (coef2curve(x, knots, c, order) * s).sum(1), x, coef, scale)
    assert_near(ours, theirs, TOLERANCE[dtype])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("order", ORDERS)
def test_repeated_knots_give_pykans_values_and_finite_gradients(order, form):
    knots = knots_of("repeated", order, torch.float64)
    x = points_for(knots)
    coef, scale = weights(order, torch.float64)
    table = cells(knots, order)
    ours = with_gradients(lambda x, c, s: spline_sum(x, c, s, table, form), x, coef, scale)
    # pykan's own gradient is NaN here, so the reference stands in for it; its values are pykan's (tested above).
    bases = lambda x: basis_reference(x, knots, order)  # noqa: E731
    theirs = with_gradients(lambda x, c, s: torch.einsum("bim,iom,io->bo", bases(x), c, s), x, coef, scale)
    assert_near(ours, theirs, 1e-10)


@pytest.mark.parametrize("form", FORMS)
def test_all_knots_equal_is_no_spline(form):
    knots = torch.zeros(1, 10, dtype=torch.float64)
    coef, scale = weights(3, torch.float64, 1, 1, 3)
    x = torch.tensor([[-1.0], [0.0], [1.0]], dtype=torch.float64)
    parts = with_gradients(lambda x, c, s: spline_sum(x, c, s, cells(knots, 3), form), x, coef, scale)
    assert all((part == 0).all() for part in parts)


@pytest.mark.parametrize("grid", [10, 200])  # few knots are compared one by one, many by binary search
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_point_on_a_knot_belongs_to_the_cell_that_starts_there(grid, dtype):
    for kind in ("uniform", "unequal", "repeated"):
        knots = knots_of(kind, 3, dtype, grid)
        x = points_for(knots)
        below = (x.unsqueeze(2) >= knots).sum(2)
        assert torch.equal(_locate(x, knots), below)
        coef, scale = weights(3, dtype, grid=grid)
        expected = torch.einsum("bim,iom,io->bo", basis_reference(x, knots, 3), coef, scale)
        for form in FORMS:
            assert_near([spline_sum(x, coef, scale, cells(knots, 3), form)], [expected], TOLERANCE[dtype])


def test_float32_stays_accurate_where_cells_differ_a_hundredfold():
    widths = torch.tensor([[1.0, 0.01, 1.0, 0.01, 0.01, 1.0, 0.5]], dtype=torch.float64)
    for order in ORDERS:
        knots = extend(torch.cat([torch.zeros(1, 1, dtype=torch.float64), widths.cumsum(1)], 1), order).float()
        x = torch.rand(500, 1, generator=generator()) * 3.6
        coef, scale = weights(order, torch.float32, 1)
        exact = torch.einsum(
            "bim,iom,io->bo", basis_reference(x.double(), knots.double(), order), coef.double(), scale.double()
        )
        for form in FORMS:
            y = spline_sum(x, coef, scale, cells(knots, order), form)
            assert (y - exact).abs().max() <= 2e-6 * exact.abs().max()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("order", ORDERS)
def test_gradcheck(order, form):
    knots = knots_of("unequal", order, torch.float64)
    # Every cell, the extended ones and outside; off the knots, where order 1 has no derivative.
    x = ((knots[:, 1:] + knots[:, :-1]) / 2).t().contiguous()
    x = torch.cat([x, knots[:, -1:].t() + 1]).requires_grad_()
    coef, scale = (tensor.requires_grad_() for tensor in weights(order, torch.float64))
    table = cells(knots, order)
    assert torch.autograd.gradcheck(lambda x, c, s: spline_sum(x, c, s, table, form), (x, coef, scale))


@pytest.mark.parametrize("form", FORMS)
def test_only_the_gradients_asked_for(form):
    knots = knots_of("unequal", 3, torch.float64)
    table, x = cells(knots, 3), points_for(knots)
    coef, scale = weights(3, torch.float64)
    whole = with_gradients(lambda x, c, s: spline_sum(x, c, s, table, form), x, coef, scale)[1:]
    weight = torch.randn(len(x), OUTPUTS, generator=generator(4), dtype=torch.float64)
    for place, expected in enumerate(whole):
        leaves = [tensor.clone() for tensor in (x, coef, scale)]
        leaves[place].requires_grad_()
        spline_sum(*leaves, table, form).backward(weight)
        assert torch.equal(leaves[place].grad, expected)
        assert all(leaf.grad is None for leaf in leaves if leaf is not leaves[place])


@pytest.mark.parametrize("form", FORMS)
def test_second_derivatives_are_refused(form):
    knots = knots_of("uniform", 3, torch.float64)
    x = torch.zeros(4, INPUTS, dtype=torch.float64, requires_grad=True)
    coef, scale = weights(3, torch.float64)
    y = spline_sum(x, coef, scale, cells(knots, 3), form)
    (first,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert torch.equal(slope, first)
    with pytest.raises(ModelError, match="second derivatives of the spline operator are not available"):
        (slope.square() + x).sum().backward()


@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_a_number_has_no_spline(form):
    knots = knots_of("uniform", 3, torch.float64)
    x = torch.tensor([math.nan, math.inf, -math.inf, 1e300], dtype=torch.float64)[:, None].expand(4, INPUTS)
    coef, scale = weights(3, torch.float64)
    assert (B_batch(x, knots, k=3) == 0).all()
    assert (basis_reference(x, knots, 3) == 0).all()
    parts = with_gradients(lambda x, c, s: spline_sum(x, c, s, cells(knots, 3), form), x, coef, scale)
    assert all((part == 0).all() for part in parts)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch", [1, 3])
def test_the_incoming_gradient_is_not_written_to(batch, form):
    """With one input and one output it has the very shape of what backward works on."""
    coef, scale = weights(3, torch.float64, 1, 1)
    x = torch.full((batch, 1), 0.3, dtype=torch.float64, requires_grad=True)
    y = spline_sum(x, coef.requires_grad_(), scale, cells(uniform_knots(1, GRID, 3).double(), 3), form)
    grad = torch.full_like(y, 0.7)
    y.backward(grad)
    assert (grad == 0.7).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch", [0, 1])
def test_small_batches(batch, form):
    knots = knots_of("unequal", 3, torch.float64)
    x = torch.full((batch, INPUTS), 0.3, dtype=torch.float64)
    coef, scale = weights(3, torch.float64)
    y, *gradients = with_gradients(lambda x, c, s: spline_sum(x, c, s, cells(knots, 3), form), x, coef, scale)
    assert y.shape == (batch, OUTPUTS)
    assert [g.shape for g in gradients] == [x.shape, coef.shape, scale.shape]
    assert batch or all((g == 0).all() for g in gradients)


def test_strided_input_is_read_as_it_is():
    knots = knots_of("unequal", 3, torch.float64)
    coef, scale = weights(3, torch.float64)
    x = points_for(knots)
    strided = x.t().contiguous().t()
    assert not strided.is_contiguous()
    for form in FORMS:
        ours = with_gradients(lambda x, c, s, f=form: spline_sum(x, c, s, cells(knots, 3), f), strided, coef, scale)
        theirs = with_gradients(lambda x, c, s, f=form: spline_sum(x, c, s, cells(knots, 3), f), x, coef, scale)
        assert_near(ours, theirs, 1e-14)


class LargestTensor(TorchDispatchMode):
    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result


# The basis matrix of the dense form does not grow with the outputs; the others need no number for each basis.
@pytest.mark.parametrize(
    ("form", "outputs", "numbers"), [("narrow", 4, 1), ("wide", 64, 4), ("local", 4, 1), ("dense", 64, 8)]
)
def test_no_tensor_has_a_number_for_every_sample_and_edge(form, outputs, numbers):
    batch, inputs, order = 2000, 16, 3
    knots = uniform_knots(inputs, 5, order)
    table = cells(knots, order)
    coef, scale = weights(order, torch.float32, inputs, outputs, 5)
    x = torch.rand(batch, inputs, generator=generator())
    with LargestTensor() as seen:
        with_gradients(lambda x, c, s: spline_sum(x, c, s, table, form), x, coef, scale)
    assert seen.numel == batch * inputs * numbers


@pytest.mark.parametrize("kernel", [True, False])
def test_the_form_follows_the_number_of_outputs(kernel, monkeypatch):
    forms = ("narrow", "wide") if kernel else ("local", "dense")
    if not kernel:
        monkeypatch.setattr(kernels, "load", dict)
    for outputs, dense in ((1, False), (7, False), (16, True), (256, True)):
        coef, scale = weights(3, torch.float32, 4, outputs, 5)
        y = spline_sum(torch.zeros(2, 4), coef.requires_grad_(), scale, cells(uniform_knots(4, 5, 3), 3))
        assert forms[dense] in getattr(y.grad_fn, "form", y.grad_fn.name().lower())


@pytest.mark.parametrize("order", ORDERS)
def test_fit_is_the_smallest_least_squares_solution(order):
    knots = uniform_knots(INPUTS, GRID, order).double()
    inner = knots[:, order:-order].t()
    y = torch.randn(len(inner), INPUTS, OUTPUTS, generator=generator(), dtype=torch.float64)
    few = fit(inner, y, knots, order)
    bases = B_batch(inner, knots, k=order)
    for i in range(INPUTS):
        smallest = numpy.linalg.lstsq(bases[:, i].numpy(), y[:, i].numpy(), rcond=None)[0]
        assert numpy.allclose(few[i].T.numpy(), smallest, atol=1e-8)
    x = torch.rand(200, INPUTS, generator=generator(), dtype=torch.float64) * 2 - 1
    curve = coef2curve(x, knots, few, order)
    assert torch.allclose(coef2curve(x, knots, fit(x, curve, knots, order), order), curve, atol=1e-10)


def test_bad_input_is_named():
    knots = uniform_knots(2, 5, 3)
    coef, scale = weights(3, torch.float32, 2, 1, 5)
    table = cells(knots, 3)
    with pytest.raises(ModelError, match=r"\[4, 3\] does not fit a layer of 2 inputs"):
        spline_sum(torch.zeros(4, 3), coef, scale, table)
    with pytest.raises(ModelError, match=r"\[2\] does not fit"):
        spline_sum(torch.zeros(2), coef, scale, table)
    with pytest.raises(ModelError, match=r"float64 but the layer is torch\.float32"):
        spline_sum(torch.zeros(4, 2, dtype=torch.float64), coef, scale, table)
    with pytest.raises(ModelError, match="'sparse' is unknown; choose from narrow, wide, local, dense, matrix"):
        spline_sum(torch.zeros(4, 2), coef, scale, table, "sparse")
    with pytest.raises(ModelError, match="input 1 decrease"):
        cells(torch.stack([knots[0], knots[1].flip(0)]), 3)
    with pytest.raises(ModelError, match="not numbers"):
        cells(torch.full((1, 9), math.nan), 3)
    with pytest.raises(ModelError, match=r"torch\.float16"):
        cells(knots.half(), 3)
