"""The networks by themselves: counts, starts, copies, and what they refuse."""

import copy
import pickle
import random
from itertools import pairwise

import numpy
import pytest
import torch
from torch.nn import functional

from hvdkan.models import KAN, MLP, KANLayer, ModelError, build_model, matched_width
from hvdkan.spline import FORMS, basis_reference, extend


def batch(inputs=2, count=40, dtype=torch.float32):
    return torch.randn(count, inputs, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(dtype)


def randomised(model, seed=6):
    """Every parameter but the knots drawn anew, frozen ones too, so that none hides behind a 0 or a 1."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if not name.endswith("grid"):
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize("hidden", [1, 32, 256])
def test_counts_are_the_papers(hidden):
    counts = KAN([2, hidden, 1], 10, 3).parameter_counts()
    assert counts == {"all": 84 * hidden + 38, "trainable": 45 * hidden, "stored": 69 * hidden + 38}


def test_the_papers_model_sizes():
    found = [KAN([2, hidden, 1], 10, 3).parameter_counts()["all"] for hidden in (32, 64, 128, 256)]
    assert found == [2726, 5414, 10790, 21542]


def test_a_layer_computes_its_formula():
    layer = randomised(KANLayer(3, 4, 6, 2, dtype=torch.float64))
    x = batch(3, dtype=torch.float64)
    bases = basis_reference(x, layer.grid, 2)
    spline = torch.einsum("bim,iom->bio", bases, layer.coef)
    edges = layer.mask * (layer.scale_base * functional.silu(x).unsqueeze(2) + layer.scale_sp * spline)
    node = layer.node_scale * (layer.subnode_scale * edges.sum(1) + layer.subnode_bias) + layer.node_bias
    for form in (None, *FORMS):
        # The layer's knots are even to the rounding of float32 only.
        assert torch.allclose(layer(x, form), node, rtol=0, atol=1e-5 if form == "matrix" else 1e-11)


def test_what_is_trained_gets_a_gradient_and_nothing_else():
    model = KAN([2, 5, 1], 4, 3)
    model(batch()).square().sum().backward()
    for name, parameter in model.named_parameters():
        trained = name.split(".")[-1] in ("coef", "scale_base", "scale_sp")
        assert parameter.requires_grad == trained
        assert (parameter.grad is not None) == trained
        assert not trained or (parameter.grad != 0).any()


def test_building_leaves_the_global_random_state_alone():
    before = torch.get_rng_state(), numpy.random.get_state()[1].tolist(), random.getstate()
    KAN([2, 8, 1], 5, 3, seed=3)
    MLP([2, 8, 1], seed=3)
    for operator in ("spline", "matrix", "pykan", "mlp"):
        build_model(operator, [2, 4, 1], 5, 3, 0)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert numpy.random.get_state()[1].tolist() == before[1]
    assert random.getstate() == before[2]


@pytest.mark.parametrize("make", [lambda **kw: KAN([2, 8, 1], 5, 3, **kw), lambda **kw: MLP([2, 8, 1], **kw)])
def test_the_seed_decides_the_start(make):
    torch.manual_seed(1)
    first = make(seed=1).state_dict()
    torch.manual_seed(2)
    again, other = make(seed=1).state_dict(), make(seed=2).state_dict()
    from_generator = make(generator=torch.Generator().manual_seed(1)).state_dict()
    in_double = make(seed=1, dtype=torch.float64).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert all(torch.equal(first[name], from_generator[name]) for name in first)
    assert all(torch.allclose(first[name].double(), in_double[name], atol=1e-7) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def copies(model):
    by_state = type(model)(model.width, **({} if isinstance(model, MLP) else {"grid": 5, "order": 2}))
    by_state.load_state_dict(model.state_dict())
    return [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), by_state]


@pytest.mark.parametrize("model", [KAN([2, 6, 1], 5, 2), MLP([2, 6, 1])], ids=["KAN", "MLP"])
def test_copies_compute_the_same_and_are_apart(model):
    model = randomised(model)
    y = model(batch())  # after a forward: nothing it keeps may break a copy
    for other in copies(model):
        assert torch.equal(other(batch()), y)
        assert [p.requires_grad for p in other.parameters()] == [p.requires_grad for p in model.parameters()]
        for parameter in other.parameters():
            parameter.data.add_(0.5)
        assert torch.equal(model(batch()), y)


def test_the_dtype_can_be_changed_after_a_forward():
    model = randomised(KAN([2, 6, 1], 5, 3))
    y = model(batch())
    double = model.double()(batch().double())
    assert double.dtype == torch.float64
    assert torch.allclose(double, y.double(), rtol=1e-4, atol=1e-4)
    assert torch.equal(model.float()(batch()), y)


def test_new_knots_are_noticed_however_they_are_written():
    layer = randomised(KANLayer(2, 3, 4, 3))
    x = batch()
    first = layer(x)
    wide = extend(torch.linspace(-2, 2, 5).expand(2, 5), 3)

    def by_data():
        layer.grid.data = wide.clone()

    def in_place():
        layer.grid.data.copy_(wide)

    def outside_torch():
        layer.grid.detach().numpy()[:] = wide.numpy()

    original = layer.grid.detach().clone()
    expected = None
    for write in (by_data, in_place, outside_torch):
        layer.grid.data.copy_(original)
        assert torch.equal(layer(x), first)
        write()
        changed = layer(x)
        expected = changed if expected is None else expected
        assert torch.equal(changed, expected)
        assert not torch.allclose(changed, first)


def test_layers_may_differ_in_grid_and_order():
    model = KAN([2, 3, 1], grid=[4, 6], order=[2, 3])
    assert [layer.coef.shape for layer in model.layers] == [(2, 3, 6), (3, 1, 9)]
    assert model(batch()).shape == (40, 1)


@pytest.mark.slow
def test_training_learns():
    torch.manual_seed(0)
    model = KAN([2, 8, 1], 5, 3, seed=0)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    x = torch.rand(256, 2) * 2 - 1
    losses = []
    for _ in range(150):
        optimiser.zero_grad()
        loss = functional.mse_loss(model(x), (x**2).sum(1, keepdim=True))
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.01 * losses[0]


@pytest.mark.parametrize(
    ("width", "grid", "order"),
    [([2, 32, 1], 10, 3), ([2, 256, 1], 10, 3), ([2, 1, 1], 1, 1), ([3, 20, 10, 2], 5, 3), ([8, 64, 64, 1], 20, 5)],
)
def test_the_control_has_as_many_parameters_as_it_can(width, grid, order):
    goal = KAN(width, grid, order).parameter_counts()["trainable"]
    matched = matched_width(width, grid, order)

    def distance(widths):
        return abs(sum((a + 1) * b for a, b in pairwise(widths)) - goal)

    counts = MLP(matched).parameter_counts()
    assert counts["all"] == counts["trainable"]
    assert abs(counts["all"] - goal) == distance(matched)
    assert (matched[0], matched[-1], len(matched)) == (width[0], width[-1], len(width))
    for step in (-1, 1):
        every = [max(1, w + step) for w in matched[1:-1]]
        assert distance([width[0], *every, width[-1]]) >= distance(matched)
    assert distance(matched) <= max(0.02 * goal, 5)


def test_the_control_without_hidden_layers_cannot_be_scaled():
    assert matched_width([3, 2], 10, 3) == [3, 2]


def test_the_control_starts_as_torchs_linear_layers_do():
    layer = MLP([400, 300], seed=1).layers[0]
    reference = torch.nn.Linear(400, 300)
    for ours, theirs in ((layer.weight, reference.weight), (layer.bias, reference.bias)):
        assert ours.abs().max() <= 400**-0.5
        assert ours.std().item() == pytest.approx(theirs.std().item(), rel=0.2)
        assert ours.mean().abs() < 0.01


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: KAN([2]), r"width is \[2\]"),
        (lambda: KAN("2,3"), "width is '2,3'"),
        (lambda: KAN([2, 0, 1]), "a width is 0"),
        (lambda: KAN([2, 2.0, 1]), r"a width is 2\.0"),
        (lambda: KAN([2, True, 1]), "a width is True"),
        (lambda: KAN([2, 3, 1], 0), "grid is 0"),
        (lambda: KAN([2, 3, 1], 5, 0), "order is 0"),
        (lambda: KAN([2, 3, 1], 5, 2.5), r"order is 2\.5"),
        (lambda: KAN([2, 3, 1], [5]), r"grid is \[5\]; .* 2, one for each layer"),
        (lambda: KAN([2, 3, 1], seed=0.5), r"seed is 0\.5"),
        (lambda: KAN([2, 3, 1], dtype=torch.float16), r"torch\.float16; choose from torch\.float32, torch\.float64"),
        (lambda: KAN([2, 3, 1], grid_range=(1, 1)), r"grid range is \(1\.0, 1\.0\)"),
        (lambda: MLP([2, -3, 1]), "a width is -3"),
        (
            lambda: build_model("kan", [2, 3, 1], 5, 3, 0),
            "operator 'kan' is unknown; choose from spline, matrix, pykan, mlp",
        ),
    ],
)
def test_bad_values_are_named(call, message):
    with pytest.raises(ModelError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
