"""From what all ranks saw to the list of findings, in the order in which they are printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hvdkan import nested
from hvdkan.launcher import Launcher
from jobs.preflight import hardware, infiniband, launch, one_mpi, pmi, software
from jobs.preflight.findings import Finding, merged
from jobs.preflight.look import Seen
from jobs.preflight.software import Wanted
from mpi.topology import Topology


@dataclass(frozen=True)
class Situation:
    """How the ranks were started and what came up. ``size`` is the library's, which may not be the launcher's."""

    launcher: Launcher
    size: int
    library: str
    environment: Mapping[str, str]
    simulated: tuple[int, ...] | None = None

    @property
    def alone(self) -> bool:
        return self.launcher.kind == "alone"


def judge(all_seen: Sequence[Seen], situation: Situation, wanted: Mapping[str, Wanted], root: str) -> list[Finding]:
    """What can be said before links are measured. ``all_seen`` holds the view of each rank, in order of ranks."""
    hosts = host_names(all_seen)
    found = [
        *_software(all_seen, hosts, situation, wanted, root),
        *_ranks(all_seen, hosts, situation),
        *_nodes(all_seen, hosts),
    ]
    return [finding for finding in found if finding is not None]


def judge_own(
    seen: Seen, launcher: Launcher, environment: Mapping[str, str], wanted: Mapping[str, Wanted], root: str
) -> list[Finding]:
    """What one rank can say by itself, of its software and its node, when the others do not come."""
    situation = Situation(launcher, launcher.size, "", environment)
    hosts = host_names([seen])
    found = [*_software([seen], hosts, situation, wanted, root), *_nodes([seen], hosts)]
    return [finding for finding in found if finding is not None]


def host_names(all_seen: Sequence[Seen]) -> list[str]:
    """A name of each rank's host; hosts of one name (containers) are told apart by a number."""
    numbers: dict[str, dict[str, int]] = {}
    names = []
    for seen in all_seen:
        labels = numbers.setdefault(seen.host, {})
        number = labels.setdefault(seen.label, len(labels) + 1)
        names.append(seen.host if number == 1 else f"{seen.host}#{number}")
    return names


def topology_of(all_seen: Sequence[Seen], simulated: tuple[int, ...] | None) -> Topology:
    """Real nodes, or the simulated ones."""
    if simulated is not None:
        return Topology.simulated(simulated, len(all_seen))
    return Topology.from_labels([seen.label for seen in all_seen])


def _software(all_seen, hosts, situation, wanted, root) -> list[Finding | None]:
    def each(judge_one: Callable[[Seen], Finding | None], only_tools: bool = False) -> Finding | None:
        return merged([judge_one(seen) if seen.tools or not only_tools else None for seen in all_seen], hosts)

    launcher = situation.launcher
    found = []
    for place, package in enumerate(all_seen[0].packages):
        limits = wanted.get(package.name, Wanted())
        found.append(
            each(lambda seen, place=place, limits=limits: software.judge_package(seen.packages[place], limits))
        )
    found.append(each(lambda seen: software.judge_origins(seen.packages, seen.prefixes, seen.ours, root)))
    found.append(each(lambda seen: software.judge_horovod(seen.built, launcher.has_mpi, len(seen.gpus.seen))))
    found.append(each(lambda seen: one_mpi.judge_one(seen.mpis), only_tools=True))
    found.append(each(lambda seen: one_mpi.judge_mpirun(seen.mpirun, seen.mpis, launcher), only_tools=True))
    # Rank 0's variables for all: they hold each rank's number.
    found.append(
        each(
            lambda seen: pmi.judge_srun(seen.srun, seen.mpis.library, launcher, situation.environment),
            only_tools=True,
        )
    )
    return found


def _ranks(all_seen, hosts, situation) -> list[Finding | None]:
    launcher, environment, simulated = situation.launcher, situation.environment, situation.simulated is not None
    nodes = topology_of(all_seen, None)
    found = [launch.judge_world(launcher, situation.size, situation.library, environment)]
    whole = situation.size == launcher.size
    # One of many processes that are each alone knows nothing of the others' places.
    topology = topology_of(all_seen, situation.simulated if whole else None)
    inside = nested.wanted(launcher, environment)
    if whole and not situation.alone:
        names = [seen.slurm_name for seen in all_seen]
        found.append(launch.judge_placement(topology, hosts, simulated, names))
    gpus = [seen.gpus for seen in all_seen]
    found.append(launch.judge_gpus(nodes, hosts, gpus))
    found.append(launch.judge_planned(environment, gpus[0]) if situation.alone else None)
    found.append(launch.judge_nested(inside))
    nested_too = inside is not None
    found.append(merged([launch.judge_variable(seen.hierarchy, topology, nested_too) for seen in all_seen], hosts))
    first = all_seen[0]
    on_gpus = any(one.seen for one in gpus)
    has_mpi = first.mpis.library is not None
    found.append(launch.judge_engines(first.built, launcher, on_gpus, simulated, has_mpi))
    cores, omp = [seen.cores for seen in all_seen], [seen.omp for seen in all_seen]
    found.append(hardware.judge_cores(nodes, hosts, cores, [seen.online for seen in all_seen], omp))
    return found


def _nodes(all_seen, hosts) -> list[Finding | None]:
    nodes = topology_of(all_seen, None)
    found = [hardware.judge_memory(nodes, hosts, [seen.memory for seen in all_seen])]
    by_check: dict[str, list[Finding | None]] = {}
    for rank, seen in enumerate(all_seen):
        for one in infiniband.judge(seen.ports, seen.interfaces, seen.devices):
            by_check.setdefault(one.check, [None] * len(all_seen))[rank] = one
    found += [merged(each, hosts) for each in by_check.values()]
    found.append(merged([hardware.judge_memlock(seen.memlock, bool(seen.ports)) for seen in all_seen], hosts))
    found.append(merged([hardware.judge_clocksource(seen.clocksource) for seen in all_seen], hosts))
    return found


def simulated_names(topology: Topology) -> list[str]:
    """Names of simulated nodes, one a rank, numbered from 1 as hosts mostly are."""
    return [f"simulated{node + 1}" for node in topology.nodes]
