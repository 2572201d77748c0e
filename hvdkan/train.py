"""Train a Kolmogorov-Arnold network on one process or many.

    python -m hvdkan.train
    mpirun -n 4 python -m hvdkan.train --allreduce hierarchical --simulate-nodes 2,2
    srun -N4 --gpus-per-node=2 python -m hvdkan.train
    torchrun --nproc-per-node 4 -m hvdkan.train --backend ddp

HOROVOD_HIERARCHICAL_ALLREDUCE set to 1 or 0 asks for a hierarchical or a flat all-reduce; --allreduce beats it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from hvdkan import checkpoint, nccl_log, nested, provenance, record, results, signals
from hvdkan.agreement import agree_on_data, refuse_together
from hvdkan.backends import make_backend
from hvdkan.backends.base import Backend, Wrapped, check_used
from hvdkan.backends.world import World, abort
from hvdkan.clock import Clock
from hvdkan.config import Config, from_command_line
from hvdkan.engines import engines
from hvdkan.failure import end_job
from hvdkan.files import why_unwritable
from hvdkan.kinds import ConfigError, first_line
from hvdkan.launcher import Launcher, LaunchError, detect, job_of
from hvdkan.models import parameter_digest
from hvdkan.probe import Probe, probe
from hvdkan.progress import Progress, closing_summary
from hvdkan.results import Measured
from hvdkan.streams import outlive_readers
from hvdkan.tasks import FORMULAS, Data, DataError, global_batches, make_data, share
from hvdkan.watchdog import Watchdog
from mpi.topology import Topology, TopologyError

#: What a back end may lack.
LIBRARIES = ("horovod", "mpi4py", "torch.distributed")
UsageError = (ConfigError, DataError, LaunchError, TopologyError)


def train(
    config: Config, launcher: Launcher, backend: Backend, watchdog: Watchdog, run_id: str, commit: str | None
) -> dict | None:
    """Run ``config`` on a started back end; the record on rank 0, None elsewhere."""
    started, load_before = results.now(), provenance.load()
    world, clock = backend.world, Clock(backend.device)
    watchdog.beat("the data")
    config, data = agreed_data(config, world)
    batch = config.global_batch(world.size)
    cores = world.allgather(provenance.my_cores())
    threads = config.threads or provenance.threads_for(world.rank, Topology.from_labels(backend.node_labels), cores)
    torch.set_num_threads(threads)

    dtype = getattr(torch, config.dtype)
    inputs, targets = (torch.from_numpy(part).to(backend.device, dtype) for part in (data.inputs, data.targets))
    model = checkpoint.model_for(config, inputs.shape[1]).to(backend.device)
    check_used(model, inputs[:1])
    wrapped = backend.wrap(model, make_optimizer(model, config))
    backend.broadcast(model, wrapped.optimizer)

    measured = Measured()
    steps = config.epochs * math.ceil(config.samples / batch)
    warmup = min(config.warmup_steps, steps - 1)
    progress = Progress(steps, shown=world.rank == 0)
    number = 0
    world.barrier()
    origin = start = clock.now()
    for epoch in range(config.epochs):
        squared_error, samples = 0.0, 0
        for indices in global_batches(config.samples, batch, config.seed, epoch):
            watchdog.beat(f"step {number + 1} of {steps}")
            start = clock.now()
            mine = share(indices, world.rank, world.size)
            loss = train_step(wrapped, inputs, targets, mine, len(indices), world.size)
            value = loss.item() * len(indices) / world.size
            end = clock.now()
            if not math.isfinite(value):
                raise FloatingPointError(f"the loss is {value} at step {number + 1} (epoch {epoch + 1})")
            if number >= warmup:
                measured.step_s.append(end - start)
                measured.window_samples += len(mine)
                first = measured.window[0] if number > warmup else start - origin
                measured.window = (first, end - origin)
            squared_error, samples, number = squared_error + value, samples + len(mine), number + 1
            progress.step(value / max(1, len(mine)))
        measured.squared_error.append(squared_error)
        measured.samples.append(samples)
    progress.close()

    watchdog.beat("the test set")
    measured.test = evaluate(model, data, backend, dtype)
    measured.peak_memory_bytes = clock.peak_memory()
    if len(set(world.allgather(parameter_digest(model)))) > 1:
        raise RuntimeError("the ranks' parameters differ after training: the exchange did not do its work")
    if config.save is not None and world.rank == 0:
        checkpoint.save(Path(config.save), model, config, data.scaling)
    if config.probe_steps > 0 and world.size > 1:
        measured.probe = probe_exchange(config, model, backend, (inputs, targets), batch, clock, watchdog)

    watchdog.beat("the ranks' results")
    measured.place = provenance.place(backend, cores[world.rank], threads)
    backend.effective.evidence["exchange"] = wrapped.evidence()
    if said := nccl_log.own():
        backend.effective.evidence["nccl"] = said
    gathered = world.allgather(measured)
    if world.rank != 0:
        return None
    found = results.summary(gathered)
    return {
        **results.header(config, run_id, "ok"),
        **found,
        "test_rmse": math.sqrt(found["test_loss"]) * data.scaling.target_scale,
        "data": data.description(),
        **provenance.placement(backend, [one.place for one in gathered]),
        "started_at": started,
        "finished_at": results.now(),
        "wall_s": clock.now() - origin,
        "launcher": launcher.kind,
        "optimizer": "Adam fused",
        "effective": vars(backend.effective),
        "exchange_of": exchange_of(wrapped, backend.effective.evidence["exchange"]),
        "steps": steps,
        "warmup_steps": warmup,
        "global_batch": batch,
        "batch_per_rank": math.ceil(batch / world.size),
        "parameters": model.parameter_counts(),
        "grad_bytes": grad_bytes(model, config.compression),
        "environment": provenance.environment(threads, commit, load_before),
    }


def read_data(config: Config) -> tuple[Config, Data]:
    """The data of a config, and the config with the numbers of samples that they have. Raises DataError."""
    data = make_data(
        config.task,
        config.samples,
        config.test_samples,
        config.noise,
        config.seed,
        config.data,
        config.target,
        config.inputs,
    )
    return replace(config, samples=len(data.inputs), test_samples=len(data.test_inputs)), data


def agreed_data(config: Config, world: World) -> tuple[Config, Data]:
    """:func:`read_data`, the same on all ranks. Collective; raises ConfigError, also where ranks differ."""
    if config.task in FORMULAS:
        return read_data(config)
    refusal = data = None
    try:
        config, data = read_data(config)
    except (ConfigError, DataError) as error:
        # Perhaps of this rank's file alone.
        refusal = first_line(error)
    agree_on_data(world, config.data or config.task, refusal or data)
    return config, data


def train_step(
    wrapped: Wrapped, inputs: torch.Tensor, targets: torch.Tensor, mine: np.ndarray, batch: int, size: int
) -> torch.Tensor:
    """One step on this rank's part ``mine`` of a global batch of ``batch`` samples; the loss as it enters the average.

    Back ends average gradients over ranks. So that this is the gradient of the mean over the global batch, whatever
    the parts' sizes, each rank's loss is its *sum* of squared errors times size / batch.
    """
    scale = size / batch
    if len(mine) == 0:
        # More ranks than samples: take part in the exchange with a gradient of zero.
        mine, scale = np.zeros(1, dtype=np.int64), 0.0
    index = torch.from_numpy(mine).to(inputs.device)
    wrapped.zero_grad()
    loss = (wrapped.model(inputs[index]) - targets[index]).square().sum() * scale
    wrapped.backward(loss)
    wrapped.exchange()
    wrapped.step()
    return loss.detach()


def evaluate(model: torch.nn.Module, data: Data, backend: Backend, dtype: torch.dtype) -> tuple[float, int]:
    """This rank's sum of squared errors over its share of the test set, and how many samples that is.

    Shares are disjoint and complete, so that sums and counts over ranks give the mean over distinct samples.
    """
    mine = share(np.arange(len(data.test_inputs)), backend.world.rank, backend.world.size)
    if len(mine) == 0:
        return 0.0, 0
    with torch.no_grad():
        answers = model(torch.from_numpy(data.test_inputs[mine]).to(backend.device, dtype)).cpu().double()
    return float((answers - torch.from_numpy(data.test_targets[mine])).square().sum()), len(mine)


def exchange_of(wrapped: Wrapped, evidence: dict) -> str:
    """What ``exchange_s`` times: training's call, or one of the same bytes where training exchanges piece by piece."""
    if wrapped.whole:
        return "training's own call"
    if evidence.get("buckets") == 1:
        return "one call on all gradients, as training's, which the framework makes"
    return "one call on all gradients; training exchanges them in pieces"


