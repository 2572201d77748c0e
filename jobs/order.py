"""In which order a block starts its variants: balanced over blocks, and the same for the same seed.

A machine drifts: it warms up, neighbours come and go. Where every variant runs early as often as late, and A before B
as often as B before A, a drift that is linear in time cancels out of the comparison.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence


def balanced(names: Sequence[str], pairs: Iterable[Sequence[str]], blocks: int, seed: int) -> list[list[str]]:
    """The order of ``names`` in each of ``blocks`` blocks.

    Blocks 1 and 2, 3 and 4, ... are mirror images: over an even number of blocks every variant has the same mean place,
    and every pair runs as often AB as BA; over an odd number no pair is off by more than one. A block's order depends
    on its number and not on how many there are, so that a study keeps its balance when blocks are added to it.
    Variants that are compared (``pairs``, as in a plan's primary and aa) run next to each other, since what a neighbour
    on the machine does lasts longer than one launch.
    """
    groups = _groups(names, pairs)
    order: list[list[str]] = []
    for twins in range((blocks + 1) // 2):
        forwards = _shuffled(groups, random.Random(f"{seed}/{twins}"))
        order += [forwards, forwards[::-1]]
    return order[:blocks]


def _shuffled(groups: list[list[str]], source: random.Random) -> list[str]:
    """The names in an order in which groups, and the variants within each, are shuffled."""
    return [name for group in source.sample(groups, len(groups)) for name in source.sample(group, len(group))]


def _groups(names: Sequence[str], pairs: Iterable[Sequence[str]]) -> list[list[str]]:
    """Variants joined by comparisons, in the order of ``names``."""
    group_of = {name: [name] for name in names}
    for first, second in pairs:
        one, other = group_of[first], group_of[second]
        if one is not other:
            one.extend(other)
            group_of.update((name, one) for name in other)
    return list({id(group): group for group in group_of.values()}.values())
