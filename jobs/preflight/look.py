"""All that one rank sees of its own process and node, looked at before MPI starts; plain data for the judges."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from hvdkan.config import VARIABLE
from hvdkan.nested import visible_gpus
from hvdkan.provenance import my_cores
from jobs.preflight import hardware, infiniband, one_mpi, software
from jobs.preflight.hardware import Memory
from jobs.preflight.infiniband import Port
from jobs.preflight.launch import Gpus
from jobs.preflight.one_mpi import Mpis, Tool
from jobs.preflight.software import Package
from mpi.topology import node_label

_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "LOCAL_RANK", "HOROVOD_LOCAL_RANK")


@dataclass(frozen=True)
class Seen:
    """One rank's view; ``tools`` is False where another rank of the node asked mpirun and srun."""

    label: str
    packages: list[Package]
    ours: dict[str, str]
    prefixes: list[str]
    built: dict[str, bool] | None
    mpis: Mpis
    tools: bool
    mpirun: Tool | None
    srun: Tool | None
    gpus: Gpus
    cores: list[int]
    online: int
    omp: str
    memory: Memory
    memlock: int | None
    clocksource: str | None
    ports: list[Port]
    interfaces: list[str]
    slurm_name: str
    devices: dict[str, str] = field(default_factory=dict)
    hierarchy: str | None = None

    @property
    def host(self) -> str:
        return self.label.split(" ")[0]


def look(environment: Mapping[str, str] = os.environ) -> Seen:
    """Look. Starts some short programs, which must not happen any more once MPI is initialised."""
    library, of_mpi4py = one_mpi.look_mpi4py()
    packages = software.look()
    built = software.look_horovod()
    first = first_of_node(environment)
    return Seen(
        label=node_label(),
        packages=packages,
        ours=software.look_ours(),
        prefixes=software.own_prefixes(),
        built=built,
        mpis=Mpis(library, of_mpi4py, one_mpi.look_horovod() if first else None, one_mpi.loaded()),
        tools=first,
        mpirun=one_mpi.look_tool("mpirun", "--version") if first else None,
        srun=one_mpi.look_tool("srun", "--mpi=list") if first else None,
        gpus=look_gpus(environment),
        cores=my_cores(),
        online=os.cpu_count() or 1,
        omp=environment.get("OMP_NUM_THREADS", ""),
        memory=hardware.look_memory(),
        memlock=hardware.look_memlock(),
        clocksource=hardware.look_clocksource(),
        ports=infiniband.look(),
        interfaces=infiniband.look_interfaces(),
        slurm_name=environment.get("SLURMD_NODENAME", ""),
        devices=infiniband.look_variables(environment),
        hierarchy=environment.get(VARIABLE),
    )


def first_of_node(environment: Mapping[str, str]) -> bool:
    """Whether this is the first rank of its node as the launcher says; where it does not say, each rank is."""
    said = next((environment[name] for name in _LOCAL_RANKS if name in environment), "0")
    return not said.isdigit() or int(said) == 0


def look_gpus(environment: Mapping[str, str]) -> Gpus:
    """The GPUs that torch sees, by identity, and those that the environment names."""
    told = environment.get("SLURM_GPUS_ON_NODE", "")
    seen, cuda = (), False
    try:
        import torch

        cuda = torch.version.cuda is not None or torch.version.hip is not None
        devices = range(torch.cuda.device_count())
        seen = tuple(str(torch.cuda.get_device_properties(index).uuid) for index in devices)
    except Exception:  # torch's own finding, or that it sees none, tells
        pass
    return Gpus(seen, visible_gpus(environment), int(told) if told.isdigit() else 0, cuda)
