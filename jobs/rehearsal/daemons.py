"""The daemons: munged, slurmctld and one slurmd a node, each in a session of its own."""

from __future__ import annotations

import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.rehearsal import cluster as names
from jobs.rehearsal import commands, config
from jobs.rehearsal.cluster import Cluster
from jobs.rehearsal.errors import Failed

#: A loaded machine is slow; a daemon that has not come by then does not come.
PATIENCE_S = 90.0


@dataclass(frozen=True)
class Daemon:
    """A running daemon and the log that tells why it ended."""

    name: str
    process: subprocess.Popen
    log: Path


def write_files(cluster: Cluster) -> None:
    """Configuration and key, all readable by root only as the directory is."""
    texts = {
        "slurm.conf": config.slurm_conf(cluster),
        "gres.conf": config.gres_conf(cluster),
        "hosts": config.hosts(cluster, socket.gethostname()),
        **{f"nodes/{host}/start.sh": config.start_script(cluster, host) for host in cluster.hosts},
    }
    for name, text in texts.items():
        cluster.path(name).write_text(text)
    prolog = cluster.path("taskprolog.sh")
    prolog.write_text(config.task_prolog(cluster))
    prolog.chmod(0o700)
    key = cluster.path("munge", "key")
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))


def start(cluster: Cluster) -> list[Daemon]:
    """Start all; returns when munged answers and the others run. Raises :class:`Failed`."""
    munged = _start_munged(cluster)
    started = [munged]
    wait(lambda: cluster.path("munge", "socket").exists(), started, "munged's socket")
    started += [_start_host(cluster, host) for host in cluster.hosts]
    return started


def wait(done: Callable[[], bool], daemons: Sequence[Daemon], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for ``done``. Raises :class:`Failed`, with the end of a log, when a daemon ends or the time is up."""
    until = time.monotonic() + patience_s
    while not done():
        for daemon in daemons:
            if daemon.process.poll() is not None:
                raise Failed(f"{daemon.name} ended with status {daemon.process.returncode}{tail(daemon.log)}")
        if time.monotonic() > until:
            raise Failed(f"waited {patience_s:.0f} s for {what}{tail(*(daemon.log for daemon in daemons[1:3]))}")
        time.sleep(0.1)


def tail(*logs: Path, lines: int = 5) -> str:
    """The last lines of logs, each under its name."""
    text = ""
    for log in logs:
        try:
            last = log.read_text(errors="replace").splitlines()[-lines:]
        except OSError:
            continue
        text += "".join(f"\n  {log.name}: {line}" for line in last)
    return text


def _start_munged(cluster: Cluster) -> Daemon:
    at = cluster.path
    command = ["munged", "--foreground", "--num-threads=4"]
    # --force: the directory lets nobody else in, which munged takes for a mistake.
    command += ["--force", f"--key-file={at('munge', 'key')}", f"--socket={at('munge', 'socket')}"]
    command += [f"--pid-file={at('munge', 'pid')}", f"--seed-file={at('munge', 'seed')}"]
    return _spawn("munged", [*command, f"--log-file={at('log', 'munged.log')}"], at("log", "munged.out"))


def _start_host(cluster: Cluster, host: str) -> Daemon:
    """Enter the host's network, take its own mounts, host name and IPC, and run its start script.

    Not `ip netns exec`: that mounts /sys anew and Slurm no longer finds the cgroups it insists on.
    """
    command = ["nsenter", f"--net=/run/netns/{names.namespace(cluster.name, host)}"]
    command += ["unshare", "--mount", "--propagation", "private", "--uts", "--ipc"]
    command += ["sh", str(cluster.path("nodes", host, "start.sh"))]
    return _spawn(host, command, cluster.path("log", f"{host}.out"))


def _spawn(name: str, command: list[str], log: Path) -> Daemon:
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=commands.bare_environment(),
            cwd="/",
            start_new_session=True,
        )
    return Daemon(name, process, log)
