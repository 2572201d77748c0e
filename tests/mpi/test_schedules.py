"""Schedules run in one process, all ranks in step: every contribution must arrive everywhere exactly once."""

import itertools

import numpy as np
import pytest

from mpi.schedules import groups, split, two_level
from mpi.topology import Topology


def simulate(topology: Topology, count: int) -> list[np.ndarray]:
    """Run the steps of all ranks; rank r's elements start as the bit r, so that a sum names its terms."""
    size = topology.size
    buffers = [np.full(count, 1 << rank, dtype=object) for rank in range(size)]
    queues = [list(two_level(topology, count, rank)) for rank in range(size)]
    while any(queues):
        ready = [rank for rank in range(size) if queues[rank] and _all_here(queues, rank)]
        assert ready, "a step waits for a rank that never comes"
        group = queues[ready[0]][0].group
        steps = {rank: queues[rank].pop(0) for rank in group}
        _run(steps, buffers)
    return buffers


def _all_here(queues, rank):
    step = queues[rank][0]
    return all(
        queues[member] and (queues[member][0].operation, queues[member][0].group) == (step.operation, step.group)
        for member in step.group
    )


def _run(steps, buffers):
    operation = next(iter(steps.values())).operation
    group = next(iter(steps.values())).group
    before = {rank: buffers[rank].copy() for rank in group}
    for place, rank in enumerate(group):
        step = steps[rank]
        if operation == "allgather":
            for other, start, count in zip(group, step.starts, step.counts, strict=True):
                buffers[rank][start : start + count] = before[other][start : start + count]
            continue
        own = 0 if operation == "allreduce" else place
        part = slice(step.starts[own], step.starts[own] + step.counts[own])
        total = sum(before[other][part] for other in group)
        if operation == "reduce_scatter":
            buffers[rank][:] = 0  # what is not kept must not be relied upon
        buffers[rank][part] = total


def shapes(size: int) -> list[tuple[int, ...]]:
    """Node sizes for ``size`` ranks: all partitions of small worlds, a choice of large ones."""
    if size <= 8:
        return list(_compositions(size))
    equal = [(size // n,) * n for n in range(1, size + 1) if size % n == 0]
    return [*equal, (size - 1, 1), (1, size - 1), (size // 2, size - size // 2), (1,) * (size - 3) + (3,)]


def _compositions(size):
    for cuts in itertools.product((0, 1), repeat=size - 1):
        shape, run = [], 1
        for cut in cuts:
            if cut:
                shape.append(run)
                run = 1
            else:
                run += 1
        yield (*shape, run)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8, 12, 17, 24, 40])
def test_two_level_counts_every_contribution_once(size):
    everyone = (1 << size) - 1
    for shape in shapes(size):
        topology = Topology.simulated(shape, size)
        for count in {0, 1, size - 1, size, size + 1, 2 * size - 1, 97}:
            for buffer in simulate(topology, count):
                assert all(value == everyone for value in buffer), (shape, count)


@pytest.mark.parametrize("labels", ["ABABABAB", "ABBABBAA", "BACABCAB", "ABCDABCA"])
def test_two_level_with_ranks_in_any_order(labels):
    for buffer in simulate(Topology.from_labels(labels), 29):
        assert all(value == 255 for value in buffer)


def test_a_twin_makes_the_same_number_of_calls():
    topology = Topology.simulated((2, 2), 4)
    for rank in range(4):
        steps, twin = two_level(topology, 100, rank), two_level(topology.as_one_node(), 100, rank)
        assert [step.operation for step in steps] == [step.operation for step in twin]
    assert two_level(topology.as_one_node(), 100, 1)[1].group == (1,)


def test_bytes_across_nodes_are_those_of_one_shard():
    """What hierarchy is for: only 1/local_size of the buffer is all-reduced across nodes."""
    for rank in range(8):
        across = two_level(Topology.simulated((4, 4), 8), 1000, rank)[1]
        assert across.counts == (250,)
        assert len(across.group) == 2


def test_large_counts_do_not_overflow():
    steps = two_level(Topology.simulated((3, 3), 6), 2**33 + 1, 5)
    assert sum(steps[0].counts) == 2**33 + 1


def test_split_and_groups():
    assert split(7, 3) == (3, 2, 2)
    assert split(1, 3) == (1, 0, 0)
    assert groups(Topology.simulated((2, 2), 4)) == [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert groups(Topology.simulated((2, 1), 3)) == [(0, 1), (0, 2), (2,)]
