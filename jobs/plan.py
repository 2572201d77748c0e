"""A study's plan: a TOML file that names the variants, how often each is launched, and what is compared.

study = "quick"                                             # names the directory of results
blocks = 3                                                  # launches of each variant
primary = [["mpi-flat", "mpi-hierarchical"]]                # comparisons fixed before anything runs
aa = [["mpi-flat", "mpi-flat-again"]]                       # the same twice: the noise floor
[common]                                                    # settings of hvdkan.config.Config for all variants
epochs = 2
[[variant]]
name = "mpi-flat"
ranks = 4                                                   # or placement = "4G2N": four workers on two nodes
allreduce = "flat"                                          # settings of this one
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdkan import regular
from hvdkan.config import Config, ConfigError

#: What a launch is told by the runner, not by the plan.
RESERVED = ("record", "save", "label", "dry_run")
#: More is a slip of the finger: it would fill the memory before anything ran.
MOST_BLOCKS, MOST_RANKS = 10_000, 999_999
MOST_BYTES, MOST_SECONDS, MOST_SEED = 4 * 2**20, 10**9, 2**63 - 1
_OWN_KEYS = ("name", "ranks", "placement")
SETTINGS = tuple(field.name for field in dataclasses.fields(Config) if field.name not in RESERVED)
#: Two variants can be compared only where these agree (and the samples of a step over all ranks).
PARITY = (
    "task", "data", "target", "inputs", "samples", "noise", "epochs", "learning_rate", "seed", "dtype", "device",
    "threads", "compression", "warmup_steps", "probe_steps",
)  # fmt: skip

_PLACEMENT = re.compile(r"([1-9][0-9]{0,5})G([1-9][0-9]{0,5})N")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAME_RULE = "letters, digits, '.', '_' and '-', at most 64, beginning with a letter or a digit"


class PlanError(ValueError):
    """A plan that cannot be run; the message is one line that names the value and the valid choices."""


@dataclass(frozen=True)
class Variant:
    """One configuration of a study. ``settings`` holds what the plan says, ``config`` everything, resolved.

    ``nodes`` is the number of nodes in the placement that the plan names, None where it names none.
    """

    name: str
    ranks: int
    settings: dict[str, Any]
    config: Config
    nodes: int | None = None

    @property
    def placement(self) -> str:
        """Workers and nodes as planned, ``4G2N``; simulated nodes count as nodes."""
        return f"{self.ranks}G{self.nodes or len(self.config.simulate_nodes or (self.ranks,))}N"

    @property
    def hosts(self) -> int | None:
        """How many real nodes it must run on: all simulated nodes are on one; None: as few as hold it."""
        return 1 if self.config.simulate_nodes else self.nodes


@dataclass(frozen=True)
class Plan:
    """A validated plan. ``timeout_s`` limits one launch; ``text`` is the file as it was read."""

    study: str
    blocks: int
    variants: tuple[Variant, ...]
    primary: tuple[tuple[str, str], ...]
    aa: tuple[tuple[str, str], ...]
    order_seed: int
    timeout_s: float
    text: str


def load(path: Path) -> Plan:
    """Read and check a plan. Raises :class:`PlanError` with the file's name in front."""
    try:
        text = regular.read_text(path, MOST_BYTES)
    except OSError as error:
        raise PlanError(f"{path}: {error.strerror}") from error
    except regular.NotReadable as error:
        raise PlanError(f"{path}: {error}") from error
    try:
        return parse(text)
    except ValueError as error:
        raise PlanError(f"{path}: {error}") from error


def parse(text: str) -> Plan:
    """A plan from TOML text. Raises ``ValueError`` (:class:`PlanError`, or tomllib's for what is not TOML)."""
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise PlanError("nested too deeply") from None
    _known(table, ("study", "blocks", "order_seed", "timeout_s", "primary", "aa", "common", "variant"), "")
    for key in ("study", "blocks", "variant"):
        if key not in table:
            raise PlanError(f"no {key} is given")
    common = table.get("common", {})
    if not isinstance(common, dict):
        raise PlanError("common must be a table: [common]")
    _known(common, SETTINGS, "[common]: ")
    variants = _variants(table["variant"], common)
    plan = Plan(
        study=_name(table["study"], "study"),
        blocks=_whole(table["blocks"], "blocks", 1, MOST_BLOCKS),
        variants=variants,
        primary=_pairs(table.get("primary", []), "primary", variants),
        aa=_pairs(table.get("aa", []), "aa", variants),
        order_seed=_whole(table.get("order_seed", 0), "order_seed", 0, MOST_SEED),
        timeout_s=_seconds(table.get("timeout_s", 300)),
        text=text,
    )
    _check_comparisons(plan)
    return plan


def difference(old: Plan, new: Plan) -> str | None:
    """The first difference that forbids adding launches of ``new`` to records of ``old``, in words, or None.

    Other numbers of blocks and another time limit are no obstacle. Other comparisons are: they are named beforehand.
    """
    before, after = ({variant.name: variant for variant in plan.variants} for plan in (old, new))
    for name in before:
        if name not in after:
            return f"variant {name} is gone"
    for name in after:
        if name not in before:
            return f"variant {name} is new"
    for name, variant in after.items():
        if said := _variant_difference(before[name], variant):
            return f"variant {name}: {said}"
    for key in ("primary", "aa", "order_seed"):
        if getattr(old, key) != getattr(new, key):
            return f"{key} was {_shown(getattr(old, key))} and is {_shown(getattr(new, key))}"
    return None


