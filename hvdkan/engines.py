"""What can carry an all-reduce out, and which settings of the exchange go together. Needs neither torch nor MPI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mpi.algorithms import CROSS, NAMES, AlgorithmError, parse

if TYPE_CHECKING:
    from hvdkan.config import Config

_HIERARCHIES = ("two_level", *(name for name in CROSS if name != "two_level"))
_FLAT = tuple(name for name in NAMES if name not in (*CROSS, "auto"))
_HOROVOD = ("process_sets", "nccl", "torus", "han")
#: The engines of each back end, the automatic choice first. `builtin` is the framework's own.
ENGINES = {
    "single": {},
    "horovod": {"flat": (*_HOROVOD, "builtin"), "hierarchical": _HOROVOD},
    "ddp": {"flat": ("hook", "builtin"), "hierarchical": ("hook",)},
    # Names of mpi.algorithms; a hierarchy's name with a flat all-reduce means its flat twin.
    "mpi": {"flat": (*_HIERARCHIES, *_FLAT), "hierarchical": _HIERARCHIES},
}


def engines(config: Config) -> tuple[str, ...]:
    """What ``--engine`` may name for this back end, transport and all-reduce, the automatic choice first."""
    return ENGINES["mpi" if runs_ours(config) else config.backend].get(config.allreduce, ())


def runs_ours(config: Config) -> bool:
    """Whether :mod:`mpi.allreduce` exchanges the gradients, so that engines are its algorithms."""
    return config.backend == "mpi" or (config.backend == "ddp" and config.transport == "mpi")


def listed() -> str:
    """All engines, for a line of help."""
    named = {backend: dict.fromkeys(name for names in of.values() for name in names) for backend, of in ENGINES.items()}
    return "; ".join(f"{backend}: {', '.join(names)}" for backend, names in named.items() if names)


def canonical(config: Config) -> str:
    """``--engine`` as it is written in records: an algorithm without blanks and defaults. Raises AlgorithmError."""
    return config.engine if config.engine == "auto" or not runs_ours(config) else str(parse(config.engine))


def refusals(config: Config) -> Iterator[str]:
    """What of the exchange's settings cannot go together, one line each."""
    backend = config.backend
    if config.allreduce == "auto" and backend != "mpi":
        yield f"--allreduce is 'auto'; with --backend {backend} it must be one of stock, flat, hierarchical"
    if config.allreduce_table is not None and config.allreduce != "auto":
        yield f"--allreduce-table is what --allreduce auto chooses from; --allreduce is '{config.allreduce}'"
    yield from _engine_refusals(config)
    yield from _refused_of_transport(config)
    if config.cycle_time_ms is not None and backend != "horovod":
        yield f"--cycle-time-ms is a setting of --backend horovod, not of {backend}"
    if backend == "single":
        for name, given in (
            ("--fusion-mb", config.fusion_mb is not None),
            ("--no-overlap", not config.overlap),
            (f"--compression {config.compression}", config.compression != "none"),
        ):
            if given:
                yield f"{name} has no meaning with --backend single, which exchanges nothing"
    if config.compression != "none" and runs_ours(config):
        # Its sums, and so its messages, of float16 are float32: no byte would be saved.
        yield f"--compression is '{config.compression}'; where our own all-reduce over MPI runs it must be none"
    if backend == "ddp" and not config.overlap and config.fusion_mb is not None:
        yield "--no-overlap is one bucket with --backend ddp, which --fusion-mb would cut; use one of them"


def _refused_of_transport(config: Config) -> Iterator[str]:
    if config.transport == "auto" or config.backend in ("horovod", "ddp"):
        return
    yield f"--transport is a setting of --backend horovod and ddp, not of {config.backend}"


def _engine_refusals(config: Config) -> Iterator[str]:
    choices, name = engines(config), config.engine
    if name == "auto":
        return
    if runs_ours(config):
        try:
            name = parse(name).name
        except AlgorithmError as error:
            if str(error).startswith("algorithm is"):
                name = config.engine
            else:  # the name is known; it says what is wrong with its parameters
                yield f"--engine: {error}"
                return
    if name not in choices:
        shown = config.engine if len(config.engine) <= 80 else config.engine[:77] + "..."
        yield (
            f"--engine is {shown!r}; with --backend {config.backend} --allreduce {config.allreduce} "
            f"it must be one of {', '.join(('auto', *choices))}"
        )
