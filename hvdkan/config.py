"""Every setting of a run: one frozen dataclass, from which the command line and the record are made."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from hvdkan.engines import canonical, listed, refusals
from hvdkan.kinds import (
    LABELS,
    Choice,
    Columns,
    ConfigError,
    File,
    Kind,
    Labels,
    Number,
    Switch,
    TableFile,
    Text,
    Whole,
    Wholes,
    shown,
)
from hvdkan.tasks import FORMULAS, NAMES, READERS, TABLE

BACKENDS = ("single", "horovod", "ddp", "mpi")
OPERATORS = ("spline", "matrix", "pykan", "mlp")
COMPRESSIONS = ("none", "fp16")
ALLREDUCES = ("stock", "flat", "hierarchical", "auto")
VARIABLE = "HOROVOD_HIERARCHICAL_ALLREDUCE"


def _setting(default: Any, kind: Kind, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"kind": kind, "help": text})


# --- the settings ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """A validated run. A field whose default is None may be left unset. Raises :class:`ConfigError`."""

    backend: str = _setting("horovod", Choice(*BACKENDS), "what exchanges gradients")
    operator: str = _setting("spline", Choice(*OPERATORS), "what computes a layer")
    hidden: tuple[int, ...] = _setting((32,), Wholes(), "hidden width, or several: 32,16")
    grid: int = _setting(10, Whole(1), "grid intervals of a spline")
    order: int = _setting(3, Whole(1, 10), "spline order k")
    symbolic: bool = _setting(True, Switch(), "pykan's symbolic branch, on in the paper (operator pykan only)")
    task: str = _setting(
        None, Choice(*NAMES), f"what to learn: {', '.join(NAMES)} (default squares, the paper's; with --data: table)"
    )
    data: str | None = _setting(None, TableFile(), f"a table to learn from: {', '.join(READERS)}")
    target: str | None = _setting(None, Text(), "the column of --data to predict")
    inputs: tuple[str, ...] | None = _setting(None, Columns(), "the columns to predict it from (default: all others)")
    samples: int | None = _setting(
        None, Whole(1), "training samples, over all ranks (default 100000; of tables: all but the test's)"
    )
    noise: float = _setting(
        None, Number(0), "standard deviation of the noise added to training targets (default 0.1; tables have none)"
    )
    batch_size: int | None = _setting(None, Whole(1), "samples per rank and step (default 1000)")
    global_batch_size: int | None = _setting(None, Whole(1), "samples per step over all ranks, instead of --batch-size")
    epochs: int = _setting(40, Whole(1), "passes over the data")
    learning_rate: float = _setting(0.01, Number(0, above=True), "Adam's learning rate")
    seed: int = _setting(0, Whole(0, 2**63 - 1), "seed of data, order of batches and initial parameters")
    device: str = _setting("auto", Choice("auto", "cpu", "cuda"), "auto takes the GPUs where torch sees any")
    dtype: str = _setting("float32", Choice("float32", "float64"), "type of parameters and data")
    threads: int | None = _setting(
        None, Whole(1, 1024), "torch threads per rank (default: the rank's share of the cores)"
    )
    allreduce: str = _setting(
        "stock",
        Choice(*ALLREDUCES),
        f"auto: --backend mpi only; default from {VARIABLE}: 0 flat, 1 hierarchical, unset stock",
    )
    allreduce_table: str | None = _setting(
        None, File(), "what --allreduce auto chooses from, made by mpi.bench --tune FILE (default: measured at start)"
    )
    transport: str = _setting(
        "auto",
        Choice("auto", "mpi", "gloo"),
        "what Horovod's CPU operations use; mpi with ddp: our all-reduce as a hook",
    )
    engine: str = _setting("auto", Text(), f"what carries the all-reduce out; {listed()}")
    fusion_mb: float | None = _setting(
        None, Number(0), "MiB of gradients exchanged at once (default: Horovod's and DDP's own; mpi: 1)"
    )
    overlap: bool = _setting(True, Switch(), "exchange during backward where the back end can; --no-overlap: after it")
    compression: str = _setting("none", Choice(*COMPRESSIONS), "what gradients are sent as; fp16: horovod and ddp only")
    cycle_time_ms: float | None = _setting(None, Number(0, above=True), "Horovod's cycle time (default: Horovod's)")
    simulate_nodes: tuple[int, ...] | None = _setting(None, Wholes(), "workers of each simulated node, as in 2,2")
    one_worker_per_task: bool = _setting(False, Switch(), "under srun: no more workers than Slurm started tasks")
    warmup_steps: int = _setting(5, Whole(0), "first steps left out of the timings")
    probe_steps: int = _setting(40, Whole(0), "steps with and without exchange that measure its exposed time; 0: none")
    test_samples: int | None = _setting(
        None, Whole(1), "samples of the test set, without noise (default 1000; of tables: a fifth of the rows)"
    )
    timeout_s: float = _setting(300.0, Number(0, above=True), "longest time without progress before the job is ended")
    record: str | None = _setting(None, File(), "append the run's record to FILE")
    save: str | None = _setting(None, File(), "write the trained model to FILE")
    label: tuple[str, ...] = _setting((), Labels(), f"{', '.join(LABELS)} of the record; may be given several times")
    dry_run: bool = _setting(False, Switch(), "print the resolved configuration and stop")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            object.__setattr__(self, field.name, field.metadata["kind"].check(flag(field.name), value))
        self._resolve_task()
        self._check_together()

    def _resolve_task(self) -> None:
        """Set the defaults that follow from the task; a table's numbers of samples are known when it has been read."""
        if self.task is None:
            object.__setattr__(self, "task", "squares" if self.data is None else TABLE)
        if self.data is not None and self.task != TABLE:
            raise ConfigError(f"--data and --task {self.task} are both given; use one of them")
        if self.data is None:
            for name, value in (("--target", self.target), ("--inputs", self.inputs)):
                if value is not None:
                    raise ConfigError(f"{name} names columns of --data FILE, which is not given")
            if self.task == TABLE:
                raise ConfigError(f"--task {TABLE} needs --data FILE")
        elif self.target is None:
            raise ConfigError("--data needs --target COLUMN, the column to predict")
        elif self.target in (self.inputs or ()):
            raise ConfigError(f"--target {shown(self.target)} is among --inputs; it cannot be predicted from itself")
        formula = self.task in FORMULAS
        if self.noise is not None and self.noise > 0 and not formula:
            raise ConfigError(f"--noise is {self.noise:g}; it must be 0 with --task {self.task}, which is measured")
        defaults = {"samples": 100_000, "noise": 0.1, "test_samples": 1000} if formula else {"noise": 0.0}
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    def _check_together(self) -> None:
        if self.batch_size is not None and self.global_batch_size is not None:
            raise ConfigError("--batch-size and --global-batch-size are both given; use one of them")
        batch = self.global_batch_size or self.batch_size
        if batch is not None and self.samples is not None and batch > self.samples:
            name = "--global-batch-size" if self.global_batch_size else "--batch-size"
            raise ConfigError(f"{name} is {batch}, more than --samples {self.samples}")
        if refusal := next(refusals(self), None):
            raise ConfigError(refusal)
        object.__setattr__(self, "engine", canonical(self))
        if self.save is not None and self.save == self.record:
            raise ConfigError(f"--record and --save are both '{self.save}'; they must be two files")
        if not self.symbolic and self.operator != "pykan":
            raise ConfigError(f"--no-symbolic is a setting of --operator pykan, not of {self.operator}")
        if self.simulate_nodes is not None and self.backend == "single":
            raise ConfigError("--simulate-nodes has no meaning with --backend single, which has one worker")

    def global_batch(self, size: int) -> int:
        """Samples of a step over all ``size`` ranks. Raises ConfigError where that is more than there are.

        While the number of samples is not known, as in a table that has not been read: what is asked for.
        """
        if self.global_batch_size is not None:
            return self.global_batch_size
        if self.batch_size is None:
            # The default must not be refused for small data: only what the user asked for is.
            return 1000 * size if self.samples is None else min(1000 * size, self.samples)
        batch = self.batch_size * size
        if self.samples is not None and batch > self.samples:
            raise ConfigError(
                f"--batch-size {self.batch_size} on {size} ranks is {batch} a step, more than --samples {self.samples}"
            )
        return batch

    def labels(self) -> dict[str, str | int]:
        """What ``--label`` says; block, order and attempt as whole numbers. Raises ConfigError."""
        labels: dict[str, str | int] = {}
        for item in self.label:
            name, _, text = item.partition("=")
            labels[name] = Whole(0).check(f"--label {name}", Whole(0).read(text)) if name in _COUNTED else text
        return labels

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Config:
        """A config from field names and values, as in a plan. Unknown names raise ConfigError."""
        names = [field.name for field in dataclasses.fields(cls)]
        for name in settings:
            if name not in names:
                raise ConfigError(f"unknown setting {shown(name)}; the settings are {', '.join(names)}")
        return cls(**settings)


