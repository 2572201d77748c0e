"""In which order a block starts its variants: balanced over blocks, and the same for the same seed.

A machine drifts: it warms up, neighbours come and go. Where every variant runs early as often as late, and A before B
as often as B before A, a drift that is linear in time cancels out of the comparison.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence


def balanced(names: Sequence[str], pairs: Iterable[Sequence[str]], blocks: int, seed: int) -> list[list[str]]:
    """The order of ``names`` in each of ``blocks`` blocks.

    Blocks come in twos, the second one backwards: over both, every variant has the same mean place, and every pair runs
    once as AB and once as BA. An odd number of blocks ends with three in which no pair runs the same way every time.
    Variants that are compared (``pairs``, as in a plan's primary and aa) run next to each other, since what a neighbour
    on the machine does lasts longer than one launch. With variants side by side, the mean places over a set of three
    are equal only as far as the groups are of equal size.
    """
    groups = _groups(names, pairs)
    source = random.Random(seed)
    order: list[list[str]] = []
    while len(order) < blocks:
        left = blocks - len(order)
        count = left if left in (1, 3) else 2
        source.shuffle(groups)
        for group in groups:
            source.shuffle(group)
        rows = list(range(count))
        source.shuffle(rows)
        for row in rows:
            order.append([name for group in _placed(groups, count, row) for name in _placed(group, count, row)])
    return order


def places(n: int, count: int) -> list[list[int]]:
    """``count`` (1, 2 or 3) permutations of ``range(n)`` whose sum is the same for every item, within 1.

    Two: forwards and backwards. Three: the columns of a 3 x n magic rectangle where n is odd, as near to one as whole
    numbers allow where n is even. No two items then stand in the same order in all rows.
    """
    rows = [list(range(n))]
    if count == 2:
        rows.append([n - 1 - i for i in range(n)])
    elif count == 3:
        rows.append([(n - 1 if i % 2 else (n - 1) // 2) - i // 2 for i in range(n)])
        rows.append([(n // 2 - 1 if i % 2 else n - 1) - i // 2 for i in range(n)])
    return rows


def _placed(items: list, count: int, row: int) -> list:
    place = places(len(items), count)[row]
    return [item for _, item in sorted(zip(place, items, strict=True), key=lambda pair: pair[0])]


def _groups(names: Sequence[str], pairs: Iterable[Sequence[str]]) -> list[list[str]]:
    """Variants joined by comparisons, in the order of ``names``."""
    group_of = {name: [name] for name in names}
    for first, second in pairs:
        one, other = group_of[first], group_of[second]
        if one is not other:
            one.extend(other)
            group_of.update((name, one) for name in other)
    return list({id(group): group for group in group_of.values()}.values())
