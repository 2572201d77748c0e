"""Horovod: its DistributedOptimizer, or our schedules carried out by its process sets."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from hvdkan import timeline
from hvdkan.backends.base import Backend, Fused, Wrapped, sent_as
from hvdkan.backends.han import need_han, pin_han
from hvdkan.config import VARIABLE, Config
from hvdkan.engines import ENGINES
from hvdkan.kinds import ConfigError
from hvdkan.launcher import check_size
from mpi.schedules import Step, groups, two_level

#: Horovod's own hierarchies and what turns them on. No machine with several GPUs was at hand: untested.
VARIABLES_OF_NCCL = {"nccl": VARIABLE, "torus": "HOROVOD_TORUS_ALLREDUCE"}


_WATCHED_STEPS = 5


class Horovod(Backend):
    name = "horovod"

    def start(self) -> None:
        mca = pin_han(self.config)
        self._set_variables()
        super().start()
        # Gloo under MPI's control crashes in Horovod 0.28.1: whoever wants it gets Horovod's Gloo mode as a whole.
        if self._wants_gloo() and self.launcher.kind != "horovodrun":
            from hvdkan.backends.horovod_rendezvous import announce

            self._rendezvous = announce(self.world, self.node_labels)
        import horovod
        import horovod.torch as hvd

        self._hvd, self._version = hvd, horovod.__version__
        engine = self._engine()
        transport = self._transport(engine)
        evidence = {
            "mca": mca,
            "built": {name: bool(getattr(hvd, f"{name}_built")()) for name in ("mpi", "gloo", "nccl")},
            "cycle_time_ms": os.environ.get("HOROVOD_CYCLE_TIME", "default"),
            "fusion_bytes": os.environ.get("HOROVOD_FUSION_THRESHOLD", "default"),
        }
        if engine == "han":
            evidence |= need_han(self, transport)
        if engine == "process_sets" and self.config.fusion_mb is not None:
            raise ConfigError(
                "--fusion-mb has no meaning with --engine process_sets: all gradients are exchanged at once"
            )
        self._compression = getattr(hvd.Compression, self.config.compression)
        self.effective, self._plan = self.resolve(engine, transport, evidence)
        if engine == "han" and self.effective.allreduce == "flat":
            # What is left of it is MPI's own all-reduce without han, which is its flat twin.
            evidence["twin_of"] = engine
            self.effective = replace(self.effective, engine="builtin")
        self._start_horovod(engine)
        check_size(self.launcher, hvd.size(), "Horovod")
        self.observe()

    def _set_variables(self) -> None:
        """Horovod reads these when it starts; nothing else may flip what was asked for."""
        config = self.config
        if config.allreduce == "stock":
            os.environ.pop(VARIABLE, None)  # a flag beats the variable
        else:
            # Only the engine chosen below decides; NCCL's hierarchy sets the variable again.
            os.environ.update({VARIABLE: "0", "HOROVOD_AUTOTUNE": "0"})
            os.environ.pop("HOROVOD_TORUS_ALLREDUCE", None)
        # Under horovodrun Horovod itself carries the ranks' world, and would end without a word: refused once it is up.
        if config.transport != "auto" and not (config.transport == "mpi" and not self._has_mpi()):
            os.environ["HOROVOD_CPU_OPERATIONS"] = config.transport
        if config.fusion_mb is not None:
            os.environ["HOROVOD_FUSION_THRESHOLD"] = str(int(config.fusion_mb * 2**20))
        if config.cycle_time_ms is not None:
            os.environ["HOROVOD_CYCLE_TIME"] = f"{config.cycle_time_ms:g}"
        # A rank that waits for another in vain ends the job instead of hanging.
        os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(max(1, int(config.timeout_s / 2))))
        os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(max(2, int(config.timeout_s))))

    def _engine(self) -> str:
        on_gpu = self.device.type == "cuda" and self._hvd.nccl_built()
        asked = self.config.engine
        why = None
        if asked in VARIABLES_OF_NCCL:
            if not on_gpu:
                why = "this Horovod ignores it without NCCL and GPUs"
            elif self.config.simulate_nodes:
                why = "it acts on real nodes only"
            elif asked == "torus" and not has_torus(self._version):
                why = f"Horovod {self._version} has none (0.28 has)"
        if why is not None:
            others = (name for name in ENGINES["horovod"][self.config.allreduce] if name not in VARIABLES_OF_NCCL)
            raise ConfigError(f"--engine is '{asked}', but {why}; it must be one of {', '.join(others)}")
        if asked == "auto" and self.config.allreduce != "stock" and on_gpu and not self.config.simulate_nodes:
            return "nccl"
        return self.engine()

    def _transport(self, engine: str) -> str:
        if self.device.type == "cuda" and self._hvd.nccl_built():
            return "nccl"
        return "gloo" if self._wants_gloo() else "mpi"

    def _wants_gloo(self) -> bool:
        has_mpi = self._has_mpi()
        if self.config.transport == "mpi" and not has_mpi:
            raise ConfigError(f"--transport is 'mpi', but {self.launcher.kind} offers no MPI; it must be auto or gloo")
        return not has_mpi or os.environ.get("HOROVOD_CPU_OPERATIONS", "").lower() == "gloo"

    def _has_mpi(self) -> bool:
        return self.launcher.has_mpi or self.launcher.size == 1

    def _start_horovod(self, engine: str) -> None:
        hvd = self._hvd
        if engine in VARIABLES_OF_NCCL:
            os.environ[VARIABLES_OF_NCCL[engine]] = "1" if self.effective.allreduce == "hierarchical" else "0"
        if hvd.is_initialized():  # by the world of horovodrun, before what is wanted was known
            hvd.shutdown()
        if engine != "process_sets":
            hvd.init()
            return
        everyone = tuple(range(self.world.size))
        wanted = [group for group in groups(self._plan) if group != everyone]
        sets = [hvd.ProcessSet(list(group)) for group in wanted]
        hvd.init(process_sets=sets)
        self._set_of = {everyone: hvd.global_process_set, **dict(zip(wanted, sets, strict=True))}

    def stop(self) -> None:
        # Together: a rank that leaves Gloo while another is still busy can make that one abort.
        self.world.barrier()
        self._hvd.shutdown()
        super().stop()

    def broadcast(self, model, optimizer) -> None:
        self._hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        # As an object: Horovod's broadcast_optimizer_state makes a step to create what is missing, and Adam counts it.
        optimizer.load_state_dict(self._hvd.broadcast_object(optimizer.state_dict(), root_rank=0))

    def wrap(self, model, optimizer) -> Wrapped:
        if self.effective.engine == "process_sets":
            return AtOnce(model, optimizer, self.average_, self.config.compression)
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        distributed = self._hvd.DistributedOptimizer(
            optimizer,
            named_parameters=named,
            compression=self._compression,
            # With a pass to come its hooks exchange nothing: synchronize() then starts and ends all exchanges.
            backward_passes_per_step=1 if self.config.overlap else 2,
        )
        return Distributed(model, distributed, self.config)

    def watched(self, step) -> dict[str, Any]:
        # The same on all ranks, as they have agreed.
        if os.environ.get(timeline.VARIABLE) != timeline.ON_DEMAND:
            return {}

        def steps() -> None:
            self.world.barrier()
            for _ in range(_WATCHED_STEPS):
                step()

        if self.world.rank != 0:
            steps()
            return {}
        try:
            return {"timeline": timeline.split(timeline.recorded(self._hvd, steps))}
        except (OSError, ValueError) as error:
            # Evidence on top: a run that has been trained is not lost for it.
            return {"timeline": None, "timeline_error": str(error)}

    def average_(self, buffer: torch.Tensor) -> None:
        sent, context = self._compression.compress(buffer)
        if self.effective.engine == "process_sets":
            shard = sent
            for step in two_level(self._plan, sent.numel(), self.world.rank):
                shard = self._run(step, sent, shard)
            torch.div(shard, self.world.size, out=buffer)
            return
        self.traced("allreduce", self.world.size, buffer.numel())
        self._hvd.allreduce_(sent, op=self._hvd.Average, name="hvdkan.average")
        if sent is not buffer:
            buffer.copy_(self._compression.decompress(sent, context))

    def _run(self, step: Step, buffer: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
        hvd, members = self._hvd, self._set_of[step.group]
        # The same name on all members, some of whom make fewer steps: Horovod waits until all have named a tensor.
        name = f"hvdkan.{step.operation}"
        self.traced(self._call(step), len(step.group), sum(step.counts))
        if step.operation == "allreduce":
            return hvd.allreduce_(shard, op=hvd.Sum, name=name, process_set=members)
        if step.operation == "allgather":
            return hvd.allgather(shard, name=name, process_set=members)
        place = step.group.index(self.world.rank)
        if self._call(step) == "reducescatter":
            # Horovod splits as mpi.schedules.split does: parts that differ by one at most, larger ones first.
            return hvd.reducescatter(buffer, op=hvd.Sum, name=name, process_set=members)
        # Horovod cannot leave a rank without a part: on unequal nodes sum all of it and keep one's own.
        total = hvd.allreduce(buffer, op=hvd.Sum, name=name, process_set=members)
        return total[step.starts[place] : step.starts[place] + step.counts[place]].contiguous()

    @staticmethod
    def _call(step: Step) -> str:
        """Horovod's operation for a step."""
        whole = step.operation == "reduce_scatter" and min(step.counts) == 0
        return "allreduce" if whole else step.operation.replace("_", "")


