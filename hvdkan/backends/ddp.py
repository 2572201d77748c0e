"""torch DistributedDataParallel, stock or with a communication hook that runs our schedules."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from hvdkan.backends.base import Backend, Wrapped, sent_as
from hvdkan.backends.han import pin_han
from hvdkan.backends.over_mpi import OverMpi, open_over_mpi
from hvdkan.engines import runs_ours
from hvdkan.kinds import ConfigError
from mpi.schedules import Step, groups, two_level
from mpi.topology import Topology

PINNED = {"forward_sync_buffers": False, "gradient_as_bucket_view": True}
#: MiB that no gradient fills: DDP then makes one bucket, which is complete when backward has ended.
EVERYTHING_MIB = 2**20


class DDP(Backend):
    name = "ddp"
    _exchange: Exchange | None = None
    _over_mpi: OverMpi | None = None

    def start(self) -> None:
        mca = pin_han(self.config) if runs_ours(self.config) else {}
        super().start()
        if runs_ours(self.config) and self.launcher.kind in ("torchrun", "horovodrun"):
            kind = self.launcher.kind
            raise ConfigError(f"--transport is 'mpi', but {kind} offers no MPI; it must be auto or gloo")
        if self.config.transport == "gloo" and self.device.type == "cuda":
            raise ConfigError("--transport is 'gloo', but --backend ddp uses NCCL on GPUs; it must be auto or mpi")
        transport = "nccl" if self.device.type == "cuda" else "gloo"
        self._rendezvous(transport)
        settings = {"ddp": self._settings()}
        if runs_ours(self.config):
            self.effective, self._over_mpi = open_over_mpi(self, mca)
            self.effective.evidence.update(settings)
        else:
            engine = self.engine()
            self.effective, topology = self.resolve(engine, transport, settings)
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
        if self._over_mpi is not None:
            self._over_mpi.close()
        # A process that ends without this can abort.
        if dist.is_initialized():
            self.world.barrier()
            dist.destroy_process_group()
        super().stop()

    def wrap(self, model, optimizer) -> Wrapped:
        devices = [self.device.index] if self.device.type == "cuda" else None
        replicated = torch.nn.parallel.DistributedDataParallel(model, device_ids=devices, **self._settings())
        if self._over_mpi is not None:
            replicated.register_comm_hook(None, Following(self._over_mpi.start).hook)
        elif self._exchange is not None:
            replicated.register_comm_hook(None, self._hook)
        elif self.config.compression == "fp16":
            replicated.register_comm_hook(None, fp16_compress_hook)
        # The hook over torch waits for each bucket before backward goes on.
        return Replicated(replicated, optimizer, self.config.compression, waits=self._exchange is not None)

    def _settings(self) -> dict[str, Any]:
        """What is pinned of DDP, nothing of stock, and what was asked for."""
        settings: dict[str, Any] = {} if self.config.allreduce == "stock" else dict(PINNED)
        if not self.config.overlap:
            settings["bucket_cap_mb"] = EVERYTHING_MIB
        elif self.config.fusion_mb is not None:
            settings["bucket_cap_mb"] = self.config.fusion_mb
        return settings

    def _hook(self, _, bucket):  # torch wants no annotations here, or evaluated ones
        self.average_(bucket.buffer())
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    def average_(self, buffer: torch.Tensor) -> None:
        if self._over_mpi is not None:
            self._over_mpi.average_(buffer, observed=self.trace is not None)
            return
        # As torch's own compression: divided before it is summed, so that sums do not overflow.
        sent = buffer.half().div_(self.world.size) if self.config.compression == "fp16" else buffer
        if self._exchange is not None:
            self._exchange(sent)
        else:
            self.traced("all_reduce", self.world.size, buffer.numel())
            dist.all_reduce(sent)
        if sent is buffer:
            buffer /= self.world.size
        else:
            buffer.copy_(sent)


class Following:
    """A hook that starts each bucket's exchange as DDP offers it, in its order, and ends all of them with the last."""

    def __init__(self, start: Callable[[torch.Tensor], Any]):
        self._start = start
        self._under_way: list = []

    def hook(self, _, bucket):
        buffer, done = bucket.buffer(), torch.futures.Future()
        self._under_way.append((self._start(buffer), buffer, done))
        any(not started.test() for started, _, _ in self._under_way)
        if bucket.is_last():
            for started, whole, future in self._under_way:
                started.wait()
                future.set_result(whole)
            self._under_way.clear()
        return done


class Replicated(Wrapped):
    """A DDP model: gradients are exchanged during backward. ``model`` is what to call; no exchange of its own."""

    def __init__(self, model, optimizer, compression: str, waits: bool):
        super().__init__(model, optimizer)
        self._compression, self._waits = compression, waits

    @contextmanager
    def paused(self):
        with self.model.no_sync():
            yield

    @property
    def whole(self) -> bool:
        return self._waits and len(self._buckets()) == 1

    def evidence(self) -> dict[str, Any]:
        buckets = self._buckets()
        width = 2 if self._compression == "fp16" else buckets[0].element_size()
        dtype = torch.float16 if self._compression == "fp16" else buckets[0].dtype
        return {
            "buckets": len(buckets),
            "bytes": [bucket.numel() * width for bucket in buckets],
            "overlap": len(buckets) > 1 and not self._waits,
            **sent_as(dtype, self._compression),
        }

    def _buckets(self) -> list[torch.Tensor]:
        """As DDP has them now: it makes them anew after the first step, in the order in which gradients came."""
        return [bucket.buffer() for bucket in self.model.reducer._get_zeros_like_grad_buckets()]


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