def grad_bytes(model: torch.nn.Module, compression: str) -> int:
    """Bytes of one gradient as it is sent."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return sum(one.numel() * (2 if compression == "fp16" else one.element_size()) for one in trained)


def probe_exchange(
    config: Config, model, backend: Backend, tensors, batch: int, clock: Clock, watchdog: Watchdog
) -> Probe:
    """Measure the exchange on a scratch copy, so that the trained model stays as it is."""
    scratch = checkpoint.model_for(config, tensors[0].shape[1]).to(backend.device)
    scratch.load_state_dict(model.state_dict())
    wrapped = backend.wrap(scratch, make_optimizer(scratch, config))
    backend.broadcast(scratch, wrapped.optimizer)
    mine = share(np.arange(batch), backend.world.rank, backend.world.size)

    def step() -> None:
        watchdog.beat("a step of the probe")
        train_step(wrapped, *tensors, mine, batch, backend.world.size).item()

    measured = probe(backend, wrapped, step, config.probe_steps, clock)
    backend.effective.evidence.update(backend.watched(step))
    return measured


def make_optimizer(model: torch.nn.Module, config: Config) -> torch.optim.Optimizer:
    """Adam in its fused form, the same on every back end."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.Adam(trainable, lr=config.learning_rate, fused=True)


