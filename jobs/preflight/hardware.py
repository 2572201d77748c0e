"""Cores and threads, /dev/shm and memory, locked memory, and the clock that times are read from."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from hvdkan.provenance import oversubscribed, threads_for
from jobs.preflight.findings import Finding, counted, failure, named, ok, warning
from mpi.topology import Topology

_CLOCKSOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_GOOD_CLOCKS = ("tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page", "timebase")
#: Bytes a rank: MPI's and NCCL's segments of shared memory, with room for torch's data loaders.
SHM_WANTED, SHM_LEAST = 64 << 20, 4 << 20
MEMORY_WANTED = 512 << 20
_SHM = "/dev/shm"


@dataclass(frozen=True)
class Memory:
    """Bytes free in /dev/shm (None: there is none that can be written) and available in all, as one rank sees it."""

    shm: int | None
    available: int | None


# --- look ---


def look_memory(shm: str = _SHM, meminfo: str = "/proc/meminfo") -> Memory:
    try:
        state = os.statvfs(shm)
        free = state.f_bavail * state.f_frsize if os.access(shm, os.W_OK) else None
    except OSError:
        free = None
    try:
        lines = dict(line.split(":", 1) for line in Path(meminfo).read_text().splitlines())
        available = int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        available = None
    return Memory(free, available)


def look_memlock() -> int | None:
    """Bytes that may be locked (`ulimit -l`), None for unlimited."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def look_clocksource(path: Path = _CLOCKSOURCE) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


# --- judge ---


def judge_cores(
    nodes: Topology, hosts: Sequence[str], cores: Sequence[Sequence[int]], online: Sequence[int], omp: Sequence[str]
) -> Finding:
    """Cores that each rank may use: enough, and its own where ranks are bound. ``omp`` is OMP_NUM_THREADS or empty."""
    sets = [frozenset(mine) for mine in cores]
    rebind = "srun --cpus-per-task=N --cpu-bind=cores, or mpirun --map-by slot:PE=N --bind-to core"
    crowded, overlapping, anywhere = [], [], True
    for members in nodes.members:
        host = hosts[members[0]]
        for mine in dict.fromkeys(sets[rank] for rank in members):
            sharing = sum(sets[rank] == mine for rank in members)
            if sharing > len(mine):
                bound = "" if len(mine) == online[members[0]] else " (bound)"
                crowded.append(f"{sharing} ranks of {host} share {counted(len(mine), 'core')}{bound}")
                anywhere = anywhere and not bound
        for one, other in combinations(members, 2):
            if sets[one] != sets[other] and sets[one] & sets[other]:
                common = ",".join(map(str, sorted(sets[one] & sets[other])[:4]))
                overlapping.append(f"ranks {one} and {other} of {host} (core {common})")
                break
    if crowded:
        return warning(
            "cores", named(crowded), "fewer ranks a node" if anywhere else f"{rebind}; or fewer ranks a node"
        )
    if overlapping:
        return warning("cores", f"ranks are bound to cores that overlap: {named(overlapping)}", rebind)
    usual = [threads_for(rank, nodes, list(map(list, cores))) for rank in range(nodes.size)]
    given = [int(text) if text.isdigit() and int(text) else each for text, each in zip(omp, usual, strict=True)]
    if oversubscribed(nodes, list(map(list, cores)), given):
        rank = max(range(nodes.size), key=lambda rank: given[rank] - usual[rank])
        return warning(
            "cores",
            f"OMP_NUM_THREADS is {given[rank]}, and rank {rank} of {hosts[rank]} has {counted(usual[rank], 'core')} "
            f"to itself",
            f"export OMP_NUM_THREADS={usual[rank]}, or leave it unset",
        )
    return ok("cores", _said(nodes, sets, usual))


