"""What the back ends share, and what each engine really sends."""

from pathlib import Path

import pytest
import torch

from hvdkan.backends.base import Fused, check_used, device_index
from hvdkan.backends.horovod import has_torus
from hvdkan.config import ConfigError
from mpi.topology import Topology

PROGRAMS = Path(__file__).parent / "programs"


def test_unused_parameters_are_refused_by_name():
    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)

        def forward(self, x):
            return self.used(x)

    with pytest.raises(ConfigError, match=r"trainable but unused: idle\.weight, idle\.bias"):
        check_used(Half(), torch.ones(1, 1))
    half = Half()
    half.idle.requires_grad_(False)
    check_used(half, torch.ones(1, 1))
    assert half.used.weight.grad is None


@pytest.mark.parametrize("labels", ["AAAABBBB", "ABABABAB", "AAABBBBB", "ABBBBBBB", "ABCDEFGH", "AAAAAAAA"])
def test_a_gpu_is_the_place_within_the_node(labels):
    hosts = Topology.from_labels(labels)
    for rank, label in enumerate(labels):
        assert device_index(hosts, rank, 8) == labels[:rank].count(label)
        assert device_index(hosts, rank, 1) == 0


def test_fused_gradients_stay_views_of_one_buffer():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    sent = []
    wrapped = Fused(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda buffer: sent.append(buffer.clone()))
    for _ in range(2):
        wrapped.zero_grad()
        wrapped.backward(model(torch.ones(4, 2)).sum())
        wrapped.exchange()
        wrapped.step()
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert torch.equal(wrapped.buffer, gradients)
    assert torch.equal(sent[-1], gradients)
    assert gradients.abs().sum() > 0


@pytest.mark.parametrize(
    ("version", "torus"), [("0.27.0", False), ("0.28.0", True), ("0.28.1", True), ("1.0", True), ("0.28rc1", True)]
)
def test_versions_of_horovod_with_a_torus(version, torus):
    assert has_torus(version) is torus


@pytest.mark.launch
@pytest.mark.parametrize("allreduce", ["flat", "hierarchical"])
def test_the_hook_sends_what_its_schedule_says(mpirun, allreduce):
    """Counted on the loopback interface: Gloo's own reduce_scatter would send half as much again."""
    done = mpirun(4, PROGRAMS / "count_bytes.py", allreduce)
    assert done.returncode == 0, done.stderr
    shares = float(done.stdout.split("sent")[1])
    # Reduce-scatter and all-gather over 4 ranks send 3 + 3 buffers; in two nodes of two it is 2, 2 across, and 2.
    assert 6.0 <= shares < 6.3


@pytest.mark.launch
@pytest.mark.parametrize("backend", ["horovod", "ddp", "mpi"])
def test_nodes_may_hold_any_ranks(mpirun, backend):
    done = mpirun(4, PROGRAMS / "node_map.py", backend, "ABAB", "ABBB", "ABBA", "ABCB")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("map") == 16


@pytest.mark.launch
def test_no_rank_sends_before_all_have_left_mpi_init(mpirun, tmp_path):
    done = mpirun(4, PROGRAMS / "leave_init.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("together") == 4


@pytest.mark.launch
def test_an_exchange_that_is_wrong_is_an_error_before_training(mpirun):
    done = mpirun(2, PROGRAMS / "diverging.py", timeout=60)
    assert done.returncode == 1
    assert "the exchange is wrong: the mean of 1 to 2 came out as" in done.stderr


@pytest.mark.launch
def test_ranks_that_end_unequal_are_an_error(mpirun):
    done = mpirun(2, PROGRAMS / "diverging.py", "later", timeout=60)
    assert done.returncode == 1
    assert "the ranks' parameters differ after training" in done.stderr
