"""Look before anyone queues.

    python -m jobs.preflight                                      # this machine, such as a login node
    srun -N4 --ntasks-per-node=2 --gpus-per-node=2 python -m jobs.preflight
    mpirun -n 4 python -m jobs.preflight [--simulate-nodes 2,2] [--json FILE]

One line each, ok, warning or failure, with a remedy. Started as the job will be, all ranks look, and every pair of
nodes is measured. Exit status: 0 no failure, 1 some failure, 2 for bad arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from hvdkan.backends.world import World, abort, open_world
from hvdkan.files import replacing, why_unwritable
from hvdkan.launcher import Launcher, LaunchError, detect
from hvdkan.provenance import emulated
from hvdkan.signals import Stopped, watch
from hvdkan.watchdog import Watchdog
from jobs.preflight import hardware, links, one_mpi, pmi, software
from jobs.preflight.findings import Finding, closing, counted, failure, to_json, worst
from jobs.preflight.judge import Situation, host_names, judge, judge_own, simulated_names, topology_of
from jobs.preflight.links import Pair
from jobs.preflight.look import Seen, look
from mpi.start import initialise
from mpi.topology import Topology, TopologyError

_LIBRARIES = {"torchrun": "torch.distributed", "horovodrun": "Horovod"}
#: Seconds that the first rank gets to say what was found before another ends the job.
_FIRST_SAYS_S = 10.0
_LAST_LEAVE_S = 3.0
_OWN = "its own look at its node"
_ROOT = str(software.ROOT)


class UsageError(ValueError):
    """An argument that cannot be used; one line."""


class Report:
    """What was found so far, which the first rank prints: at the end, or when a wait has no end."""

    def __init__(self, launcher: Launcher, file: str | None):
        self.launcher, self.file = launcher, file
        self.seen: Seen | None = None
        self.findings: list[Finding] = []
        self.pairs: list[Pair] = []
        self.where = counted(launcher.size, "rank")
        self.facts: dict = {"launcher": launcher.kind, "ranks": launcher.size, "hosts": [], "simulated": False}

    @property
    def status(self) -> int:
        return 1 if worst(self.findings) == "failure" else 0

    def show(self) -> None:
        """Print, and write the file. Only the first rank's; where ranks do not find each other, each is one."""
        if self.launcher.rank != 0:
            return
        for finding in self.findings:
            print(finding.lines())
        print(closing(self.findings, self.where), flush=True)
        if self.file is not None:
            made = to_json(self.findings, **self.facts, links=[vars(pair) for pair in self.pairs])
            with replacing(Path(self.file)) as stream:
                stream.write(json.dumps(made, indent=2).encode() + b"\n")


def run(options: argparse.Namespace, launcher: Launcher) -> int:
    """Look, judge, measure, say; the exit status. Collective."""
    report = Report(launcher, options.json)
    watchdog = Watchdog(options.timeout_s, lambda stage: _give_up(report, stage, options.timeout_s))
    watch(lambda stopped: _stop(launcher, stopped))
    try:
        status = _run(options, launcher, report, watchdog)
    except (UsageError, TopologyError):
        raise
    except Exception:
        # Otherwise this rank would leave, and the others wait for it.
        print(f"preflight: rank {launcher.rank} on {socket.gethostname()} failed:", file=sys.stderr)
        traceback.print_exc()
        abort(1)
    watchdog.stop()
    return status


def _run(options: argparse.Namespace, launcher: Launcher, report: Report, watchdog: Watchdog) -> int:
    watchdog.beat(_OWN)
    seen = report.seen = look()
    watchdog.beat("all ranks to come up")
    world, size, library = _open(launcher, seen, options.timeout_s)
    watchdog.beat("all ranks' views")
    problem = world.broadcast(why_unwritable(options.json) if options.json and launcher.rank == 0 else None)
    if problem:
        raise UsageError(f"--json is {options.json!r}, {problem}")
    all_seen = world.allgather(seen)
    situation = Situation(launcher, size, library, dict(os.environ), options.simulate_nodes)
    if world.rank == 0:
        report.findings += judge(all_seen, situation, software.read_wanted(), _ROOT)
        _describe(report, all_seen, situation)
    if world.size > 1 and launcher.has_mpi:
        _measure(report, all_seen, options.simulate_nodes, watchdog.beat)
    watchdog.beat("the end of all ranks")
    if world.rank == 0:
        report.show()
    status = world.broadcast(report.status)
    world.barrier()
    world.close()
    if world.size != launcher.size:
        _leave_after_the_first(launcher)
    return status


def _open(launcher: Launcher, seen: Seen, timeout_s: float) -> tuple[World, int, str]:
    """The ranks' world, its size and whose it is; a world of one where the ranks cannot find each other."""
    library = _LIBRARIES.get(launcher.kind, "MPI (mpi4py)")
    if launcher.kind == "alone":
        return World(), 1, library
    if launcher.has_mpi:
        mine = one_mpi.identity(seen.mpis.library)
        # Started without its PMI, Open MPI would end the process, with a page of text.
        if seen.mpis.library is None or (launcher.kind == "srun" and not pmi.has_pmi(mine, os.environ)):
            return World(), 1, library
        pmi.early(mine, launcher, os.environ)
        initialise()
        from mpi4py import MPI

        if MPI.COMM_WORLD.size != launcher.size:
            return World(), MPI.COMM_WORLD.size, library
    try:
        world = open_world(launcher, timeout_s)
    except LaunchError:
        return World(), 1, library
    return world, world.size, library


