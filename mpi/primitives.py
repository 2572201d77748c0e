"""All-reduce and its parts on one group of ranks, as rounds of messages for one of them.

``group`` is an ordered tuple of world ranks, ``rank`` one of them, and the segment is ``count`` elements from
``start``. Any group size and any count do. On p ranks and n elements, each rank sends: ring 2(p-1)/p n in 2(p-1)
rounds, recursive doubling n log2(p) in log2(p) rounds, Rabenseifner 2(p-1)/p n in 2 log2(p) rounds (Thakur,
Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005). Where p is no power of
two, the last two fold the ranks beyond one into others, which costs two more rounds of n elements.
"""

from __future__ import annotations

from itertools import accumulate

from mpi.messages import Receive, Send, Strand, exchange
from mpi.schedules import split

Group = tuple[int, ...]


def ring(group: Group, rank: int, start: int, count: int) -> Strand:
    """Each block goes round the ring once while it is summed and once more as a result."""
    blocks = split(count, len(group))
    return ring_reduce_scatter(group, rank, start, blocks) + ring_all_gather(group, rank, start, blocks)


def ring_reduce_scatter(group: Group, rank: int, start: int, blocks: tuple[int, ...]) -> Strand:
    """Member i ends with the sum of block i, ``blocks[i]`` elements; the rest of its segment is partial sums."""
    # A block starts at the member behind its owner in the ring, so that it arrives there last.
    return _ring(group, rank, start, blocks, first=-1, add=True)


def ring_all_gather(group: Group, rank: int, start: int, blocks: tuple[int, ...]) -> Strand:
    """Member i gives block i; all members end with all blocks."""
    return _ring(group, rank, start, blocks, first=0, add=False)


def _ring(group: Group, rank: int, start: int, blocks: tuple[int, ...], first: int, add: bool) -> Strand:
    size, place = len(group), group.index(rank)
    starts = [start + before for before in accumulate(blocks, initial=0)]
    after, behind = group[(place + 1) % size], group[place - 1]
    rounds = []
    for step in range(size - 1):
        out, into = (place + first - step) % size, (place + first - step - 1) % size
        send = Send(after, starts[out], blocks[out])
        rounds.append(exchange(send, Receive(behind, starts[into], blocks[into], add)))
    return rounds


def recursive_doubling(group: Group, rank: int, start: int, count: int) -> Strand:
    """Pairs exchange all they have, at distance 1, 2, 4, ...: few rounds, many bytes."""

    def inner(core: Group) -> Strand:
        place, rounds = core.index(rank), []
        distance = 1
        while distance < len(core):
            peer = core[place ^ distance]
            # Both add the other's sum to their own, and a + b = b + a to the bit.
            rounds.append(exchange(Send(peer, start, count), Receive(peer, start, count, True)))
            distance *= 2
        return rounds

    return _folded(group, rank, start, count, inner)


def rabenseifner(group: Group, rank: int, start: int, count: int) -> Strand:
    """Reduce-scatter by halving the segment, all-gather by doubling it; the large halves go to the nearest members."""

    def inner(core: Group) -> Strand:
        place, rounds, back = core.index(rank), [], []
        at, length, distance = start, count, 1
        while distance < len(core):
            peer = core[place ^ distance]
            lower = (length + 1) // 2
            halves = ((at, lower), (at + lower, length - lower))
            kept, given = halves if not place & distance else halves[::-1]
            rounds.append(exchange(Send(peer, *given), Receive(peer, *kept, True)))
            back.append(exchange(Send(peer, *kept), Receive(peer, *given, False)))
            (at, length), distance = kept, distance * 2
        return rounds + back[::-1]

    return _folded(group, rank, start, count, inner)


def _folded(group: Group, rank: int, start: int, count: int, inner) -> Strand:
    """``inner`` on a power of two of the ranks; each of the others gives its data to one of them and gets the sum.

    The first ranks of the group are folded in pairs, neighbours within a node where ranks are in node order.
    """
    beyond = len(group) - (1 << (len(group).bit_length() - 1))
    folded = group[: 2 * beyond]
    if rank in folded[::2]:
        partner = group[group.index(rank) + 1]
        return [
            exchange(Send(partner, start, count), None),
            exchange(None, Receive(partner, start, count, False)),
        ]
    rounds = inner(folded[1::2] + group[2 * beyond :])
    if rank in folded:
        partner = group[group.index(rank) - 1]
        first = exchange(None, Receive(partner, start, count, True))
        rounds = [first, *rounds, exchange(Send(partner, start, count), None)]
    return rounds


def tree_reduce(group: Group, rank: int, start: int, count: int) -> Strand:
    """Sum to the first member along a binomial tree, in ceil(log2 p) rounds."""
    return [
        exchange(None, Receive(peer, start, count, True)) if gets else exchange(Send(peer, start, count), None)
        for peer, gets in _tree(group, rank)
    ]


def tree_broadcast(group: Group, rank: int, start: int, count: int) -> Strand:
    """From the first member to all: the tree of :func:`tree_reduce`, upside down."""
    return [
        exchange(Send(peer, start, count), None) if gives else exchange(None, Receive(peer, start, count, False))
        for peer, gives in reversed(_tree(group, rank))
    ]


def _tree(group: Group, rank: int) -> list[tuple[int, bool]]:
    """Whom ``rank`` meets, in the order of a reduction: its children (True), then its parent (False)."""
    place, meets, distance = group.index(rank), [], 1
    while distance < len(group):
        if place & distance:
            return [*meets, (group[place - distance], False)]
        if place + distance < len(group):
            meets.append((group[place + distance], True))
        distance *= 2
    return meets


#: An all-reduce on a group, by name.
PRIMITIVES = {"ring": ring, "recursive_doubling": recursive_doubling, "rabenseifner": rabenseifner}
