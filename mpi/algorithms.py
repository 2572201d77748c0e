"""The all-reduce algorithms by name, as in ``two_level(cross=ring,chunks=4)``, and what each one sends.

``cross`` is what runs across nodes; ``chunks`` cuts the buffer in parts that are under way at once, so that one part is
on the links between nodes while the next is in the node.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate, chain

from mpi.messages import Schedule, Strand
from mpi.primitives import PRIMITIVES, ring_all_gather, ring_reduce_scatter, tree_broadcast, tree_reduce
from mpi.schedules import split
from mpi.topology import Topology

#: What each name takes for ``cross``, the default first; `flat` is the MPI library's own collective.
CROSS = {"leader": tuple(PRIMITIVES), "two_level": ("flat", *PRIMITIVES)}
#: `auto` is chosen by size from a table, see :mod:`mpi.tuning`.
NAMES = ("flat", *PRIMITIVES, *CROSS, "auto")
#: Their messages are told apart by tag.
MOST_CHUNKS = 64


class AlgorithmError(ValueError):
    """A name that stands for no algorithm; one line that names what does."""


@dataclass(frozen=True)
class Algorithm:
    """An algorithm with its parameters; ``str`` gives the name that :func:`parse` reads, without defaults."""

    name: str
    cross: str | None = None
    chunks: int = 1

    def __str__(self) -> str:
        shown = []
        if self.cross is not None and self.cross != CROSS[self.name][0]:
            shown.append(f"cross={self.cross}")
        if self.chunks != 1:
            shown.append(f"chunks={self.chunks}")
        return f"{self.name}({','.join(shown)})" if shown else self.name

    @property
    def calls_mpi(self) -> bool:
        """Whether it runs the MPI library's collectives, instead of messages of ours."""
        return "flat" in (self.name, self.cross)

    @property
    def hierarchical(self) -> bool:
        return self.name in CROSS


def parse(text: str) -> Algorithm:
    """The algorithm of a name such as ``ring`` or ``two_level(cross=ring,chunks=4)``. Raises AlgorithmError."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", text)
    if match is None or match[1] not in NAMES:
        raise AlgorithmError(f"algorithm is {text!r}; it must be one of {', '.join(NAMES)}")
    name = match[1]
    takes = (("cross",) if name in CROSS else ()) + (("chunks",) if name not in ("flat", "auto") else ())
    values: dict[str, str] = {}
    for part in match[2].split(",") if match[2] else ():
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in takes or key in values:
            how = f"it takes {' and '.join(takes)}, once each" if takes else "it takes none"
            raise AlgorithmError(f"algorithm {name} has a parameter {part.strip()!r}; {how}")
        values[key] = value
    cross = values.get("cross", CROSS[name][0] if name in CROSS else None)
    if cross is not None and cross not in CROSS[name]:
        raise AlgorithmError(f"cross of {name} is {cross!r}; it must be one of {', '.join(CROSS[name])}")
    chunks = values.get("chunks", "1")
    if not re.fullmatch(r"\d{1,3}", chunks) or not 1 <= int(chunks) <= MOST_CHUNKS:
        raise AlgorithmError(f"chunks of {name} is {chunks!r}; it must be a whole number from 1 to {MOST_CHUNKS}")
    return Algorithm(name, cross, int(chunks))


def parse_list(text: str, topology: Topology) -> list[Algorithm]:
    """Names between commas, or ``all``. Commas within parentheses belong to a name."""
    found: list[Algorithm] = []
    for name in re.split(r",(?![^(]*\))", text):
        found += every(topology) if name.strip() == "all" else [parse(name)]
    return list(dict.fromkeys(found))


def every(topology: Topology) -> list[Algorithm]:
    """What ``all`` stands for, and what `auto` chooses among: hierarchies only where there are two levels."""
    names = ["flat", *PRIMITIVES, "ring(chunks=4)"]
    if topology.degenerate is None:
        names += [f"{name}(cross={cross})" for name in CROSS for cross in CROSS[name]]
        names += [
            "leader(cross=ring,chunks=4)",
            "two_level(cross=flat,chunks=4)",
            "two_level(cross=ring,chunks=4)",
            "two_level(cross=ring,chunks=16)",
            "two_level(cross=rabenseifner,chunks=4)",
        ]
    return [parse(name) for name in names]


def flat_twin(algorithm: Algorithm) -> Algorithm:
    """The same messages' algorithm on all ranks at once, without a hierarchy."""
    if not algorithm.hierarchical:
        return algorithm
    return Algorithm("flat") if algorithm.calls_mpi else Algorithm(algorithm.cross, None, algorithm.chunks)


def schedule(algorithm: Algorithm, topology: Topology, count: int, rank: int) -> Schedule:
    """What ``rank`` sends and receives to sum ``count`` elements over all ranks: one strand a chunk.

    Raises AlgorithmError for algorithms that call MPI's collectives, whose messages are MPI's own business.
    """
    if algorithm.calls_mpi or algorithm.name == "auto":
        raise AlgorithmError(f"{algorithm} has no messages of its own")
    chunks = split(count, algorithm.chunks)
    starts = accumulate(chunks, initial=0)
    return [_strand(algorithm, topology, rank, at, length) for at, length in zip(starts, chunks, strict=False)]


def _strand(algorithm: Algorithm, topology: Topology, rank: int, start: int, count: int) -> Strand:
    if algorithm.name == "leader":
        return _leader(topology, rank, start, count, algorithm.cross)
    if algorithm.name == "two_level":
        return _two_level(topology, rank, start, count, algorithm.cross)
    # In the order of nodes, whatever the ranks' numbers: a ring then crosses to each node once, and the large halves
    # of Rabenseifner's algorithm stay within nodes.
    return PRIMITIVES[algorithm.name](tuple(chain(*topology.members)), rank, start, count)


def _leader(topology: Topology, rank: int, start: int, count: int, cross: str) -> Strand:
    """Reduce to one rank a node, all-reduce among these, broadcast in the node."""
    local = topology.local_ranks(rank)
    leaders = tuple(node[0] for node in topology.members)
    across = PRIMITIVES[cross](leaders, rank, start, count) if rank in leaders else []
    return tree_reduce(local, rank, start, count) + across + tree_broadcast(local, rank, start, count)


def _two_level(topology: Topology, rank: int, start: int, count: int, cross: str) -> Strand:
    """Reduce-scatter in the node, all-reduce of each shard across nodes by all local ranks at once, all-gather.

    As in :func:`mpi.schedules.two_level`, there are as many shards as the smallest node has ranks.
    """
    local, place = topology.local_ranks(rank), topology.local_rank(rank)
    shards = min(len(node) for node in topology.members)
    blocks = (*split(count, shards), *(0 for _ in range(len(local) - shards)))
    rounds = ring_reduce_scatter(local, rank, start, blocks)
    if place < shards:
        across = tuple(node[place] for node in topology.members)
        rounds += PRIMITIVES[cross](across, rank, start + sum(blocks[:place]), blocks[place])
    return rounds + ring_all_gather(local, rank, start, blocks)
