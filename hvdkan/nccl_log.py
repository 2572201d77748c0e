"""What NCCL says of itself with NCCL_DEBUG=INFO: its channels, rings and trees, and over what they run.

Its lines are meant for people and change between versions: what is not understood is left out. Read from logs of NCCL
2.1x and 2.2x; no machine with several GPUs was at hand.
"""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

#: NCCL writes to standard output unless this names a file; it puts the host for %h and the process for %p.
FILE = "NCCL_DEBUG_FILE"

_VERSION = re.compile(r"NCCL version (\S+)")
_NETWORK = re.compile(r"NCCL INFO Using network (.+?)\s*$")
_CHANNELS = re.compile(r"NCCL INFO (\d+) coll channels")
_RING = re.compile(r"NCCL INFO Channel (\d+)/\d+ :((?:\s+\d+)+)\s*$")
_TREES = re.compile(r"NCCL INFO Trees? (\[\d+\].*)$")
_EDGE = re.compile(
    r"NCCL INFO Channel (\d+)(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\](?: \[(?:send|receive)\])? via (\S+)"
)
_CHOICE = re.compile(r"NCCL INFO (?:(\w+): )?(\d+) Bytes -> Algo (\w+) proto (\w+)")
#: By number up to 2.2x, by name later.
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")


def parse(lines: Iterable[str]) -> dict[str, Any]:
    """What the lines say; keys whose lines were not there are left out.

    ``channels``: of collectives. ``rings``: the ranks of each channel, in order, as rank 0 prints them. ``trees``: how
    many this rank is part of. ``transports``: connections by kind, such as ``{"SHM": 4, "NET/IB/GDRDMA": 2}``.
    ``choices``: calls by operation, bytes, algorithm and protocol (with NCCL_DEBUG_SUBSYS=TUNING).
    """
    found: dict[str, Any] = {}
    rings: dict[int, list[int]] = {}
    edges: dict[tuple[str, ...], str] = {}
    trees: set[str] = set()
    choices: Counter[str] = Counter()
    for line in lines:
        if match := _VERSION.search(line):
            found["version"] = match[1]
        elif match := _NETWORK.search(line):
            found["network"] = match[1]
        elif match := _CHANNELS.search(line):
            found["channels"] = max(int(match[1]), found.get("channels", 0))
        elif match := _RING.search(line):
            rings[int(match[1])] = [int(rank) for rank in match[2].split()]
        elif match := _TREES.search(line):
            trees |= set(re.findall(r"\[(\d+)\]", match[1]))
        elif match := _EDGE.search(line):
            edges[match[1], match[2], match[3]] = _transport(match[4])
        elif match := _CHOICE.search(line):
            algorithm, protocol = _named(match[3], _ALGORITHMS), _named(match[4], _PROTOCOLS)
            choices[f"{match[1] or 'call'} {match[2]} bytes: {algorithm} {protocol}"] += 1
    if rings:
        found["rings"] = [rings[channel] for channel in sorted(rings)]
    if trees:
        found["trees"] = len(trees)
    if edges:
        found["transports"] = dict(sorted(Counter(edges.values()).items()))
    if choices:
        found["choices"] = dict(choices)
    return found


def _transport(text: str) -> str:
    """``NET/IB/0/GDRDMA`` without the device's number, ``SHM/direct/direct`` and ``P2P/CUMEM/read`` by their kind."""
    kind, *rest = text.split("/")
    if kind != "NET":
        return f"{kind}/{rest[0]}" if kind == "P2P" and rest else kind
    rest = [part for part in rest if not re.match(r"\d+(\(\d+\))?$", part)]
    return "/".join((kind, *rest[:1], *(part for part in rest if part == "GDRDMA")))


def _named(text: str, names: tuple[str, ...]) -> str:
    return names[int(text)] if text.isdigit() and int(text) < len(names) else text


def own(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What this process's NCCL wrote to the file that NCCL_DEBUG_FILE names; empty where it wrote to none."""
    name = environment.get(FILE)
    if not name or environment.get("NCCL_DEBUG", "").upper() not in ("INFO", "TRACE"):
        return {}
    # NCCL cuts a full name at its first dot.
    path = Path(name.replace("%h", socket.gethostname().split(".")[0]).replace("%p", str(os.getpid())))
    try:
        # A terminal or a pipe, as /dev/stdout may be, would be read for ever.
        return parse(path.read_text(errors="replace").splitlines()) if path.is_file() else {}
    except OSError:
        return {}
