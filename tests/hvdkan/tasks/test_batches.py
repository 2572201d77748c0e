import numpy as np
import pytest

from hvdkan.tasks import global_batches, share


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
