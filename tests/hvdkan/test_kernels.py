"""The compiled kernel: shapes, threads, processors without AVX-512, and what happens where it is missing."""

import ctypes
import math
import os
import warnings
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from hvdkan import kernels
from hvdkan.kernels import compile
from hvdkan.models import KAN
from hvdkan.spline import ModelError, cells, extend, spline_sum, uniform_knots

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
KERNEL = ("narrow", "wide")


@pytest.fixture(autouse=True)
def compiled():
    if not kernels.load():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("the kernel has not been compiled: make setup")


def layer(inputs, outputs, batch, grid=5, order=3, dtype=torch.float32, uniform=True, seed=0):
    """x, coef, scale, base and bias of a layer, and the tables of its knots; a third of x lies outside the grid."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    knots = uniform_knots(inputs, grid, order).to(dtype)
    if not uniform:
        widths = 0.2 + torch.rand(inputs, grid, generator=g, dtype=torch.float64)
        places = torch.cat([torch.zeros(inputs, 1, dtype=torch.float64), widths.cumsum(1)], 1)
        knots = extend((places / places[:, -1:] * 2 - 1).to(dtype), order)
    shapes = ((batch, inputs), (inputs, outputs, grid + order), (inputs, outputs), (inputs, outputs), (outputs,))
    return [draw(*shape) for shape in shapes], cells(knots, order)


def results(tensors, table, form):
    """Output and all gradients."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    x, coef, scale, base, bias = leaves
    y = spline_sum(x, coef, scale, table, form, base, bias)
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, leaves, weight)]


def assert_near(ours, theirs, tolerance):
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        assert one.isfinite().all()
        assert (one - other).abs().max() <= tolerance * max(1.0, other.abs().max().item())


# Below, at and above the width of a vector and of a tile of them, in each of the three sizes.
SHAPES = [(1, 1, 1), (3, 2, 17), (16, 5, 64), (17, 7, 130), (33, 1, 100), (2, 16, 31), (5, 33, 65), (19, 70, 129)]


@pytest.mark.parametrize("form", KERNEL)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("inputs", "outputs", "batch"), [*SHAPES, (2, 129, 1100)])
def test_any_shape(inputs, outputs, batch, dtype, form):
    tensors, table = layer(inputs, outputs, batch, dtype=dtype)
    reference = results([tensor.double() for tensor in tensors], cells(table.knots.double(), 3), "local")
    assert_near([part.double() for part in results(tensors, table, form)], reference, TOLERANCE[dtype])


@pytest.mark.parametrize("form", KERNEL)
@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("grid", [1, 12, 20, 40, 80])  # tables in registers, in memory; knots compared, or searched
@pytest.mark.parametrize("order", kernels.ORDERS)
def test_any_number_of_cells(order, grid, uniform, form):
    tensors, table = layer(3, 2, 70, grid, order, uniform=uniform)
    assert table.uniform == uniform or grid == 1
    reference = results([tensor.double() for tensor in tensors], cells(table.knots.double(), order), "local")
    assert_near([part.double() for part in results(tensors, table, form)], reference, 5e-6 * max(grid, 10))


@pytest.mark.parametrize("form", KERNEL)
def test_bits_do_not_depend_on_the_number_of_threads(form):
    tensors, table = layer(37, 70, 1500)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 1, 2, 3):
            torch.set_num_threads(threads)
            found.append(results(tensors, table, form))
    finally:
        torch.set_num_threads(before)
    # The gradient of the bias is torch's own sum.
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0][:-1], other[:-1], strict=True))


@pytest.mark.parametrize("form", KERNEL)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_base_branch_is_torchs_silu(dtype, form):
    """Where it ends too: NaN, infinities, and where exp overflows."""
    ends = [math.nan, math.inf, -math.inf, 1e30, -1e30, 0.0, -0.0, 88.0, -88.0, -88.8, -104.0, 709.0, -709.5, -745.0]
    x = torch.cat([torch.tensor(ends, dtype=dtype), torch.linspace(-120, 120, 3001, dtype=dtype)]).unsqueeze(1)
    table = cells(uniform_knots(1, 5, 3).to(dtype), 3)
    coef, one = torch.zeros(1, 1, 8, dtype=dtype), torch.ones(1, 1, dtype=dtype)
    found = []
    for function in (lambda x: spline_sum(x, coef, one, table, form, one), functional.silu):
        leaf = x.clone().requires_grad_()
        y = function(leaf)
        found.append((y, *torch.autograd.grad(y.sum(), leaf)))
    epsilon = torch.finfo(dtype).eps
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, rtol=8 * epsilon, atol=epsilon, equal_nan=True)


