"""All ranks run one configuration, or none of them runs.

A variable that a launcher passes to some ranks only, or two installations on two nodes, would otherwise train to the
end and be recorded as what rank 0 was told.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import torch

import hvdkan
from hvdkan.backends.world import World, open_world
from hvdkan.config import VARIABLE, Config, flag
from hvdkan.kinds import ConfigError, first_line
from hvdkan.launcher import Launcher
from hvdkan.tasks import Data
from hvdkan.watchdog import Watchdog
from mpi.topology import named

#: Rank 0 alone uses these while all goes well.
_OF_RANK_0 = ("record", "save")
#: What Horovod reads from the environment and would follow on each rank by itself.
_VARIABLES = (
    "HOROVOD_AUTOTUNE",
    "HOROVOD_CACHE_CAPACITY",
    "HOROVOD_CPU_OPERATIONS",
    "HOROVOD_CYCLE_TIME",
    "HOROVOD_FUSION_THRESHOLD",
    "HOROVOD_TIMELINE",
    "HOROVOD_TORUS_ALLREDUCE",
)
#: Seconds that a rank which refuses its settings waits for the others, so that one line is said for all.
_MEETING_S = 60.0
#: How many of the differences one line shows.
_SHOWN = 3


def agree(world: World, config: Config) -> None:
    """Go on together. Collective; raises ConfigError, the same on all ranks, where ranks differ or one refuses."""
    _meet(world, settings(config, os.environ))


def agree_on_data(world: World, name: str, found: Data | str) -> None:
    """Train on one table, or not at all: each node may have a file ``name`` of its own, or none.

    ``found`` is what this rank has read, or the line by which it refuses. Collective; raises ConfigError, the same on
    all ranks.
    """
    mine = found if isinstance(found, str) else {f"the digest of {name}": str(found.digest)[:16]}
    _meet(world, mine, "ranks have read different data")


def refuse_together(launcher: Launcher, error: Exception) -> Exception:
    """Tell the ranks that meet in :func:`agree` that this one cannot go on; the error that all of them then raise.

    ``error`` itself where the ranks cannot meet.
    """
    if launcher.size == 1:
        return error

    def expired(stage: str) -> None:
        print(f"error: rank {launcher.rank} of {launcher.size}: {first_line(error)}", file=sys.stderr, flush=True)
        os._exit(2)

    watchdog = Watchdog(_MEETING_S, expired)
    try:
        world = open_world(launcher, _MEETING_S)
        try:
            _meet(world, first_line(error))
        finally:
            world.close()
    except ConfigError as common:
        return common
    except Exception:
        return error
    finally:
        watchdog.stop()
    return error


def settings(config: Config, environment: Mapping[str, str]) -> dict[str, str]:
    """What must be the same on all ranks, as it is shown."""
    found = {flag(name): str(value) for name, value in config.to_dict().items() if name not in _OF_RANK_0}
    if config.backend == "horovod":
        found |= {name: environment.get(name, "unset") for name in _VARIABLES}
    return found | {"the version of hvdkan": hvdkan.__version__, "the version of torch": str(torch.__version__)}


def _meet(world: World, mine: dict[str, str] | str, fault: str = "ranks were started with different settings") -> None:
    told: list[dict[str, str] | str] = world.allgather(mine)
    refusals = {rank: one for rank, one in enumerate(told) if isinstance(one, str)}
    if refusals:
        first = min(refusals)
        # What all of them say needs no rank; what some say, one of them.
        where = "" if len(set(map(str, told))) == 1 else f"{named(list(refusals))} of {world.size}: "
        raise ConfigError(f"{where}{refusals[first]}")
    differing = [name for name in told[0] if len({one.get(name) for one in told}) > 1]
    if differing:
        shown = "; ".join(_difference(name, [one.get(name, "unset") for one in told]) for name in differing[:_SHOWN])
        more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        raise ConfigError(f"{fault}: {shown}{more}{_remedy(differing)}")


def _difference(name: str, values: list[Any]) -> str:
    ranks = {value: [rank for rank, other in enumerate(values) if other == value] for value in dict.fromkeys(values)}
    return f"{name} is " + ", ".join(f"{value} on {named(where)}" for value, where in ranks.items())


def _remedy(differing: list[str]) -> str:
    variables = [VARIABLE if name == flag("allreduce") else name for name in differing]
    variables = [name for name in variables if name.startswith("HOROVOD_")]
    return f" (variables must reach all ranks: mpirun -x {' -x '.join(variables)})" if variables else ""
