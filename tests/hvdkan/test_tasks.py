import numpy as np
import pytest

from hvdkan.tasks import TASKS, global_batches, make_data, share


def test_data_are_the_same_for_the_same_seed_only():
    first, second, other = (make_data("squares", 50, 10, 0.1, seed) for seed in (1, 1, 2))
    assert (first.inputs == second.inputs).all()
    assert (first.targets == second.targets).all()
    assert (first.inputs != other.inputs).any()


def test_more_training_samples_leave_the_test_set_alone():
    assert (make_data("squares", 50, 10, 0.1, 1).test_inputs == make_data("squares", 99, 10, 0.5, 1).test_inputs).all()


def test_noise_is_in_training_targets_only():
    data = make_data("squares", 20_000, 1000, 0.1, 0)
    errors = data.targets[:, 0] - (data.inputs**2).sum(1)
    # The standard deviation of n samples is within 4 / sqrt(2 n) of the truth, but for one time in 15,000.
    assert errors.std() == pytest.approx(0.1, rel=4 / np.sqrt(2 * 20_000))
    assert (data.test_targets[:, 0] == (data.test_inputs**2).sum(1)).all()


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_finite_on_its_domain(task):
    corners = np.array(np.meshgrid(*[[-1.0, 0.0, 1.0]] * TASKS[task].inputs)).reshape(TASKS[task].inputs, -1).T
    assert np.isfinite(TASKS[task].formula(corners)).all()


@pytest.mark.parametrize(("samples", "batch"), [(1100, 300), (10, 10), (10, 3), (1, 1)])
def test_an_epoch_has_every_sample_once(samples, batch):
    batches = list(global_batches(samples, batch, seed=0, epoch=0))
    assert sorted(np.concatenate(batches)) == list(range(samples))
    assert [len(one) for one in batches[:-1]] == [batch] * (len(batches) - 1)


def test_epochs_differ():
    first, second = (np.concatenate(list(global_batches(50, 10, 0, epoch))) for epoch in (0, 1))
    assert (first != second).any()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("count", [0, 1, 3, 10, 300])
def test_shares_are_disjoint_complete_and_even(size, count):
    batch = np.arange(count)
    shares = [share(batch, rank, size) for rank in range(size)]
    assert (np.concatenate(shares) == batch).all()
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
