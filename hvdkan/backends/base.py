"""What every back end offers to the training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from hvdkan.agreement import agree
from hvdkan.backends.world import World, open_world
from hvdkan.config import Config
from hvdkan.engines import engines
from hvdkan.kinds import ConfigError
from hvdkan.launcher import Launcher
from mpi.topology import Topology, node_label


@dataclass(frozen=True)
class Effective:
    """What really carries the exchange out; ``reason`` says why it is not what was asked for."""

    allreduce: str
    engine: str
    transport: str
    reason: str | None = None
    evidence: dict[str, Any] = field(default_factory=dict)


class Wrapped:
    """A model and its optimiser as a back end trains them. The base class exchanges nothing."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer):
        self.model, self.optimizer = model, optimizer

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def exchange(self) -> None:
        """Average the gradients over the ranks, where that does not happen during backward."""

    def step(self) -> None:
        self.optimizer.step()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Steps inside exchange nothing; ranks diverge, so use a scratch copy."""
        exchange, self.exchange = self.exchange, lambda: None
        try:
            yield
        finally:
            self.exchange = exchange

    #: Whether all gradients are averaged by one call that is also the back end's `average_`.
    whole = False

    def evidence(self) -> dict[str, Any]:
        """How gradients were exchanged: buckets and their bytes as sent, whether during backward, and the type sent."""
        return {}


class Fused(Wrapped):
    """Gradients that live in one buffer, averaged by one call after backward."""

    def __init__(self, model, optimizer, average_):
        super().__init__(model, optimizer)
        self._average_ = average_
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.buffer = torch.zeros(
            sum(parameter.numel() for parameter in self.parameters),
            dtype=self.parameters[0].dtype,
            device=self.parameters[0].device,
        )
        parts = self.buffer.split([parameter.numel() for parameter in self.parameters])
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    whole = True

    def evidence(self) -> dict[str, Any]:
        size = self.buffer.numel() * self.buffer.element_size()
        return {"buckets": 1, "bytes": [size], "overlap": False, **sent_as(self.buffer.dtype)}

    def zero_grad(self) -> None:
        # The views stay: backward adds into them, so that nothing is copied before or after the exchange.
        self.buffer.zero_()

    def exchange(self) -> None:
        self._average_(self.buffer)


def sent_as(dtype: torch.dtype, compression: str = "none") -> dict[str, str]:
    """The part of the evidence that names the element type on the wire."""
    return {"compression": compression, "wire_dtype": str(dtype).removeprefix("torch.")}


class Backend:
    """A started back end knows ``world``, ``topology`` (real or simulated), ``effective`` and ``device``."""

    name = ""

    def __init__(self, config: Config, launcher: Launcher):
        self.config, self.launcher = config, launcher
        self.world: World = World()
        self.topology = Topology((0,))
        self.node_labels: list[str] = []
        self.device = torch.device("cpu")
        self.effective = Effective("none", "none", "none")
        self.trace: list[str] | None = None

    # --- life ---

    def start(self) -> None:
        """Bring the ranks up. Raises LaunchError or ConfigError, the same one on all ranks.

        Nothing that ranks may do differently, or refuse, comes before :func:`agree`.
        """
        self.world = open_world(self.launcher, self.config.timeout_s)
        try:
            agree(self.world, self.config)
        except ConfigError:
            # A rank that refused takes no part in anything more.
            self.world.close()
            self.world = World()
            raise
        self._find_topology()
        self._choose_device()

    def stop(self) -> None:
        self.world.close()

    def _find_topology(self) -> None:
        self.node_labels = self.world.allgather(node_label())
        if self.config.simulate_nodes is None:
            self.topology = Topology.from_labels(self.node_labels)
        else:
            self.topology = Topology.simulated(self.config.simulate_nodes, self.world.size)

    def _choose_device(self) -> None:
        """A GPU of one's own, or the CPU. Raises ConfigError where two ranks would share a GPU."""
        wanted, count = self.config.device, torch.cuda.device_count()
        use_gpu = self.agree(count > 0 if wanted == "auto" else wanted == "cuda")
        if not use_gpu:
            return
        if not self.agree(count > 0):
            raise ConfigError("--device cuda: torch sees no GPU on some rank; it must be cpu there, or auto")
        host = Topology.from_labels(self.node_labels)
        index = device_index(host, self.world.rank, count)
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        seen: dict[tuple[str, str], int] = {}
        mine = (self.node_labels[self.world.rank], str(torch.cuda.get_device_properties(index).uuid))
        for rank, gpu in enumerate(self.world.allgather(mine)):
            if gpu in seen:
                raise ConfigError(
                    f"ranks {seen[gpu]} and {rank} share one GPU of {gpu[0].split()[0]}: "
                    f"{host.local_size(rank)} ranks on a node that shows {count} GPUs"
                )
            seen[gpu] = rank

    def agree(self, mine: bool) -> bool:
        """Whether it is so on all ranks."""
        return all(self.world.allgather(mine))

    # --- what runs ---

    def resolve(self, engine: str, transport: str, evidence: dict[str, Any]) -> tuple[Effective, Topology]:
        """What becomes effective of what was asked, and the topology that a schedule of ours then runs on.

        A flat twin is the hierarchical algorithm on one node that holds all ranks: the same calls on the same buffer.
        """
        asked = self.config.allreduce
        reason = self.topology.degenerate if asked == "hierarchical" else None
        allreduce = "flat" if reason else asked
        topology = self.topology if allreduce == "hierarchical" else self.topology.as_one_node()
        return Effective(allreduce, engine, transport, reason, evidence), topology

    def engine(self) -> str:
        """The engine asked for; `auto` is the first of the list, `builtin` with a stock all-reduce."""
        if self.config.allreduce == "stock":
            return "builtin"
        if self.config.engine != "auto":
            return self.config.engine
        return engines(self.config)[0]

    def observe(self) -> None:
        """One small exchange before training, untimed: its calls are evidence, its result is checked.

        Exactly, but for compression: there each element counts some of the ranks, so that no sum of float16 overflows.
        Raises RuntimeError where the mean is wrong. Collective.
        """
        size = self.world.size
        exact = self.config.compression == "none"
        buffer = torch.full((64,), self.world.rank + 1.0, device=self.device)
        mean = torch.full_like(buffer, (size + 1) / 2)
        if not exact:
            places = torch.arange(64, device=self.device)
            buffer = (places == self.world.rank % 64).to(buffer.dtype)
            mean = ((size - 1 - places).div(64, rounding_mode="floor") + 1) / size
        self.trace = []
        self.average_(buffer)
        calls, self.trace = self.trace, None
        # float16 has 11 bits, and what is sent was rounded more than once.
        if not torch.allclose(buffer, mean, rtol=0 if exact else 2**-8, atol=0):
            what = f"1 to {size}" if exact else f"1 and {size - 1} zeros"
            raise RuntimeError(f"the exchange is wrong: the mean of {what} came out as {buffer[0].item()}")
        self.effective.evidence["calls"] = calls

    def traced(self, call: str, members: int, elements: int) -> None:
        """Note a call that is being made, while :meth:`observe` watches."""
        if self.trace is not None:
            self.trace.append(f"{call} over {members}: {elements}")

    # --- training ---

    def broadcast(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Give all ranks the parameters, buffers and optimiser state of rank 0."""
        state = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
        model.load_state_dict(self.world.broadcast(state))
        optimizer.load_state_dict(self.world.broadcast(optimizer.state_dict()))

    def wrap(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Wrapped:
        """A model of any kind, ready to train with this back end's exchange."""
        return Wrapped(model, optimizer)

    def watched(self, step: Callable[[], object]) -> dict[str, Any]:
        """Evidence of what a few steps do, made for this and not timed. Collective."""
        return {}

    def average_(self, buffer: torch.Tensor) -> None:
        """Average a flat buffer over the ranks, in place, by the call that training uses."""


def device_index(hosts: Topology, rank: int, visible: int) -> int:
    """The GPU of ``rank`` among the ``visible`` ones: its place on its host, whatever its world rank.

    A launcher that shows each rank one GPU of its own numbers it 0 for all of them.
    """
    return hosts.local_rank(rank) % visible


def check_used(model: torch.nn.Module, sample: torch.Tensor) -> None:
    """Refuse by name parameters that are trainable but get no gradient: DDP would leave its ranks unequal."""
    model(sample).sum().backward()
    unused = [
        name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None
    ]
    model.zero_grad()
    if unused:
        raise ConfigError(f"trainable but unused: {', '.join(unused)}; freeze them (requires_grad = False) or use them")
