"""Horovod's Gloo mode without horovodrun: what that would have told the ranks, told by the ranks themselves."""

from __future__ import annotations

import os
import socket

from hvdkan.backends.world import World
from mpi.topology import Topology


def announce(world: World, node_labels: list[str]) -> object:
    """Start Horovod's rendezvous server on rank 0 and set the variables that its Gloo mode reads.

    Returns the server, which must live as long as Horovod, or None on other ranks.
    """
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousServer

    hosts = Topology.from_labels(node_labels)
    names = [label.split(" ")[0] for label in node_labels]
    slots = [
        SlotInfo(
            hostname=names[rank],
            rank=rank,
            local_rank=hosts.local_rank(rank),
            cross_rank=hosts.cross_rank(rank),
            size=world.size,
            local_size=hosts.local_size(rank),
            cross_size=hosts.cross_size(rank),
        )
        for rank in range(world.size)
    ]
    server, port = None, 0
    if world.rank == 0:
        server = RendezvousServer(0)
        port = server.start()
        server.init(slots)
    address = socket.gethostname() if len(hosts.members) > 1 else "127.0.0.1"
    address, port = world.broadcast((address, port))
    slot = slots[world.rank]
    os.environ.update(
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        HOROVOD_GLOO_RENDEZVOUS_ADDR=address,
        HOROVOD_GLOO_RENDEZVOUS_PORT=str(port),
        HOROVOD_HOSTNAME=slot.hostname,
        HOROVOD_RANK=str(slot.rank),
        HOROVOD_SIZE=str(slot.size),
        HOROVOD_LOCAL_RANK=str(slot.local_rank),
        HOROVOD_LOCAL_SIZE=str(slot.local_size),
        HOROVOD_CROSS_RANK=str(slot.cross_rank),
        HOROVOD_CROSS_SIZE=str(slot.cross_size),
    )
    if len(hosts.members) == 1:
        os.environ.setdefault("HOROVOD_GLOO_IFACE", "lo")
    return server
