"""What was started against what came up: ranks, GPUs and cores of a node, and what the hierarchy can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hvdkan.config import VARIABLE, ConfigError, from_command_line
from hvdkan.engines import ENGINES
from hvdkan.launcher import Launcher, LaunchError, check_size
from hvdkan.nested import Nested
from jobs.preflight.findings import Finding, counted, failure, named, ok, warning
from jobs.slurm import SlurmError, task_counts
from mpi.topology import Topology

_TASK_COUNTS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


@dataclass(frozen=True)
class Gpus:
    """What a rank sees: the identities of torch's devices, how many the variables name for it and for its node."""

    seen: tuple[str, ...] = ()
    named: int = 0
    on_node: int = 0
    cuda: bool = False


def judge_world(launcher: Launcher, size: int, library: str, environment: Mapping[str, str]) -> Finding:
    """As many ranks came up as were started. Under mpirun in a batch job Slurm's counts mean another step."""
    if launcher.kind == "alone":
        return ok("world", "one process, no launcher: only this machine is looked at, start it as the job will be")
    try:
        check_size(launcher, size, library)
    except LaunchError as error:
        remedies = {
            "srun": "srun --mpi=TYPE with the type that fits (see srun), or mpirun inside salloc",
            "mpirun": "use the mpirun that belongs to this MPI (see mpirun), and see one MPI",
        }
        return failure("world", str(error), remedies.get(launcher.kind, "see horovod build and the environment"))
    note = ""
    if launcher.kind == "mpirun":
        others = {name: environment[name] for name in _TASK_COUNTS if environment.get(name, str(size)) != str(size)}
        shown = ", ".join(f"{name}={value!r}" for name, value in others.items())
        note = f" ({shown} is of the step around mpirun)" if others else ""
    return ok(
        "world", f"{launcher.kind} started {counted(size, 'rank')} ({launcher.variable}), {library} sees {size}{note}"
    )


def judge_placement(topology: Topology, hosts: Sequence[str], simulated: bool, slurm_names: Sequence[str]) -> Finding:
    """Where the ranks are, as they say themselves; ``slurm_names[rank]`` is Slurm's name of that host, or empty."""
    text = topology.placement
    if simulated:
        return ok("placement", f"{text}: SIMULATED nodes of {named(list(dict.fromkeys(hosts)))}")
    each = Counter(hosts)
    text += ": " + named([f"{host} {count}" for host, count in each.items()])
    aliases = dict.fromkeys(
        f"{host} is Slurm's {name}"
        for host, name in zip(hosts, slurm_names, strict=True)
        if name and name.split(".")[0] != host.split(".")[0]
    )
    return ok("placement", text + (f" ({named(list(aliases))})" if aliases else ""))


def judge_gpus(nodes: Topology, hosts: Sequence[str], gpus: Sequence[Gpus]) -> Finding:
    """Each rank has a GPU of its own, or none has any. A rank that sees one GPU uses that one (device 0)."""
    crowded, shared, blind, without, shapes = {}, [], [], [], []
    for members in nodes.members:
        host, ranks = hosts[members[0]], len(members)
        seen = {gpu for rank in members for gpu in gpus[rank].seen}
        count = len(seen) or max(_told(gpus[rank]) for rank in members)
        taken: dict[str, int] = {}
        for rank in members:
            mine = gpus[rank].seen
            if mine:
                gpu = mine[nodes.local_rank(rank) % len(mine)]
                if gpu in taken:
                    shared.append(f"ranks {taken[gpu]} and {rank} of {host}")
                taken.setdefault(gpu, rank)
            else:
                without.append(rank)
        if count and ranks > count:
            crowded[f"{host} has {ranks} ranks and {counted(count, 'GPU')}"] = count
        if not seen and any(gpus[rank].named or gpus[rank].on_node for rank in members):
            blind.append(host)
        shapes.append(f"{counted(ranks, 'rank')} and {counted(len(seen), 'GPU')} a node")
    if crowded:
        return failure(
            "GPUs",
            f"more ranks than GPUs on a node: {named(list(crowded))}",
            f"--ntasks-per-node={min(crowded.values())} at most, or 1: hvdkan.train then starts a worker for each GPU",
        )
    if shared:
        return failure(
            "GPUs", f"two ranks take one GPU: {named(shared)}", "let each rank see its own GPU, or all GPUs of its node"
        )
    if blind:
        why = "this torch is a CPU build" if not any(one.cuda for one in gpus) else "see nvidia-smi there"
        return warning(
            "GPUs",
            f"GPUs are given to {named(blind)}, and torch sees none of them: {why}",
            "install torch with CUDA (make setup without TORCH_INDEX) and HOROVOD_GPU_OPERATIONS=NCCL",
        )
    if without and len(without) < len(gpus):
        blinded = named([f"rank {rank} of {hosts[rank]}" for rank in without])
        return failure(
            "GPUs",
            f"torch sees no GPU on {blinded}, but elsewhere it does",
            "ask for GPUs on every node (--gpus-per-node), or train with --device cpu",
        )
    return ok("GPUs", "none; training takes the CPUs" if without else "; ".join(dict.fromkeys(shapes)))