def refuse_unwritable(config: Config, world: World) -> None:
    """Say before hours of training, not after, which file cannot be written. Collective; raises ConfigError."""
    # Rank 0 alone tries, as it alone writes: ranks that create and remove one file trip over each other.
    files = {"--record": config.record, "--save": config.save} if world.rank == 0 else {}
    problems = []
    for flag, name in files.items():
        if name and (why := why_unwritable(name, replaced=flag == "--save")):
            problems.append(f"{flag} is '{name}', {why}")
    if len({os.path.realpath(name) for name in files.values() if name}) < sum(map(bool, files.values())):
        problems.append(f"--record '{config.record}' and --save '{config.save}' are one file; they must be two")
    inputs = {"--data": config.data, "--allreduce-table": config.allreduce_table}
    for flag, name in files.items():
        for source, read in inputs.items():
            if name and read and os.path.realpath(name) == os.path.realpath(read):
                problems.append(f"{flag} is '{name}', which {source} reads; it must be another file")
    problems = world.broadcast(problems)
    if problems:
        raise ConfigError(problems[0])


def run(config: Config, launcher: Launcher) -> int:
    """Start the back end, train, write the record; the exit status."""
    # Until the ranks can talk they share what their launcher gave them; of several failures one record is kept.
    run_id = f"start-{job_of()}"
    commit = provenance.commit() if launcher.rank == 0 else None
    state = {"rank": launcher.rank}

    def end(error: Exception) -> None:
        end_job(config, run_id, state["rank"], error)

    def expired(stage: str) -> None:
        end(TimeoutError(f"no progress for {config.timeout_s:g} s while waiting for {stage}"))

    signals.watch(end)
    watchdog = Watchdog(config.timeout_s, expired)
    try:
        backend = make_backend(config, launcher)
        backend.start()
        state["rank"] = backend.world.rank
        run_id = backend.world.broadcast(results.new_run_id())
        refuse_unwritable(config, backend.world)
        made = train(config, launcher, backend, watchdog, run_id, commit)
        if made is not None:
            if config.record is not None:
                record.append(Path(config.record), made)
            print(closing_summary(made), flush=True)
        watchdog.beat("the end of all ranks")
        backend.stop()
    except UsageError:
        # Said by all ranks alike. A process that leaves its groups open can abort, with another status.
        with contextlib.suppress(Exception):
            backend.stop()
        raise
    except ModuleNotFoundError as error:
        if error.name not in LIBRARIES:
            end_job(config, run_id, state["rank"], error)
        # Perhaps on this rank alone: each says so for itself.
        where = f"--backend {config.backend} needs {error.name}, which is not installed on {socket.gethostname()}"
        print(f"error: {where}", file=sys.stderr, flush=True)
        abort(2)
    except BaseException as error:
        end_job(config, run_id, state["rank"], error)
    watchdog.stop()
    return 0


def resolved(config: Config, launcher: Launcher) -> dict:
    """The config with what follows from it and from the launcher, before anything has been started."""
    if config.task in FORMULAS:
        inputs = FORMULAS[config.task].inputs
    else:
        config, data = read_data(config)
        inputs = data.inputs.shape[1]
    width = [inputs, *config.hidden, 1]
    if config.simulate_nodes is not None:
        Topology.simulated(config.simulate_nodes, launcher.size)
    choices = engines(config) or ("builtin",)
    batch = config.global_batch(launcher.size)
    found = {"width": width, "global_batch": batch, "batch_per_rank": math.ceil(batch / launcher.size)}
    found |= {"steps": config.epochs * math.ceil(config.samples / batch), "engines": choices}
    if config.device == "auto":
        found["device"] = "cuda" if torch.cuda.device_count() else "cpu"
    return {**config.to_dict(), **found, "launcher": vars(launcher)}


def main(arguments: list[str]) -> int:
    launcher = Launcher("alone")
    try:
        launcher = detect()
        config = from_command_line(arguments)
    except UsageError as error:
        # Another rank may have been told something else, and would wait for this one.
        return told(launcher, error if "--dry-run" in arguments else refuse_together(launcher, error))
    try:
        if config.dry_run:
            if launcher.rank == 0:
                print(json.dumps(resolved(config, launcher), indent=2))
            return 0
        inside = None if config.one_worker_per_task or config.backend == "single" else nested.wanted(launcher)
        if inside is not None:
            nested.start(inside, launcher, [sys.executable, "-m", "hvdkan.train", *arguments])
        return run(config, launcher)
    except UsageError as error:
        return told(launcher, error)


def told(launcher: Launcher, error: Exception) -> int:
    """One line for all ranks, and the exit status of what was refused."""
    if launcher.rank == 0:
        print(f"error: {first_line(error)}", file=sys.stderr, flush=True)
    return 2


if __name__ == "__main__":
    outlive_readers()
    sys.exit(main(sys.argv[1:]))