def has_torus(version: str) -> bool:
    """Whether this version of Horovod, such as 0.28.1, has a torus all-reduce."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= (0, 28)


class AtOnce(Fused):
    """All gradients in one buffer, sent in the type that the compression makes of them."""

    def __init__(self, model, optimizer, average_, compression: str):
        super().__init__(model, optimizer, average_)
        self._compression = compression

    def evidence(self):
        sent = torch.float16 if self._compression == "fp16" else self.buffer.dtype
        size = self.buffer.numel() * sent.itemsize
        return super().evidence() | {"bytes": [size], **sent_as(sent, self._compression)}


class Distributed(Wrapped):
    """hvd.DistributedOptimizer: gradients are exchanged during backward and awaited before the step."""

    def __init__(self, model, optimizer, config: Config):
        super().__init__(model, optimizer)
        self._config, self._passes = config, optimizer.backward_passes_per_step
        self._started_in_backward = 0

    def evidence(self):
        """Which gradients go together is Horovod's choice at run time, by when they are ready: no count of buckets."""
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        sent = torch.float16 if self._config.compression == "fp16" else trained[0].dtype
        return {
            "tensors": len(trained),
            "bytes": [sum(parameter.numel() for parameter in trained) * sent.itemsize],
            "overlap": self._started_in_backward > 0,
            "started_in_backward": self._started_in_backward,
            **sent_as(sent, self._config.compression),
        }

    def exchange(self) -> None:
        self._started_in_backward = sum(handle is not None for handle, _ in self.optimizer._handles.values())
        self.optimizer.synchronize()

    def step(self) -> None:
        with self.optimizer.skip_synchronize():
            self.optimizer.step()

    @contextmanager
    def paused(self):
        """Steps inside accumulate without end, as Horovod calls it: its hooks run and exchange nothing."""
        self.optimizer.set_backward_passes_per_step(2**30)
        self.exchange = self.optimizer._handles.clear
        try:
            yield
        finally:
            del self.exchange
            self.optimizer.set_backward_passes_per_step(self._passes)
