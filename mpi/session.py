"""One run of :mod:`mpi.bench`: what is measured on all ranks, and what rank 0 prints and keeps."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence

import mpi4py
from mpi4py import MPI

from mpi import figures, results, tuning
from mpi.algorithms import Algorithm, parse_list
from mpi.links import measure_links
from mpi.measuring import Bench, Timing
from mpi.options import Options, UsageError, itemsize
from mpi.topology import Topology, node_label
from mpi.tuning import TableError

HAN = "OMPI_MCA_coll_han_priority"


class Session:
    """One run of the bench on all ranks: measures, and on rank 0 prints and keeps."""

    def __init__(self, world: MPI.Intracomm, options: Options):
        self.world, self.options = world, options
        labels = world.allgather(node_label())
        self.hosts = [label.split(" ")[0] for label in labels]
        simulated = options.simulate_nodes
        self.topology = Topology.simulated(simulated, world.size) if simulated else Topology.from_labels(labels)
        self.timings: list[Timing] = []
        self._json = None

    def run(self) -> int:
        options, topology = self.options, self.topology
        algorithms = parse_list(options.algorithms, topology)
        table = tuning.read(self.world, options.table, topology) if options.table else None
        if options.tune and options.tune.exists():
            self._on_rank_0(lambda: tuning.load(options.tune))  # said before measuring, not after
        self._on_rank_0(self._open)
        self.links = measure_links(self.world, topology)
        self._say_what_runs()
        for level in options.levels:
            self._measure(level, algorithms, table, options.counts(itemsize(options.dtype)))
        self._on_rank_0(self._finish)
        wrong = sum(timing.wrong for timing in self.timings)
        if wrong and self.world.rank == 0:
            print(f"error: {wrong} elements came out wrong", file=sys.stderr)
        return 1 if wrong else 0

    def _measure(
        self, level: str, algorithms: Sequence[Algorithm], table: tuning.Table | None, counts: Sequence[int]
    ) -> None:
        rank, topology = self.world.rank, self.topology
        comm = self.world
        if level != "world":
            algorithms = [one for one in algorithms if not one.hierarchical and one.name != "auto"]
            local = level == "local"
            comm = self.world.Split(topology.nodes[rank] if local else topology.local_rank(rank), rank)
            topology = Topology((0,) * comm.size if local else tuple(range(comm.size)))
        if not algorithms:
            return
        with Bench(self.world, comm, topology, algorithms, level, table) as bench:
            for count in counts:
                found = bench.measure(count, self.options.dtype, self.options.iterations, self.options.warmup)
                self.timings += found
                if rank == 0:
                    self._show(found)
        if comm != self.world:
            comm.Free()

    # --- what rank 0 alone does ---

    def _on_rank_0(self, action: Callable[[], object]) -> None:
        """Raise UsageError on all ranks where a file cannot be read or written."""
        failed = None
        if self.world.rank == 0:
            try:
                action()
            except OSError as error:
                failed = f"{error.filename} cannot be written: {error.strerror or error}"
            except TableError as error:
                failed = str(error)
        failed = self.world.bcast(failed)
        if failed:
            raise UsageError(failed)

    def _open(self) -> None:
        if self.options.json:
            self._json = self.options.json.open("w")
        for path in (self.options.tune, self.options.figure):
            if path and not os.access(path.parent, os.W_OK):
                raise OSError(2, "no directory that can be written to", str(path))

    def _about(self) -> dict:
        return {
            "kind": "run",
            "schema": results.SCHEMA,
            "ranks": self.world.size,
            "nodes": list(self.topology.nodes),
            "placement": self.topology.placement,
            "simulated_topology": self.options.simulate_nodes is not None,
            "hosts": self.hosts,
            "dtype": self.options.dtype,
            "iterations": self.options.iterations,
            "warmup": self.options.warmup,
            "between_bytes_per_s": self.links.between,
            "within_bytes_per_s": self.links.within,
            "mpi": MPI.Get_library_version().split(",")[0].strip("\0"),
            "mpi4py": mpi4py.__version__,
            "variables": {HAN: os.environ[HAN]},
        }

    def _say_what_runs(self) -> None:
        if self.world.rank:
            return

        about, links = self._about(), self.links
        if self._json:
            print(json.dumps(about), file=self._json, flush=True)
        simulated = ", simulated on one machine: says nothing about a network" if about["simulated_topology"] else ""
        print(f"# all-reduce of {about['dtype']}, sum, in place; {about['placement']}{simulated}")
        print(f"# {about['mpi']}, mpi4py {about['mpi4py']}, {HAN}={about['variables'][HAN]}")
        print(f"# {about['iterations']} iterations after {about['warmup']}; each time is the slowest rank's")
        rates = [
            f"{rate / 1e6:.1f} MB/s {where}"
            for rate, where in ((links.between, "a node, to others"), (links.within, "a rank, within its node"))
            if rate
        ]
        print(f"# links, each way at once: {'; '.join(rates) or 'none'}")
        print(results.heading(), flush=True)

    def _show(self, found) -> None:
        for timing in found:
            bound = self.links.bound_s(timing.level, self.topology, timing.bytes)
            print(results.row(timing, bound), flush=True)
            if self._json:
                print(results.as_json(timing, bound), file=self._json, flush=True)

    def _finish(self) -> None:
        if self.timings:
            for line in results.notes(self.timings, self.hosts):
                print(f"# {line}")
        if self._json:
            self._json.close()
        world = [timing for timing in self.timings if timing.level == "world"]
        if self.options.figure and world:
            self._draw(world)
        if self.options.tune:
            table = tuning.save(self.options.tune, self.topology, world)
            chosen = "; ".join(f"{size} B {algorithm}" for size, algorithm in table.rows.items())
            print(f"# {self.options.tune}: for nodes of {tuning.shape(self.topology)} ranks: {chosen}")

    def _draw(self, world: Sequence[Timing]) -> None:
        title = f"All-reduce of {self.options.dtype}, {self.topology.placement}"
        if self.options.simulate_nodes:
            title += ", simulated on one machine: says nothing about a network"
        figures.draw(self.options.figure, world, lambda size: self.links.bound_s("world", self.topology, size), title)
        print(f"# {self.options.figure}: written")