_COUNTED = ("block", "order", "attempt")


# --- the command line -----------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def parser() -> argparse.ArgumentParser:
    """A parser with one flag for each field; it raises ConfigError instead of exiting."""
    made = _Parser(
        prog="python -m hvdkan.train",
        usage="%(prog)s [settings]",
        description="Train a Kolmogorov-Arnold network, on one process or under mpirun, srun, horovodrun or torchrun.",
        allow_abbrev=False,
    )
    for field in dataclasses.fields(Config):
        kind, text = field.metadata["kind"], _help(field).replace("%", "%%")
        if isinstance(kind, Switch):
            action = argparse.BooleanOptionalAction if field.default else "store_true"
            made.add_argument(flag(field.name), action=action, default=field.default, help=text)
        elif isinstance(kind, Labels):
            made.add_argument(flag(field.name), action="append", default=None, help=text, metavar="NAME=VALUE")
        elif isinstance(kind, Wholes):
            made.add_argument(flag(field.name), nargs="+", default=None, help=text, metavar="N")
        else:
            made.add_argument(flag(field.name), default=None, help=text, metavar=kind.placeholder)
    return made


def _help(field: dataclasses.Field) -> str:
    """What a setting is for, and its default where the text does not tell it."""
    text, default = field.metadata["help"], field.default
    if default is None or default == () or isinstance(default, bool) or "default" in text:
        return text
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    return f"{text} (default {shown:g})" if isinstance(shown, float) else f"{text} (default {shown})"


def from_command_line(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Config:
    """The config that flags and :data:`VARIABLE` ask for; a flag beats the variable. Raises ConfigError."""
    given = vars(parser().parse_args(list(arguments)))
    settings: dict[str, Any] = {}
    for field in dataclasses.fields(Config):
        value = given[field.name]
        if value is None:
            continue
        if isinstance(field.metadata["kind"], Wholes):
            value = ",".join(value)
        settings[field.name] = field.metadata["kind"].read(value) if isinstance(value, str) else value
    if "allreduce" not in settings and environment.get(VARIABLE) is not None:
        settings["allreduce"] = _allreduce_of(environment[VARIABLE])
    return Config(**settings)


def _allreduce_of(value: str) -> str:
    # Horovod reads the variable with strtol, so that "true" would silently mean off.
    choices = {"0": "flat", "1": "hierarchical"}
    if value not in choices:
        raise ConfigError(f"{VARIABLE} is {shown(value)}; it must be 0 (flat) or 1 (hierarchical), or unset (stock)")
    return choices[value]


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")
