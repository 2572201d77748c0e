"""What a cluster is doing, in lines."""

from __future__ import annotations

import os
from collections.abc import Iterator

from jobs.rehearsal import cluster as names
from jobs.rehearsal import commands, home, outside
from jobs.rehearsal.cluster import Cluster
from jobs.rehearsal.errors import Failed, NotUp


def lines(cluster: Cluster) -> Iterator[str]:
    """The lines of `status`. Raises :class:`NotUp` where the controller does not answer."""
    environment = outside.environment(cluster, os.environ)
    coming = " (still coming up)" if cluster.path(home.UP).exists() else ""
    yield f"cluster {cluster.name}{coming}: {cluster.nodes} nodes of {cluster.cores} cores and {cluster.gpus} GPUs"
    yield f"directory {cluster.directory}"
    shape = "not shaped" if cluster.rate_bits is None else f"{cluster.rate_bits / 1e6:g} Mbit/s"
    if cluster.delay_us is not None:
        shape += f", {cluster.delay_us} us each way"
    yield f"network {cluster.network} on bridge {names.bridge(cluster.name)}, each node's link {shape}"
    try:
        states = commands.run(["sinfo", "-h", "-N", "-o", "%N %T"], environment=environment, timeout_s=30)
        jobs = commands.run(["squeue", "-h", "-o", "%i %j %T %D %R"], environment=environment, timeout_s=30)
    except Failed as error:
        raise NotUp(f"{error}; take it down with: python -m jobs.rehearsal down --name {cluster.name}") from None
    for line in states.splitlines():
        node, state = line.split()
        yield (
            f"{node} {state}: {cluster.address(node)}, link {names.port(cluster.name, node)}, "
            f"namespace {names.namespace(cluster.name, node)}"
        )
    for line in jobs.splitlines() or ["none"]:
        yield f"job {line}"