def _variant_difference(old: Variant, new: Variant) -> str | None:
    pairs = {"ranks": (old.ranks, new.ranks), "nodes of the placement": (old.nodes, new.nodes)}
    pairs |= {key: (getattr(old.config, key), getattr(new.config, key)) for key in SETTINGS}
    return next((f"{key} was {_shown(a)} and is {_shown(b)}" for key, (a, b) in pairs.items() if a != b), None)


def _variants(tables: Any, common: dict[str, Any]) -> tuple[Variant, ...]:
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise PlanError("variant must be one table or more: [[variant]]")
    variants: dict[str, Variant] = {}
    for number, table in enumerate(tables, start=1):
        if "name" not in table:
            raise PlanError(f"variant {number}: no name is given")
        name = _name(table["name"], f"variant {number}: name")
        if name in variants:
            raise PlanError(f"variant {name} is given twice; each needs a name of its own")
        _known(table, (*_OWN_KEYS, *SETTINGS), f"variant {name}: ")
        variants[name] = _variant(name, table, common)
    return tuple(variants.values())


def _variant(name: str, table: dict[str, Any], common: dict[str, Any]) -> Variant:
    where = f"variant {name}: "
    ranks, placed_on = _placed(table, where)
    # Threads that follow the number of ranks would make variants of different size incomparable.
    settings = {"threads": 1} | common | {key: table[key] for key in table if key not in _OWN_KEYS}
    try:
        config = Config.from_dict(settings)
        config.global_batch(ranks)
    except ConfigError as error:
        raise PlanError(f"{where}{error}") from error
    nodes = config.simulate_nodes
    if nodes is not None and placed_on is not None:
        raise PlanError(f"{where}placement names real nodes and simulate_nodes simulated ones; give one of them")
    if nodes is not None and sum(nodes) != ranks:
        raise PlanError(f"{where}simulate_nodes {_shown(nodes)} holds {sum(nodes)} workers, and ranks is {ranks}")
    if config.backend == "single" and ranks != 1:
        raise PlanError(f"{where}ranks is {ranks}; with backend single it must be 1")
    return Variant(name, ranks, settings, config, placed_on)


def _placed(table: dict[str, Any], where: str) -> tuple[int, int | None]:
    """Ranks and nodes of a variant, from its placement or its ranks alone."""
    if "placement" not in table:
        if "ranks" not in table:
            raise PlanError(f"{where}no ranks are given, and no placement")
        return _whole(table["ranks"], f"{where}ranks", 1, MOST_RANKS), None
    value = table["placement"]
    match = _PLACEMENT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise PlanError(f"{where}placement is {_shown(value)}; it must be workers and nodes, as 4G2N")
    ranks, nodes = int(match[1]), int(match[2])
    if ranks % nodes:
        raise PlanError(f"{where}placement is {value}; {ranks} workers do not share out evenly over {nodes} nodes")
    if "ranks" in table and table["ranks"] != ranks:
        raise PlanError(f"{where}placement is {value} and ranks is {_shown(table['ranks'])}; leave ranks out")
    return ranks, nodes


def _pairs(value: Any, key: str, variants: tuple[Variant, ...]) -> tuple[tuple[str, str], ...]:
    names = [variant.name for variant in variants]
    if not isinstance(value, list):
        raise PlanError(f"{key} is {_shown(value)}; it must be a list of pairs of variants")
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2 or pair[0] == pair[1]:
            raise PlanError(f"{key} holds {_shown(pair)}; it must hold pairs of two variants, [baseline, candidate]")
        for name in pair:
            if name not in names:
                raise PlanError(f"{key} names the variant {_shown(name)}; the variants are {', '.join(names)}")
    made = tuple((first, second) for first, second in value)
    for number, pair in enumerate(made):
        if set(pair) in map(set, made[:number]):
            raise PlanError(f"{key} holds {_shown(pair)} twice")
    return made


def _check_comparisons(plan: Plan) -> None:
    variants = {variant.name: variant for variant in plan.variants}
    for first, second in plan.aa:
        if said := _variant_difference(variants[first], variants[second]):
            said = said.replace(" was ", " is ").replace(" and is ", " and ")
            raise PlanError(f"aa: {first} and {second} must be the same, but {said}")
    for first, second in plan.primary:
        one, other = variants[first], variants[second]
        pairs = {key: (getattr(one.config, key), getattr(other.config, key)) for key in PARITY}
        pairs["samples of a step"] = (one.config.global_batch(one.ranks), other.config.global_batch(other.ranks))
        for key, (a, b) in pairs.items():
            if a != b:
                raise PlanError(f"primary: {first} and {second} do unequal work: {key} is {_shown(a)} and {_shown(b)}")


def _known(table: dict[str, Any], valid: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in valid:
            raise PlanError(f"{where}unknown key {_shown(key)}; the valid ones are {', '.join(valid)}")


def _name(value: Any, what: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise PlanError(f"{what} is {_shown(value)}; it must be made of {_NAME_RULE}")
    return value


def _whole(value: Any, what: str, minimum: int, maximum: int | None = None) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < minimum or (maximum is not None and value > maximum):
        most = f" and at most {maximum}" if maximum is not None else ""
        raise PlanError(f"{what} is {_shown(value)}; it must be a whole number of at least {minimum}{most}")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_SECONDS:
        raise PlanError(
            f"timeout_s is {_shown(value)}; it must be a number of seconds above 0 and at most {MOST_SECONDS}"
        )
    return float(value)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        value = [list(item) if isinstance(item, tuple) else item for item in value]
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