def _describe(report: Report, all_seen: Sequence[Seen], situation: Situation) -> None:
    hosts = list(dict.fromkeys(host_names(all_seen)))
    report.facts |= {"hosts": hosts, "simulated": situation.simulated is not None}
    if situation.size == situation.launcher.size:
        nodes = counted(len(topology_of(all_seen, situation.simulated).members), "node")
        kind = nodes.replace("node", "simulated node") if situation.simulated else nodes
        report.where = f"{counted(len(all_seen), 'rank')} on {kind}"
    else:
        report.where = f"one of {situation.launcher.size} processes, each alone"


def _measure(report: Report, all_seen: Sequence[Seen], simulated: tuple[int, ...] | None, beat) -> None:
    """Clocks of real nodes, links of real or simulated ones. Collective over MPI's ranks."""
    from mpi4py import MPI

    real, hosts = topology_of(all_seen, None), host_names(all_seen)
    if len(real.members) > 1:
        beat("the nodes' clocks")
        offsets = links.offsets(MPI.COMM_WORLD, real, hosts)
        if MPI.COMM_WORLD.rank == 0:
            report.findings.append(hardware.judge_skew(offsets))
    topology = topology_of(all_seen, simulated)
    shared = "simulated" if simulated else "emulated" if emulated([seen.label for seen in all_seen]) is True else ""
    names = simulated_names(topology) if simulated else hosts
    report.pairs = links.measure(MPI.COMM_WORLD, topology, names, bool(shared), beat)
    report.findings += links.judge(report.pairs, shared)


def _give_up(report: Report, stage: str, timeout_s: float) -> NoReturn:
    """End the job that waits in vain, from the watchdog's thread: the first rank says what it knows."""
    text = f"no progress for {timeout_s:g} s while waiting for {stage}"
    remedy = "see to the ranks and the link named here, or give it --timeout-s"
    if report.launcher.rank == 0:
        if report.seen is not None and not report.findings:
            report.findings += judge_own(report.seen, report.launcher, os.environ, software.read_wanted(), _ROOT)
        report.findings.append(failure("waiting", text, remedy))
        report.show()
        abort(1)
    # The rank that hangs says so at once; those that wait for it, only where the first one is silent.
    time.sleep(0 if stage == _OWN else _FIRST_SAYS_S)
    print(f"preflight: rank {report.launcher.rank} on {socket.gethostname()}: {text}", file=sys.stderr, flush=True)
    time.sleep(_FIRST_SAYS_S)
    abort(1)


def _leave_after_the_first(launcher: Launcher) -> None:
    """Where ranks cannot wait for each other: mpirun ends all as soon as one leaves with a status other than 0."""
    if launcher.rank != 0:
        time.sleep(_LAST_LEAVE_S)


def _stop(launcher: Launcher, stopped: Stopped) -> NoReturn:
    if launcher.rank == 0:
        print(f"preflight: {stopped}", file=sys.stderr, flush=True)
    abort(128 + stopped.number)


# --- the command line ---


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parse(arguments: Sequence[str] | None, launcher: Launcher) -> argparse.Namespace:
    """Read the arguments. Raises :class:`UsageError` or TopologyError."""
    parser = _Parser(
        prog="python -m jobs.preflight",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", metavar="FILE", help="write the findings to FILE too")
    parser.add_argument("--simulate-nodes", metavar="N,N", help="workers of each simulated node of one machine")
    parser.add_argument("--timeout-s", default="60", metavar="X", help="longest wait without progress (default 60)")
    options = parser.parse_args(arguments)
    options.timeout_s = _seconds(options.timeout_s)
    if options.json == "":
        raise UsageError("--json is ''; it must be the name of a file")
    if options.simulate_nodes is not None:
        parts = options.simulate_nodes.split(",")
        if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
            raise UsageError(
                f"--simulate-nodes is {options.simulate_nodes!r}; it must be whole numbers of at least 1, as in 2,2"
            )
        options.simulate_nodes = tuple(map(int, parts))
        Topology.simulated(options.simulate_nodes, launcher.size)
    return options


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise UsageError(f"--timeout-s is {text!r}; it must be a number above 0")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    launcher = Launcher("alone")
    sys.stdout.reconfigure(errors="backslashreplace")
    try:
        launcher = detect()
        return run(parse(arguments, launcher), launcher)
    except LaunchError as error:
        report = Report(launcher, None)
        report.findings.append(failure("world", str(error), "unset what is left of another launch"))
        report.show()
        return 1
    except (UsageError, TopologyError) as error:
        if launcher.rank == 0:
            print(f"error: {error}", file=sys.stderr, flush=True)
        _leave_after_the_first(launcher)
        return 2