def _said(nodes: Topology, sets: Sequence[frozenset[int]], threads: Sequence[int]) -> str:
    least = min(range(nodes.size), key=lambda rank: threads[rank])
    each = f"{counted(threads[least], 'core')} a rank" + (" at least" if len(set(threads)) > 1 else "")
    sharing = sum(sets[rank] == sets[least] for rank in nodes.local_ranks(least))
    return each if sharing == 1 else f"{each}: {sharing} ranks share {len(sets[least])}, not bound to their own"


def judge_memory(nodes: Topology, hosts: Sequence[str], memory: Sequence[Memory]) -> Finding:
    """/dev/shm holds what MPI, NCCL and torch put there: it is memory, so that both its size and what is free count."""
    check = "/dev/shm"
    missing, tiny, small, poor, rooms = [], [], [], [], []
    for members in nodes.members:
        host, ranks, seen = hosts[members[0]], len(members), memory[members[0]]
        if seen.shm is None:
            missing.append(host)
            continue
        room = min(seen.shm, seen.available if seen.available is not None else seen.shm)
        rooms.append(room)
        shown = f"{host} {size(room)} for {counted(ranks, 'rank')}"
        if room < SHM_LEAST * ranks:
            tiny.append(shown)
        elif room < SHM_WANTED * ranks:
            small.append(shown)
        if seen.available is not None and seen.available < MEMORY_WANTED * ranks:
            poor.append(f"{host} {size(seen.available)} for {counted(ranks, 'rank')}")
    remedy = (
        f"remove what earlier jobs left there, or make it larger: {size(SHM_WANTED)} a rank (containers: --shm-size)"
    )
    if missing:
        return failure(check, f"none that can be written on {named(missing)}", f"mount a tmpfs on {check}")
    if tiny:
        return failure(check, f"free: {named(tiny)}; ranks would end with a bus error", remedy)
    if small:
        return warning(check, f"free: {named(small)}", remedy)
    if poor:
        return warning(check, f"memory available: {named(poor)}", "ask for more memory (--mem), or fewer ranks a node")
    return ok(check, f"at least {size(min(rooms))} free on each node")


def judge_memlock(limit: int | None, infiniband: bool) -> Finding | None:
    """InfiniBand locks the memory that it sends from; without it the limit does not matter."""
    if not infiniband:
        return None
    if limit is None:
        return ok("ulimit -l", "unlimited, as InfiniBand needs")
    return warning(
        "ulimit -l",
        f"{size(limit)} of memory may be locked; InfiniBand wants unlimited",
        "ulimit -l unlimited; under Slurm the administrator's: memlock in limits.conf of slurmd, and "
        "PropagateResourceLimitsExcept=MEMLOCK",
    )


def judge_clocksource(name: str | None) -> Finding:
    if name is None:
        return ok("clock source", "not told by this system")
    if name in _GOOD_CLOCKS:
        return ok("clock source", name)
    return warning(
        "clock source", f"{name}, which is slow to read: short times come out too long", "have the kernel use tsc"
    )


def judge_skew(offsets: Sequence[tuple[str, float, float]]) -> Finding:
    """``offsets`` holds for each node its host, its clock minus rank 0's, and how far that may be wrong, in seconds."""
    middle = sorted(offset for _, offset, _ in offsets)[(len(offsets) - 1) // 2]
    wrong = [(host, offset - middle) for host, offset, error in offsets if abs(offset - middle) - error > 1]
    spread = max(offset for _, offset, _ in offsets) - min(offset for _, offset, _ in offsets)
    if wrong:
        shown = [f"{host} {abs(by):.1f} s {'ahead' if by > 0 else 'behind'}" for host, by in wrong]
        return warning("clock", f"of other nodes': {named(shown)}", "let the administrator see to NTP or chrony there")
    return ok("clock", f"nodes agree within {_seconds(spread + max(error for _, _, error in offsets))}")


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{max(value * 1e3, 0.1):.1f} ms"


def size(count: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << shift:
            return f"{count / (1 << shift):.3g} {unit}" if count < 1000 << shift else f"{count >> shift} {unit}"
    return f"{count} bytes"
