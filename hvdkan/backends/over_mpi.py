"""The all-reduce of :mod:`mpi.allreduce` as a run asks for it: which algorithm, on which nodes, for torch's buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from hvdkan.backends.base import Backend, Effective
from hvdkan.config import Config
from hvdkan.kinds import ConfigError
from mpi.algorithms import Algorithm, flat_twin, parse
from mpi.topology import Topology


def planned(engine: str, allreduce: str, topology: Topology) -> tuple[Algorithm, Topology]:
    """What ``engine`` runs for an effective ``allreduce``, and the nodes that it then sees.

    Of a hierarchy, flat means its twin. One that calls MPI's collectives makes the same calls with all ranks on one
    node. One of our own messages would then not use its algorithm across nodes at all, and the leader's would be a
    reduce and a broadcast, which nobody would choose: its twin is the algorithm across nodes, run by all ranks.
    """
    algorithm = parse(engine)
    if allreduce == "hierarchical" or not algorithm.hierarchical:
        return algorithm, topology
    return (algorithm, topology.as_one_node()) if algorithm.calls_mpi else (flat_twin(algorithm), topology)


class OverMpi:
    """Averages buffers over all ranks. Collective to make, to call and to close; made once MPI is up."""

    def __init__(self, config: Config, topology: Topology, algorithm: Algorithm | None, traced: Callable):
        """With no ``algorithm``, by size from a table: `table` then holds it. Raises ConfigError on all ranks alike."""
        from mpi4py import MPI

        from mpi import tuning
        from mpi.allreduce import Allreduce

        self.table = None
        if algorithm is None and config.allreduce_table is None:
            self.table = tuning.measured(MPI.COMM_WORLD, topology)
        elif algorithm is None:
            try:
                self.table = tuning.read(MPI.COMM_WORLD, config.allreduce_table, topology)
            except tuning.TableError as error:
                raise ConfigError(f"--allreduce-table: {error}") from None
        self._algorithm, self._size, self._degenerate = algorithm, topology.size, topology.degenerate
        self._allreduce = Allreduce(MPI.COMM_WORLD, topology, algorithm or "auto", traced, table=self.table)
        self._compared: set[int] = set()

    def evidence(self) -> dict[str, Any]:
        """The library, and the table that sizes choose from."""
        from mpi4py import MPI

        found = {"library": MPI.Get_library_version().split(",")[0]}
        if self.table is not None:
            found["table"] = {str(size): str(algorithm) for size, algorithm in self.table.rows.items()}
        return found

    def chosen(self, size_bytes: int) -> tuple[str, str]:
        """The all-reduce, flat or hierarchical, and the engine for a buffer of this size."""
        algorithm = self._algorithm or self.table.choose(size_bytes)
        return ("hierarchical" if algorithm.hierarchical and not self._degenerate else "flat"), str(algorithm)

    def average_(self, buffer: torch.Tensor, observed: bool = False) -> None:
        """Average a flat buffer in place."""
        host = buffer.cpu()  # on the CPU this is the buffer itself; a GPU's goes through host memory
        self._compare(host, observed)
        self._allreduce(host.numpy())
        host /= self._size
        if host is not buffer:
            buffer.copy_(host)

    def start(self, buffer: torch.Tensor) -> Started:
        """Begin to average a flat buffer in place; ranks start theirs in the same order."""
        host = buffer.cpu()
        self._compare(host, False)
        return Started(self._allreduce.start(host.numpy(), op="mean"), buffer, host)

    def _compare(self, buffer: torch.Tensor, observed: bool) -> None:
        """Ranks that differ are told so before training and in its first step; later steps are the same calls."""
        self._allreduce.checked = observed or buffer.numel() not in self._compared
        if not observed:
            self._compared.add(buffer.numel())

    def close(self) -> None:
        self._allreduce.close()


class Started:
    """An exchange under way. It moves on in ``test``; after ``wait`` the buffer holds the mean."""

    def __init__(self, pending, buffer: torch.Tensor, host: torch.Tensor):
        self._pending, self._buffer, self._host = pending, buffer, host

    def test(self) -> bool:
        return self._pending.test()

    def wait(self) -> None:
        self._pending.wait()
        if self._host is not self._buffer:
            self._buffer.copy_(self._host)


def open_over_mpi(backend: Backend, mca: dict[str, str]) -> tuple[Effective, OverMpi]:
    """What becomes of the all-reduce and engine that a started back end was asked for, carried out over MPI."""
    config, topology = backend.config, backend.topology
    evidence = {"mca": mca}
    if backend.device.type == "cuda":
        evidence["staged_through_host"] = True
    if config.allreduce == "auto":
        exchange = OverMpi(config, topology, None, backend.traced)
        return Effective("auto", "auto", "mpi", None, evidence | exchange.evidence()), exchange
    engine = backend.engine()
    effective, _ = backend.resolve("flat" if engine == "builtin" else engine, "mpi", evidence)
    algorithm, seen = planned(effective.engine, effective.allreduce, topology)
    if str(algorithm) != effective.engine:
        evidence["twin_of"] = effective.engine
    exchange = OverMpi(config, seen, algorithm, backend.traced)
    evidence |= exchange.evidence()
    return replace(effective, engine=str(algorithm)), exchange


def chosen(effective: Effective, exchange: OverMpi, sizes: list[int]) -> Effective:
    """With a table, what it chooses for buckets of these sizes in bytes: the largest stands for all."""
    if exchange.table is None:
        return effective
    effective.evidence["chosen"] = {str(size): exchange.chosen(size)[1] for size in sizes}
    allreduce, engine = exchange.chosen(max(sizes))
    return replace(effective, allreduce=allreduce, engine=engine)
