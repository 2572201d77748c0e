"""The command line.

    python -m jobs.rehearsal up [--nodes 4] [--gpus-per-node 2] [--cores-per-node N] [--cross-rate 1gbit]
                                [--cross-delay 50us] [--name rehearsal] [--directory DIR]
    python -m jobs.rehearsal down | status | shell | env

`up` starts the cluster and verifies it; where that fails everything is taken down again. `eval "$(... env)"` or
`shell` sets the variables with which srun, salloc, sbatch and the others work on it. `down` may be said twice.
Exit status: 0 done, 1 something did not work, 2 refused, 3 no such cluster is up or its controller does not answer
(status, shell, env), 128 + n ended by signal n.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hvdkan.streams import outlive_readers
from jobs.rehearsal import cluster as values
from jobs.rehearsal import home, lifecycle, network, outside, requirements, status
from jobs.rehearsal.cluster import Cluster
from jobs.rehearsal.errors import Refused, RehearsalError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    try:
        options = _parser().parse_args(arguments)
        name = values.check_name(options.name)
        directory = None if options.directory is None else values.check_directory(Path(options.directory))
        return _COMMANDS[options.command](name, directory, options)
    except lifecycle.Ended as ended:
        print("interrupted: everything was taken down again", file=sys.stderr)
        return 128 + ended.number
    except KeyboardInterrupt:
        print("interrupted before anything was made", file=sys.stderr)
        return 130
    except RehearsalError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.status


def _up(name: str, directory: Path | None, options: argparse.Namespace) -> int:
    usable = os.sched_getaffinity(0)
    wanted = {
        "nodes": values.whole("--nodes", options.nodes, 1, values.MOST_NODES),
        "gpus": values.whole("--gpus-per-node", options.gpus_per_node, 0, values.MOST_GPUS),
        "cores": values.whole("--cores-per-node", options.cores_per_node or str(len(usable)), 1, values.MOST_CORES),
        "rate_bits": None if options.cross_rate is None else values.rate(options.cross_rate),
        "delay_us": None if options.cross_delay is None else values.delay(options.cross_delay),
    }
    place = values.check_directory(directory or home.usual(name))
    requirements.check_root()
    requirements.check_programs()
    found = lifecycle.remains(name, directory)
    if found:
        raise Refused(
            f"cluster {name!r} is up, or remains of it are there ({found}); "
            f"take it down with: python -m jobs.rehearsal down --name {name}"
        )
    memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    cluster = Cluster(
        name=name,
        directory=str(place),
        network=values.subnet(name, network.taken()),
        # Slurm binds to CPUs by number: those from 0 on that this process may use.
        machine_cores=next(number for number in itertools.count() if number not in usable),
        memory_mb=memory_mb,
        **wanted,
    )
    lifecycle.check(cluster)
    lifecycle.up(cluster, _say)
    named = "" if name == values.DEFAULT_NAME else f" --name {name}"
    _say(f'up. To work on it: eval "$(python -m jobs.rehearsal env{named})"')
    return 0


def _down(name: str, directory: Path | None, _: argparse.Namespace) -> int:
    requirements.check_root()
    _say("down; nothing of it is left" if lifecycle.down(name, directory) else f"nothing is up under the name {name!r}")
    return 0


def _status(name: str, directory: Path | None, _: argparse.Namespace) -> int:
    for line in status.lines(_find(name, directory)):
        print(line)
    return 0


def _env(name: str, directory: Path | None, _: argparse.Namespace) -> int:
    print(outside.exports(_find(name, directory), os.environ.get("PATH", "")), end="")
    return 0


def _shell(name: str, directory: Path | None, _: argparse.Namespace) -> int:
    cluster = _find(name, directory)
    shell = os.environ.get("SHELL") or "/bin/sh"
    _say(f"{shell} on cluster {name}; leave it with exit, the cluster stays up")
    os.execvpe(shell, [shell], outside.environment(cluster, os.environ))


def _find(name: str, directory: Path | None) -> Cluster:
    requirements.check_root()
    return home.find(name, directory)


_COMMANDS = {"up": _up, "down": _down, "status": _status, "env": _env, "shell": _shell}


def _say(text: str) -> None:
    print(f"rehearsal: {text}", flush=True)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m jobs.rehearsal",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="{" + ",".join(_COMMANDS) + "}")
    for command in _COMMANDS:
        add = commands.add_parser(command, allow_abbrev=False).add_argument
        add("--name", default=values.DEFAULT_NAME, help="the cluster's name; clusters of different names do not meet")
        add("--directory", metavar="DIR", help="a directory to be made for everything the cluster holds")
        if command == "up":
            _add_up(add)
    return parser


def _add_up(add: Callable[..., Any]) -> None:
    add("--nodes", default="4", metavar="N", help="nodes (default: 4)")
    add("--gpus-per-node", default="2", metavar="N", help="GPUs of each node (default: 2)")
    add("--cores-per-node", metavar="N", help="cores of each node (default: as many as this machine has)")
    add("--cross-rate", metavar="RATE", help="rate of each node's link, as 200mbit or 1gbit (default: not shaped)")
    add("--cross-delay", metavar="TIME", help="delay from node to node, one way, as 50us (default: none added)")


if __name__ == "__main__":
    outlive_readers()
    sys.exit(main())
