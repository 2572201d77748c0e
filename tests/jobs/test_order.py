"""The order of launches: balanced, complete, and the same for the same seed."""

import itertools
import random
from collections import Counter

import pytest

from jobs.order import balanced


def plans():
    """Plans of many shapes: numbers of variants and blocks, with comparisons among some of them."""
    source = random.Random(1)
    for n, blocks in itertools.product((1, 2, 3, 4, 5, 8, 15, 16), (1, 2, 3, 4, 5, 8, 9)):
        names = [f"v{i}" for i in range(n)]
        shuffled = source.sample(names, n)
        pairs = [(shuffled[i], shuffled[i + 1]) for i in range(0, n - 1, source.choice((1, 2, 3)))]
        yield names, source.choice(([], pairs)), blocks, source.randrange(100)


PLANS = list(plans())


@pytest.mark.parametrize("names, pairs, blocks, seed", PLANS)
def test_every_block_holds_every_variant_once(names, pairs, blocks, seed):
    order = balanced(names, pairs, blocks, seed)
    assert len(order) == blocks
    assert all(sorted(block) == sorted(names) for block in order)


@pytest.mark.parametrize("names, pairs, blocks, seed", [p for p in PLANS if p[2] % 2 == 0])
def test_over_an_even_number_of_blocks_all_places_and_all_pairs_balance_exactly(names, pairs, blocks, seed):
    order = balanced(names, pairs, blocks, seed)
    for name in names:
        assert sum(block.index(name) for block in order) * 2 == blocks * (len(names) - 1)
    for first, second in itertools.combinations(names, 2):
        assert sum(block.index(first) < block.index(second) for block in order) * 2 == blocks


@pytest.mark.parametrize("names, pairs, blocks, seed", [p for p in PLANS if p[2] % 2 == 1])
def test_over_an_odd_number_of_blocks_no_pair_is_off_by_more_than_one(names, pairs, blocks, seed):
    order = balanced(names, pairs, blocks, seed)
    for first, second in itertools.combinations(names, 2):
        forwards = sum(block.index(first) < block.index(second) for block in order)
        assert abs(2 * forwards - blocks) == 1


@pytest.mark.parametrize("names, pairs, blocks, seed", PLANS)
def test_blocks_that_are_added_change_none_that_are_there(names, pairs, blocks, seed):
    """Whatever the number of blocks a study was started with, and however often it was extended."""
    order = balanced(names, pairs, 12, seed)
    assert all(balanced(names, pairs, n, seed) == order[:n] for n in range(13))


@pytest.mark.parametrize("names, pairs, blocks, seed", PLANS)
def test_blocks_come_in_mirror_images(names, pairs, blocks, seed):
    order = balanced(names, pairs, 8, seed)
    assert [block[::-1] for block in order[0::2]] == order[1::2]


def test_twins_of_blocks_differ_from_one_another():
    order = balanced(list("abcdefgh"), [("a", "b")], 8, 0)
    assert len({tuple(block) for block in order}) == 8


@pytest.mark.parametrize("names, pairs, blocks, seed", PLANS)
def test_compared_variants_run_side_by_side(names, pairs, blocks, seed):
    joined = {name: {name} for name in names}
    for first, second in pairs:
        group = joined[first] | joined[second]
        joined |= dict.fromkeys(group, group)
    for block in balanced(names, pairs, blocks, seed):
        for group in joined.values():
            at = sorted(block.index(name) for name in group)
            assert at == list(range(at[0], at[0] + len(group)))


def test_the_seed_alone_decides():
    names = list("abcdefgh")
    assert balanced(names, [("a", "b")], 5, 7) == balanced(names, [("a", "b")], 5, 7)
    assert balanced(names, [], 4, 7) != balanced(names, [], 4, 8)


def test_more_than_one_order_occurs():
    """Over seeds, each variant comes first about equally often."""
    first = Counter(balanced(list("abcd"), [], 1, seed)[0][0] for seed in range(400))
    assert set(first) == set("abcd")
    # 100 expected each, standard deviation 8.7; five of them.
    assert all(56 < count < 144 for count in first.values())
