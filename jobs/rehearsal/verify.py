"""A cluster verifies itself before anyone relies on it. Every check returns the line that it prints."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.rehearsal import cluster as names
from jobs.rehearsal import commands, daemons, network, outside
from jobs.rehearsal.cluster import CONTROLLER, Cluster
from jobs.rehearsal.daemons import Daemon
from jobs.rehearsal.errors import Failed

#: Payload carried, as a share of the rate asked for: headers take 4.4% of it, and a busy machine the rest.
SLOWEST, FASTEST = 0.75, 1.05
#: A busy machine slows one try down; none makes a shaped link faster than it is.
TRIES = 6
_PROBE_S = 0.3
_UNSHAPED_BYTES = 1 << 25
_MOST_BYTES = 1 << 28
_TASK = """
import os, socket
print(socket.gethostname(), len(os.sched_getaffinity(0)), os.environ.get("CUDA_VISIBLE_DEVICES", "none"))
"""
_MPI = """
import socket
from mpi.start import initialise
initialise()
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
print("rank", world.rank, "of", world.size, "on", socket.gethostname(), "sum", total, flush=True)
"""


@dataclass(frozen=True)
class Link:
    """What was measured from one node to the next: payload in bit/s, shortest round trip in seconds."""

    source: str
    target: str
    bits: float
    round_trip_s: float


def nodes_idle(cluster: Cluster, running: Sequence[Daemon]) -> str:
    """Every node is known to the controller and idle. Raises :class:`Failed`."""
    environment = _environment(cluster)

    def idle() -> bool:
        text = commands.run(["sinfo", "-h", "-N", "-o", "%N %T"], environment=environment, check=False, timeout_s=30)
        states = dict(line.split() for line in text.splitlines() if len(line.split()) == 2)
        return states == dict.fromkeys(cluster.node_names, "idle")

    daemons.wait(idle, running, f"{cluster.nodes} idle nodes")
    return f"{cluster.nodes} nodes are idle"


def tasks(cluster: Cluster) -> str:
    """One task a node: each node has its own host name, and its GPUs. Raises :class:`Failed`."""
    command = ["srun", "--immediate=60", f"-N{cluster.nodes}", "--ntasks-per-node=1"]
    command += [f"--gpus-per-node={cluster.gpus}"] if cluster.gpus else []
    text = _job(cluster, [*command, str(outside.python()), "-I", "-S", "-c", _TASK])
    seen = sorted(line.split() for line in text.splitlines())
    wanted = ",".join(map(str, range(cluster.gpus))) or "none"
    if [words[0] for words in seen] != sorted(cluster.node_names):
        raise Failed(f"one task a node should see {cluster.node_names}, and sees {[words[0] for words in seen]}")
    if {words[2] for words in seen} != {wanted}:
        raise Failed(f"CUDA_VISIBLE_DEVICES should be {wanted} on each node, and is {[words[2] for words in seen]}")
    gpus = f", CUDA_VISIBLE_DEVICES={wanted} on each" if cluster.gpus else ""
    return f"host names differ ({_span(cluster)}){gpus}; a task of one core sees {seen[0][1]} CPU(s)"


def mpi(cluster: Cluster) -> str:
    """An MPI job over two nodes (on one node: two ranks there) adds up. Raises :class:`Failed`."""
    nodes = min(2, cluster.nodes)
    command = ["srun", "--immediate=60", "--mpi=pmix", f"-N{nodes}", "-n2", "--overcommit", "--kill-on-bad-exit=1"]
    text = _job(cluster, [*command, str(outside.python()), "-c", _MPI])
    ranks = sorted(line for line in text.splitlines() if line.startswith("rank "))
    hosts = cluster.node_names[:2] if nodes == 2 else cluster.node_names * 2
    if ranks != [f"rank {rank} of 2 on {host} sum 3" for rank, host in enumerate(hosts)]:
        raise Failed(f"an MPI job of two ranks printed {text.strip()!r}")
    return "an MPI job runs: " + "; ".join(line.removesuffix(" sum 3") for line in ranks)


def links(cluster: Cluster) -> Iterator[str]:
    """Every node's link, in both directions, against what was asked for. Raises :class:`Failed`."""
    if cluster.nodes < 2:
        yield "one node: there is no link to measure"
        return
    before = {node: network.overlimits(cluster, node) for node in cluster.node_names}
    size = (
        _UNSHAPED_BYTES
        if cluster.rate_bits is None
        else min(max(1 << 16, int(cluster.rate_bits / 8 * _PROBE_S)), _MOST_BYTES)
    )
    ring = zip(cluster.node_names, [*cluster.node_names[1:], cluster.node_names[0]], strict=True)
    # From a neighbour both ends of the way are shaped; from the controller, whose link is not, the node's side is.
    pairs = [*ring, *((CONTROLLER, node) for node in cluster.node_names if cluster.rate_bits is not None)]
    measured = [_measure(cluster, source, target, size) for source, target in pairs]
    rates = [link.bits for link in measured]
    line = f"links carry {_mbit(min(rates))} to {_mbit(max(rates))}"
    if cluster.rate_bits is not None:
        idle = [node for node in cluster.node_names if network.overlimits(cluster, node) <= before[node]]
        if idle:
            raise Failed(f"tc never held anything back on {', '.join(idle)}: the rate is not being shaped")
        line += f" of {_mbit(cluster.rate_bits)} asked for (within {SLOWEST:.0%} and {FASTEST:.0%})"
    trips = [link.round_trip_s * 1e6 for link in measured if link.source != CONTROLLER]
    line += f"; shortest round trip {min(trips):.0f} us"
    if cluster.delay_us is not None:
        line += f" with {cluster.delay_us} us asked for each way"
        if min(trips) < 2 * cluster.delay_us * 0.95:
            raise Failed(f"the delay does not act: {line}")
    yield line


