"""What a rehearsal cluster is: one frozen description, from which every name, address and path follows."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from jobs.rehearsal.errors import Refused

MOST_NODES = 32
MOST_GPUS = 16
MOST_CORES = 256
CONTROLLER = "controller"
DEFAULT_NAME = "rehearsal"
#: A path of a Unix socket holds 107 bytes and its end.
LONGEST_SOCKET = 107
_RATES = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_DELAYS = {"us": 1, "ms": 10**3}


@dataclass(frozen=True)
class Cluster:
    """One cluster. ``rate_bits`` (bit/s) and ``delay_us`` (one way, microseconds) are None where not asked for."""

    name: str
    directory: str
    network: str
    nodes: int = 4
    gpus: int = 2
    cores: int = 1
    machine_cores: int = 1
    memory_mb: int = 1024
    rate_bits: int | None = None
    delay_us: int | None = None

    @property
    def node_names(self) -> list[str]:
        return [f"node{number}" for number in range(1, self.nodes + 1)]

    @property
    def hosts(self) -> list[str]:
        """The controller and the nodes."""
        return [CONTROLLER, *self.node_names]

    @property
    def gateway(self) -> str:
        """The bridge's own address: this is how nodes reach srun in the outer shell."""
        return self._address(1)

    def address(self, host: str) -> str:
        return self._address(2 if host == CONTROLLER else 10 + int(host.removeprefix("node")))

    def path(self, *parts: str) -> Path:
        return Path(self.directory, *parts)

    def _address(self, number: int) -> str:
        return str(ipaddress.ip_network(self.network)[number])

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Cluster:
        return cls(**json.loads(text))


# --- names: all of them follow from the cluster's name alone, so that `down` needs nothing else ---


def check_name(text: str) -> str:
    """A cluster's name. Raises :class:`Refused` for one that cannot name a namespace or a directory."""
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,23}", text):
        raise Refused(f"--name is {text!r}; it must be a letter, then letters, digits and '-', lower case, 24 at most")
    return text


def bridge(name: str) -> str:
    """Interface names hold 15 characters: a digest of the name, and room for the port's number."""
    return "hk" + hashlib.sha256(name.encode()).hexdigest()[:7]


def port(name: str, host: str) -> str:
    """The end, on the bridge, of a host's link."""
    return bridge(name) + ("c" if host == CONTROLLER else "n" + host.removeprefix("node"))


def namespace(name: str, host: str) -> str:
    return f"hvdkan-{name}-{host}"


def owns_link(name: str, link: str) -> bool:
    return re.fullmatch(re.escape(bridge(name)) + r"(c|n\d+)?", link) is not None


def owns_namespace(name: str, candidate: str) -> bool:
    return re.fullmatch(f"hvdkan-{re.escape(name)}-({CONTROLLER}|node\\d+)", candidate) is not None


def subnet(name: str, taken: list[str]) -> str:
    """A network of 256 addresses for ``name``; beside the ``taken`` ones (networks, as text) where they overlap.

    Raises :class:`Refused` where none is free.
    """
    used = [ipaddress.ip_network(text, strict=False) for text in taken]
    start = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)
    for step in range(64 * 256):
        second, third = divmod((start + step) % (64 * 256), 256)
        candidate = ipaddress.ip_network(f"10.{192 + second}.{third}.0/24")
        if not any(candidate.overlaps(other) for other in used if other.prefixlen > 0):
            return str(candidate)
    raise Refused("no free network within 10.192.0.0/10: other interfaces or routes hold all of it")


# --- values of the command line ---


def whole(option: str, text: str, least: int, most: int) -> int:
    """A whole number from the command line. Raises :class:`Refused`."""
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise Refused(f"{option} is {text!r}; it must be a whole number from {least} to {most}")
    return int(text)


def rate(text: str) -> int:
    """Bits a second of ``1gbit``, ``200mbit`` or ``2.5gbit``. Raises :class:`Refused`."""
    bits = _quantity(text, _RATES)
    if bits is None or not 10**6 <= bits <= 10**11:
        raise Refused(f"--cross-rate is {text!r}; it must be a number and kbit, mbit or gbit, from 1mbit to 100gbit")
    return bits


def delay(text: str) -> int:
    """Microseconds of ``50us`` or ``1ms``. Raises :class:`Refused`."""
    microseconds = _quantity(text, _DELAYS)
    if microseconds is None or not 1 <= microseconds <= 10**6:
        raise Refused(f"--cross-delay is {text!r}; it must be a number and us or ms, from 1us to 1000ms")
    return microseconds


def _quantity(text: str, units: dict[str, int]) -> int | None:
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([a-z]+)", text)
    if match is None or match[2] not in units:
        return None
    return round(float(match[1]) * units[match[2]])


def check_directory(directory: Path) -> Path:
    """An absolute path that Slurm's configuration can hold. Raises :class:`Refused`."""
    path = Path(os.path.abspath(directory))  # noqa: PTH100 - resolve() would follow the link that `down` looks for
    if not re.fullmatch(r"[A-Za-z0-9._/+-]+", str(path)):
        raise Refused(f"--directory is {str(directory)!r}; it may hold letters, digits and . _ / + - only")
    if len(str(path / "munge" / "socket").encode()) > LONGEST_SOCKET:
        raise Refused(f"--directory is {str(directory)!r}; a socket's path in it would be over {LONGEST_SOCKET} bytes")
    return path