@pytest.mark.parametrize("form", KERNEL)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_processor_without_avx512(dtype, form, monkeypatch):
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("this processor has no AVX2")
    library = ctypes.CDLL(str(compile.library("AVX2")))
    entries = {torch.float32: library.spline_float, torch.float64: library.spline_double}
    monkeypatch.setattr(kernels, "load", lambda: entries)
    for inputs, outputs, batch in SHAPES:
        tensors, table = layer(inputs, outputs, batch, dtype=dtype)
        reference = results([tensor.double() for tensor in tensors], cells(table.knots.double(), 3), "local")
        assert_near([part.double() for part in results(tensors, table, form)], reference, TOLERANCE[dtype])


def test_a_model_trains_alike_with_and_without_the_kernel(monkeypatch):
    x = torch.rand(200, 2, generator=torch.Generator().manual_seed(1)) * 4 - 2
    gradients = []
    for entries in (kernels.load(), {}):
        monkeypatch.setattr(kernels, "load", lambda entries=entries: entries)
        model = KAN([2, 20, 3, 1], 5, 3, seed=1)
        model(x).square().mean().backward()
        gradients.append([p.grad for p in model.parameters() if p.requires_grad])
    assert_near(*gradients, 1e-5)


def test_autocast_leaves_the_layer_its_dtype():
    model, x = KAN([2, 20, 1], 5, 3), torch.rand(10, 2)
    expected = model(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model(x), expected)
        assert model(x.bfloat16()).dtype == torch.float32
    with pytest.raises(ModelError, match=r"torch\.bfloat16 but the layer is torch\.float32"):
        model(x.bfloat16())


@pytest.mark.launch  # torch.compile alone takes seconds to import
def test_under_torch_compile_the_kernel_breaks_the_graph_and_no_more():
    model, x = KAN([2, 20, 1], 5, 3), torch.rand(10, 2)
    compiled = torch.compile(model, backend="eager")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Dynamo")
        y = compiled(x)
    assert torch.equal(y, model(x))
    y.sum().backward()
    trained = [p for p in model.parameters() if p.requires_grad]
    ours = [p.grad.clone() for p in trained]
    model.zero_grad()
    model(x).sum().backward()
    assert all(torch.equal(one, p.grad) for one, p in zip(ours, trained, strict=True))


def test_without_a_library_one_warning_and_plain_torch(monkeypatch, tmp_path):
    model, x = KAN([2, 20, 1], 5, 3), torch.rand(10, 2)
    expected = model(x)
    monkeypatch.setattr(compile, "folder", lambda: tmp_path)
    kernels.load.cache_clear()
    try:
        with pytest.warns(UserWarning, match="without its compiled kernel, slower: it has not been compiled") as caught:
            found = [model(x) for _ in range(3)]
        assert len(caught) == 1
        (tmp_path / f"{torch.backends.cpu.get_cpu_capability()}.so").write_text("no library")
        kernels.load.cache_clear()
        with pytest.warns(UserWarning, match="slower: .*(invalid ELF header|too short)"):
            assert kernels.load() == {}
    finally:
        kernels.load.cache_clear()
    assert torch.allclose(found[0], expected, atol=1e-6)
    with pytest.raises(ModelError, match="the spline form 'wide' needs the compiled kernel"):
        monkeypatch.setattr(kernels, "load", dict)
        model.layers[0](x, "wide")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (None, "No such file or directory: .*cxx"),
        ("echo 'x.cpp:1: error: unknown option' >&2; exit 1", "cxx failed: x.cpp:1: error: unknown option"),
    ],
)
def test_what_cannot_be_compiled_is_one_line(program, reason, monkeypatch, tmp_path):
    cxx = tmp_path / "cxx"
    if program:
        cxx.write_text(f"#!/bin/sh\n{program}\n")
        cxx.chmod(0o755)
    monkeypatch.setenv("CXX", str(cxx))
    monkeypatch.setattr(compile, "folder", lambda: tmp_path / "build" / "some")
    with pytest.raises(compile.CompileError, match=reason) as caught:
        compile.build()
    assert "\n" not in str(caught.value)
    assert not list(Path(tmp_path / "build").rglob("*.so"))