def _measure(cluster: Cluster, source: str, target: str, size: int) -> Link:
    """The best of some tries; one is enough where it agrees with what was asked for, or nothing was."""
    asked, best = cluster.rate_bits, None
    for _ in range(TRIES):
        link = _probe(cluster, source, target, size)
        best = link if best is None or link.bits > best.bits else best
        if asked is None or best.bits >= SLOWEST * asked:
            break
    if asked is not None and not SLOWEST * asked <= best.bits <= FASTEST * asked:
        raise Failed(
            f"the link from {source} to {target} carries {_mbit(best.bits)} where {_mbit(asked)} was asked for "
            f"(accepted: {SLOWEST:.0%} to {FASTEST:.0%}); "
            + ("this machine reaches no more" if best.bits < asked else "it is not being shaped")
        )
    return best


def _probe(cluster: Cluster, source: str, target: str, size: int) -> Link:
    receiver = _inside(cluster, target, "receive", cluster.address(target))
    sender = None
    try:
        port = receiver.stdout.readline().strip()
        if not port:
            raise Failed(f"no receiver came up on {target}")
        sender = _inside(cluster, source, "send", cluster.address(target), port, str(size))
        try:
            sent, _ = sender.communicate(timeout=90)
            received, _ = receiver.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            raise Failed(f"{size} bytes from {source} to {target} were still under way after 90 s") from None
        if sender.returncode or receiver.returncode:
            said = (sent if sender.returncode else received).splitlines()[-1:]
            raise Failed(f"no TCP connection from {source} to {target}: {' '.join(said)}{_filtered()}")
    finally:
        for process in (receiver, sender):
            if process is not None:
                process.kill()
                process.wait()
                process.stdout.close()
    count, seconds = received.split()
    return Link(source, target, int(count) * 8 / float(seconds), float(sent))


def _inside(cluster: Cluster, host: str, *arguments: str) -> subprocess.Popen:
    space = f"--net=/run/netns/{names.namespace(cluster.name, host)}"
    probe = str(Path(__file__).with_name("probe.py"))
    return subprocess.Popen(
        ["nsenter", space, str(outside.python()), "-I", "-S", probe, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=commands.bare_environment(),
    )


def _job(cluster: Cluster, command: Sequence[str]) -> str:
    try:
        return commands.run(command, environment=_environment(cluster), timeout_s=daemons.PATIENCE_S)
    except Failed as error:
        logs = [cluster.path("log", f"{host}.log") for host in cluster.node_names[:2]]
        raise Failed(f"{error}{daemons.tail(cluster.path('log', 'slurmctld.log'), *logs, lines=3)}") from None


def _environment(cluster: Cluster) -> dict[str, str]:
    return outside.environment(cluster, os.environ) | {"OMP_NUM_THREADS": "1"}


def _filtered() -> str:
    """Firewalls of container engines often drop what crosses a bridge."""
    switch = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    filtered = switch.exists() and switch.read_text().strip() == "1"
    return " (this machine's packet filter sees bridged packets: does its FORWARD chain drop them?)" if filtered else ""


def _span(cluster: Cluster) -> str:
    nodes = cluster.node_names
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} to {nodes[-1]}"


def _mbit(bits: float) -> str:
    return f"{bits / 1e6:.0f} Mbit/s"