def _told(one: Gpus) -> int:
    """GPUs of a node that the variables tell. One name alone does not: each rank may have been given another GPU."""
    return one.on_node or (one.named if one.named > 1 else 0)


def judge_planned(environment: Mapping[str, str], gpus: Gpus) -> Finding | None:
    """In a batch script, before anything is started: the tasks a node of the job against the GPUs of this node."""
    text, count = environment.get("SLURM_TASKS_PER_NODE"), len(gpus.seen) or gpus.on_node or gpus.named
    if text is None or not count:
        return None
    try:
        tasks = max(task_counts(text))
    except SlurmError as error:
        return warning("job", str(error), "ask for --nodes and --ntasks-per-node")
    shown = f"{counted(tasks, 'task')} a node and {counted(count, 'GPU')} a node"
    if tasks > count:
        return failure("job", f"the job has {shown}", f"ask for --ntasks-per-node={count} at most")
    return ok("job", shown)


def judge_nested(inside: Nested | None) -> Finding | None:
    """What hvdkan.train would make of one task a node that sees several GPUs."""
    if inside is None:
        return None
    text = f"hvdkan.train would start {inside.nodes * inside.workers} workers here, {inside.workers} a node"
    if inside.cpus < inside.workers:
        return warning(
            "workers",
            f"{text}, which share {counted(inside.cpus, 'core')} a node",
            f"ask for --cpus-per-task={inside.workers} or more",
        )
    return ok("workers", text)


def judge_variable(value: str | None, topology: Topology, nested: bool) -> Finding:
    """The value of HOROVOD_HIERARCHICAL_ALLREDUCE, and whether it can act on these ranks."""
    if value is None:
        return ok("hierarchy", f"{VARIABLE} is unset: runs are stock")
    try:
        asked = from_command_line([], {VARIABLE: value}).allreduce
    except ConfigError as error:
        return failure("hierarchy", str(error), f"export {VARIABLE}=1, or 0, or unset it")
    reason = topology.degenerate
    if asked == "hierarchical" and topology.size > 1 and reason and not nested:
        return warning(
            "hierarchy",
            f"{VARIABLE} is 1, but there is {reason}: runs are flat, and say so",
            "place at least two ranks on each of at least two nodes",
        )
    return ok("hierarchy", f"{VARIABLE} is {value}: runs are {asked}")


def judge_engines(
    built: Mapping[str, bool] | None, launcher: Launcher, gpus: bool, simulated: bool, mpi: bool
) -> Finding:
    """Which engines of a hierarchical all-reduce can act here, by back end; why not, where one cannot."""
    parts, able = [], False
    for backend, choices in ENGINES.items():
        shown = []
        for engine in choices.get("hierarchical", ()):
            why = _why_not(backend, engine, built, launcher, gpus, simulated, mpi)
            able = able or why is None
            shown.append(f"{engine}: {why}" if why else engine)
        if shown:
            parts.append(f"{backend} {', '.join(shown)}")
    if not able:
        return failure("engines", "; ".join(parts), "see horovod build and mpi4py")
    return ok("engines", "; ".join(parts))


def _why_not(backend, engine, built, launcher, gpus, simulated, mpi) -> str | None:
    if backend == "horovod" and built is None:
        return "no Horovod"
    if engine == "han":
        if not built["mpi"] or not mpi or launcher.kind in ("torchrun", "horovodrun"):
            return "no MPI"
        return "acts on real nodes only" if simulated else None
    if engine in ("nccl", "torus"):
        if not built["nccl"]:
            return "not built"
        return "acts on GPUs only" if not gpus else "acts on real nodes only" if simulated else None
    if backend == "mpi":
        if not mpi:
            return "no mpi4py"
        return f"no MPI under {launcher.kind}" if launcher.kind in ("torchrun", "horovodrun") else None
    return None
