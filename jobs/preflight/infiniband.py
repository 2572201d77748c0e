"""InfiniBand devices and their ports, and the variables that choose among them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from jobs.preflight.findings import Finding, named, ok, warning

VARIABLES = ("NCCL_IB_HCA", "UCX_NET_DEVICES")
_NOT_DEVICES = ("all", "")


@dataclass(frozen=True)
class Port:
    """A port: ``device:number``, its state (ACTIVE, DOWN, ...), link layer (InfiniBand, Ethernet) and rate."""

    device: str
    number: int
    state: str
    layer: str
    rate: str

    @property
    def name(self) -> str:
        return f"{self.device}:{self.number}"


# --- look ---


def look(root: Path = Path("/sys/class/infiniband")) -> list[Port]:
    """The ports of this machine, none where there is no InfiniBand."""
    found = []
    for place in sorted(root.glob("*/ports/*"), key=str):
        # A state reads "4: ACTIVE".
        state = _read(place / "state").rpartition(":")[2].strip()
        rate = _read(place / "rate")
        number = int(place.name) if place.name.isdigit() else 1
        found.append(Port(place.parts[-3], number, state, _read(place / "link_layer"), rate))
    return found


def look_interfaces(root: Path = Path("/sys/class/net")) -> list[str]:
    """Network interfaces, which UCX_NET_DEVICES may name too."""
    return sorted(place.name for place in root.glob("*"))


def look_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    return {name: environment[name] for name in VARIABLES if name in environment}


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return "unknown"


# --- judge ---


def judge(ports: Sequence[Port], interfaces: Sequence[str], variables: Mapping[str, str]) -> list[Finding]:
    """The devices, and each variable that is set."""
    found = [_judge_ports(ports, variables)]
    for variable in VARIABLES:
        if variable in variables:
            found.append(_judge_variable(variable, variables[variable], ports, interfaces))
    return found


def _judge_ports(ports: Sequence[Port], variables: Mapping[str, str]) -> Finding:
    check = "InfiniBand"
    if not ports:
        return ok(check, "none here; nodes talk over TCP")
    active = [port for port in ports if port.state == "ACTIVE"]
    if not active:
        shown = named([f"{port.name} {port.state}" for port in ports])
        return warning(check, f"no port is active: {shown}", "have the link seen to, or use another node")
    layers = {layer: [port.name for port in active if port.layer == layer] for layer in ("InfiniBand", "Ethernet")}
    if layers["InfiniBand"] and layers["Ethernet"] and "NCCL_IB_HCA" not in variables:
        return warning(
            check,
            f"active are {named(layers['InfiniBand'])}, and over Ethernet {named(layers['Ethernet'])}: NCCL takes both",
            f"export NCCL_IB_HCA='={','.join(layers['InfiniBand'])}' (with = it is the very name)",
        )
    return ok(check, f"active: {named([f'{port.name} ({port.rate})' for port in active])}")


def _judge_variable(variable: str, value: str, ports: Sequence[Port], interfaces: Sequence[str]) -> Finding:
    """Whether each device that ``value`` names is there, and whether it would carry anything."""
    known = {port.name for port in ports} | {port.device for port in ports}
    if variable == "UCX_NET_DEVICES":
        known |= set(interfaces)
    if value.startswith("^"):
        return ok(variable, f"{value!r} only leaves devices out")
    words = [word.strip() for word in value.removeprefix("=").split(",")]
    exact = variable == "UCX_NET_DEVICES" or value.startswith("=")
    chosen = {word: [name for name in known if _is_meant(word, name, exact)] for word in words}
    missing = [word for word in words if word not in _NOT_DEVICES and not chosen[word]]
    if missing:
        there = [port.name for port in ports] + [name for name in interfaces if variable == "UCX_NET_DEVICES"]
        remedy = f"name some of {named(there)}, or unset it" if there else "unset it on nodes without InfiniBand"
        return warning(variable, f"{value!r} names {named(missing)}, which is not here", remedy)
    states = {port.name: port.state for port in ports}
    # A beginning or a pattern that means several ports is served by one of them.
    meant = {word: {states[name] for name in chosen[word] if name in states} for word in words}
    down = [word for word, found in meant.items() if found and "ACTIVE" not in found]
    if down:
        return warning(variable, f"{value!r} names {named(down)}, which is not active", "have the link seen to")
    return ok(variable, f"{value!r} names what is here")


def _is_meant(word: str, name: str, exact: bool) -> bool:
    """NCCL takes beginnings of names unless "=" stands before; UCX names, with its patterns."""
    return fnmatchcase(name, word) or (not exact and name.startswith(word))
