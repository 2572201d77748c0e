"""Runs the messages of all ranks in one process, strands in any order, and says what is wrong with them."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque

from mpi.messages import Schedule
from mpi.topology import Topology


class Deadlock(AssertionError):
    pass


def run(schedules: list[Schedule], buffers: list[list[int]], seed: int = 0) -> None:
    """Carry out ``schedules`` (one a rank) on ``buffers`` in place, choosing among ready strands by ``seed``.

    Messages of one strand between two ranks arrive in order. A send copies its data when its round begins.
    """
    chance = random.Random(seed)
    wires: dict[tuple[int, int, int], deque[list[int]]] = defaultdict(deque)
    place = {(rank, strand): 0 for rank, strands in enumerate(schedules) for strand in range(len(strands))}
    ready = [(key, True) for key in place]
    waiting: set[tuple[int, int]] = set()
    while ready:
        at = chance.randrange(len(ready))
        ready[at], ready[-1] = ready[-1], ready[at]
        key, begins = ready.pop()
        rank, strand = key
        if place[key] == len(schedules[rank][strand]):
            continue
        step = schedules[rank][strand][place[key]]
        if begins:
            _check_round(step)
            for send in step.sends:
                wires[rank, send.peer, strand].append(buffers[rank][send.start : send.start + send.count])
                if (send.peer, strand) in waiting:
                    waiting.remove((send.peer, strand))
                    ready.append(((send.peer, strand), False))
        needed = Counter(receive.peer for receive in step.receives)
        if any(len(wires[peer, rank, strand]) < number for peer, number in needed.items()):
            waiting.add(key)
            continue
        for receive in step.receives:
            _arrive(receive, wires[receive.peer, rank, strand].popleft(), buffers[rank])
        place[key] += 1
        ready.append((key, True))
    if waiting:
        raise Deadlock(f"strands {sorted(waiting)} wait for messages that never come")
    assert not any(wires.values()), "messages were sent that nobody received"


def _arrive(receive, data, buffer) -> None:
    assert len(data) == receive.count, "a message of another length was expected"
    at = slice(receive.start, receive.start + receive.count)
    buffer[at] = [old + new for old, new in zip(buffer[at], data, strict=True)] if receive.add else data


def _check_round(step) -> None:
    for message in (*step.sends, *step.receives):
        assert message.count > 0
    for receive in step.receives:
        if not receive.add:
            end = receive.start + receive.count
            for other in (*step.sends, *(one for one in step.receives if one is not receive)):
                apart = other.start + other.count <= receive.start or end <= other.start
                assert apart, "what is overwritten is also sent or received in this round"


def sent_per_rank(schedules: list[Schedule], topology: Topology, across: bool) -> list[int]:
    """Elements that each rank sends to other nodes, or within its own."""
    return [
        sum(
            send.count
            for strand in strands
            for step in strand
            for send in step.sends
            if (topology.nodes[rank] != topology.nodes[send.peer]) == across
        )
        for rank, strands in enumerate(schedules)
    ]
