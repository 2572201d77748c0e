"""torch DistributedDataParallel, stock or with a communication hook that runs our schedules."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from hvdkan.backends.base import Backend, Wrapped
from mpi.schedules import Step, groups, two_level
from mpi.topology import Topology

PINNED = {"forward_sync_buffers": False, "gradient_as_bucket_view": True}


class DDP(Backend):
    name = "ddp"

    def start(self) -> None:
        super().start()
        transport = "nccl" if self.device.type == "cuda" else "gloo"
        self._rendezvous(transport)
        engine = self.engine()
        self.effective, topology = self.resolve(engine, transport, {"ddp": dict(self._settings())})
        self._exchange = Exchange(topology, transport, self.traced) if engine == "hook" else None
        self.observe()

    def _rendezvous(self, transport: str) -> None:
        """Meet at a host and a free port that rank 0 names, through whatever world the launcher offers."""
        timeout = timedelta(seconds=self.config.timeout_s)
        if dist.is_initialized():  # torchrun's world
            if transport == "gloo":
                return
            dist.destroy_process_group()
            dist.init_process_group(transport, timeout=timeout)
            return
        one_host = len(set(self.node_labels)) == 1
        host = "127.0.0.1" if one_host else socket.gethostname()
        store = port = None
        if self.world.rank == 0:
            # Port 0: the system names one that is free, so that a busy port cannot be met.
            store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timeout)
            port = store.port
        host, port = self.world.broadcast((host, port))
        if store is None:
            store = dist.TCPStore(host, port, is_master=False, timeout=timeout)
        dist.init_process_group(
            transport, store=store, rank=self.world.rank, world_size=self.world.size, timeout=timeout
        )

    def stop(self) -> None:
        # A process that ends without this can abort.
        if dist.is_initialized():
            self.world.barrier()
            dist.destroy_process_group()
        super().stop()

    def wrap(self, model, optimizer) -> Wrapped:
        devices = [self.device.index] if self.device.type == "cuda" else None
        replicated = torch.nn.parallel.DistributedDataParallel(model, device_ids=devices, **self._settings())
        if self._exchange is not None:
            replicated.register_comm_hook(None, self._hook)
        return Replicated(replicated, optimizer)

    def _settings(self) -> dict[str, bool]:
        """What is pinned of DDP; nothing of stock."""
        return {} if self.config.allreduce == "stock" else PINNED

    @contextmanager
    def without_exchange(self, wrapped):
        with wrapped.model.no_sync():
            yield

    def _hook(self, _, bucket):  # torch wants no annotations here, or evaluated ones
        self.average_(bucket.buffer())
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    def average_(self, buffer: torch.Tensor) -> None:
        if self._exchange is not None:
            self._exchange(buffer)
        else:
            self.traced("all_reduce", self.world.size, buffer.numel())
            dist.all_reduce(buffer)
        buffer /= self.world.size


class Replicated(Wrapped):
    """A DDP model: gradients are exchanged during backward. ``model`` is what to call; no exchange of its own."""


class Exchange:
    """Sums a flat buffer by :func:`mpi.schedules.two_level` over torch process groups, in place."""

    def __init__(self, topology: Topology, transport: str, traced: Callable[[str, int, int], None]):
        self._topology, self._rank, self._transport, self._traced = topology, dist.get_rank(), transport, traced
        # Every rank makes every group, in the same order: torch asks for that.
        self._of_group = {group: dist.new_group(list(group)) for group in groups(topology)}
        # torch's collectives want equal parts. A hierarchy and its flat twin pad alike, so that both copy or neither.
        self._unit = math.lcm(topology.size, min(len(node) for node in topology.members))

    def __call__(self, buffer: torch.Tensor) -> None:
        short = -buffer.numel() % self._unit
        padded = torch.cat([buffer, buffer.new_zeros(short)]) if short else buffer
        for step in two_level(self._topology, padded.numel(), self._rank):
            self._run(step, padded)
        if short:
            buffer.copy_(padded[: buffer.numel()])

    def _run(self, step: Step, buffer: torch.Tensor) -> None:
        members = self._of_group[step.group]
        place = step.group.index(self._rank)
        if step.operation == "allreduce":
            own = buffer[step.starts[0] : step.starts[0] + step.counts[0]]
            self._traced("all_reduce", len(step.group), own.numel())
            dist.all_reduce(own, group=members)
            return
        if min(step.counts) == 0:
            self._run_uneven(step, buffer, members)
            return
        own = buffer[step.starts[place] : step.starts[place] + step.counts[place]]
        if step.operation == "allgather":
            self._traced("all_gather", len(step.group), buffer.numel())
            dist.all_gather_single(buffer, own.clone(), group=members)
        elif self._transport == "nccl":
            self._traced("reduce_scatter", len(step.group), buffer.numel())
            total = torch.empty_like(own)
            dist.reduce_scatter_single(total, buffer, group=members)
            own.copy_(total)
        else:
            # Gloo's own reduce_scatter is an all-reduce underneath, twice the bytes; this moves no more than it must.
            self._traced("all_to_all and sum", len(step.group), buffer.numel())
            parts = torch.empty_like(buffer)
            dist.all_to_all_single(parts, buffer, group=members)
            own.copy_(parts.view(len(step.group), -1).sum(0))

    def _run_uneven(self, step: Step, buffer: torch.Tensor, members: dist.ProcessGroup) -> None:
        """A node with more workers than there are shards: some of them keep none."""
        if step.operation == "reduce_scatter":
            self._traced("all_reduce", len(step.group), buffer.numel())
            dist.all_reduce(buffer, group=members)
            return
        for owner, start, count in zip(step.group, step.starts, step.counts, strict=True):
            if count > 0:
                self._traced("broadcast", len(step.group), count)
                dist.broadcast(buffer[start : start + count], src=owner, group=members)
