"""Who shares a node with whom, seen from any rank. Pure data: nothing here talks to another process."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


class TopologyError(ValueError):
    """A topology that does not fit the ranks there are; one line that names both."""


@dataclass(frozen=True)
class Topology:
    """``nodes[rank]`` is the node of each world rank, numbered in the order in which ranks first name them.

    The ranks of a node need not be consecutive, and nodes need not be equal.
    """

    nodes: tuple[int, ...]

    @classmethod
    def from_labels(cls, labels: Sequence[Hashable]) -> Topology:
        """From one label a rank (such as its host's name): equal labels share a node."""
        numbers: dict[Hashable, int] = {}
        return cls(tuple(numbers.setdefault(label, len(numbers)) for label in labels))

    @classmethod
    def simulated(cls, workers: Sequence[int], size: int) -> Topology:
        """Consecutive ranks on nodes of these sizes, as in (2, 2). Raises TopologyError unless they sum to ``size``."""
        if sum(workers) != size:
            shown = ",".join(map(str, workers))
            raise TopologyError(f"--simulate-nodes {shown} places {sum(workers)} workers, but {size} are running")
        return cls(tuple(node for node, count in enumerate(workers) for _ in range(count)))

    @property
    def size(self) -> int:
        return len(self.nodes)

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each node, ascending."""
        grouped: list[list[int]] = [[] for _ in range(len(set(self.nodes)))]
        for rank, node in enumerate(self.nodes):
            grouped[node].append(rank)
        return tuple(map(tuple, grouped))

    def local_ranks(self, rank: int) -> tuple[int, ...]:
        """The ranks that share the node of ``rank``, itself included."""
        return self.members[self.nodes[rank]]

    def local_rank(self, rank: int) -> int:
        return self.local_ranks(rank).index(rank)

    def local_size(self, rank: int) -> int:
        return len(self.local_ranks(rank))

    def cross_ranks(self, rank: int) -> tuple[int, ...]:
        """The ranks with the same place within their node, on all nodes that have such a place, ascending."""
        place = self.local_rank(rank)
        return tuple(sorted(node[place] for node in self.members if place < len(node)))

    def cross_rank(self, rank: int) -> int:
        return self.cross_ranks(rank).index(rank)

    def cross_size(self, rank: int) -> int:
        return len(self.cross_ranks(rank))

    @property
    def placement(self) -> str:
        """Such as ``8G4N``: 8 workers on 4 nodes."""
        return f"{self.size}G{len(self.members)}N"

    @property
    def degenerate(self) -> str | None:
        """Why a hierarchy has only one level here, or None: ``one node`` or ``one worker per node``."""
        if len(self.members) == 1:
            return "one node"
        return "one worker per node" if all(len(node) == 1 for node in self.members) else None

    def as_one_node(self) -> Topology:
        """The same ranks without their nodes: what makes of a hierarchical algorithm its flat twin."""
        return Topology((0,) * self.size)


def node_label() -> str:
    """This machine, told apart from others: containers may share a host name, emulated nodes a kernel."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"


def named(ranks: Sequence[int]) -> str:
    """Such as ``rank 3`` or ``ranks 0, 2``; many are counted after the first eight."""
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' * (len(ranks) > 1)} {shown}"


def workers_per_host(labels: Sequence[str]) -> dict[str, int]:
    """Host name to number of ranks, from the labels of :func:`node_label`."""
    return dict(Counter(label.split(" ")[0] for label in labels))
