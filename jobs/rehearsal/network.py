"""The emulated network: a bridge, one namespace and one veth pair a host, and the rate of each node's link.

A node's link is shaped in both directions: what leaves the node at its own end, what enters it at the bridge's.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from jobs.rehearsal import cluster as names
from jobs.rehearsal import commands
from jobs.rehearsal.cluster import CONTROLLER, Cluster

RUN_NETNS = Path("/run/netns")


def make(cluster: Cluster) -> None:
    """Bridge, namespaces and links. Raises :class:`~jobs.rehearsal.errors.Failed` with what ip or tc said."""
    bridge = names.bridge(cluster.name)
    ip("link", "add", bridge, "type", "bridge")
    # Without an address of its own on the link IPv6 stays out of it.
    ip("link", "set", bridge, "addrgenmode", "none")
    prefix = cluster.network.partition("/")[2]
    ip("address", "add", f"{cluster.gateway}/{prefix}", "dev", bridge)
    ip("link", "set", bridge, "up")
    for host in cluster.hosts:
        space, port = names.namespace(cluster.name, host), names.port(cluster.name, host)
        ip("netns", "add", space)
        ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("link", "set", port, "addrgenmode", "none")
        ip("link", "set", port, "master", bridge, "up")
        ip("-n", space, "link", "set", "eth0", "addrgenmode", "none")
        ip("-n", space, "address", "add", f"{cluster.address(host)}/{prefix}", "dev", "eth0")
        ip("-n", space, "link", "set", "lo", "up")
        ip("-n", space, "link", "set", "eth0", "up")
        if host != CONTROLLER:
            for command in shaping(cluster, host):
                commands.run(command)


def shaping(cluster: Cluster, host: str) -> list[list[str]]:
    """The tc commands for a node's link; none where neither rate nor delay is asked for."""
    inner = ["tc", "-n", names.namespace(cluster.name, host), "qdisc", "add", "dev", "eth0"]
    outer = ["tc", "qdisc", "add", "dev", names.port(cluster.name, host)]
    made = []
    parent = ["root"]
    if cluster.delay_us is not None:
        made.append([*inner, "root", "handle", "1:", "netem", "delay", f"{cluster.delay_us}us", "limit", "100000"])
        parent = ["parent", "1:1"]
    if cluster.rate_bits is not None:
        made.append([*inner, *parent, *_bucket(cluster.rate_bits)])
        made.append([*outer, "root", *_bucket(cluster.rate_bits)])
    return made


def _bucket(rate_bits: int) -> list[str]:
    """A token bucket of a quarter of a millisecond: the largest that lets no small gradient through unshaped, and the
    smallest that still reaches the rate (at 1 Gbit/s, 4 KB reached 604 Mbit/s and 32 KB 952). The queue is long, since
    a lost packet would cost a time-out that no cluster network has."""
    burst = max(4096, rate_bits // 8 // 4000)
    limit = max(2**21, rate_bits // 8 // 20)
    return ["handle", "10:", "tbf", "rate", f"{rate_bits}bit", "burst", f"{burst}b", "limit", f"{limit}b"]


def overlimits(cluster: Cluster, host: str) -> int:
    """How often the bucket of what leaves a node was empty so far."""
    text = commands.run(["tc", "-n", names.namespace(cluster.name, host), "-s", "-j", "qdisc", "show", "dev", "eth0"])
    return sum(entry.get("overlimits", 0) for entry in json.loads(text) if entry.get("kind") == "tbf")


def unmake(name: str) -> bool:
    """Remove what :func:`make` made, however far it came; whether there was anything."""
    found = links(name) + namespaces(name)
    # Both ends of a pair go at once with either; with its namespace they would go some time later.
    for link in links(name):
        ip("link", "delete", link, check=False)
    for space in namespaces(name):
        ip("netns", "delete", space, check=False)
    _unmount_empty()
    return bool(found)


def links(name: str) -> list[str]:
    """The interfaces of this cluster, ports before the bridge."""
    return sorted((link for link in map(_plain, _interfaces()) if names.owns_link(name, link)), key=len, reverse=True)


def namespaces(name: str) -> list[str]:
    try:
        return sorted(entry for entry in os.listdir(RUN_NETNS) if names.owns_namespace(name, entry))  # noqa: PTH208
    except FileNotFoundError:
        return []


def taken() -> list[str]:
    """Every network that this machine's interfaces and routes hold."""
    routes = json.loads(commands.run(["ip", "-j", "-4", "route", "show", "table", "all"]) or "[]")
    return [route["dst"] for route in routes if route.get("dst", "default")[:1].isdigit()]


def ip(*words: str, check: bool = True) -> str:
    return commands.run(["ip", *words], check=check)


def _interfaces() -> list[str]:
    return [entry["ifname"] for entry in json.loads(ip("-j", "link", "show") or "[]")]


def _plain(link: str) -> str:
    return link.partition("@")[0]


def _unmount_empty() -> None:
    """`ip netns add` mounts its directory on itself; that goes too, unless a namespace is left (it is busy then)."""
    if any(line.split()[4] == str(RUN_NETNS) for line in Path("/proc/self/mountinfo").read_text().splitlines()):
        subprocess.run(["umount", str(RUN_NETNS)], stderr=subprocess.DEVNULL, check=False)
