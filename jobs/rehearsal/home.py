"""The private directory of a cluster: where it is, whose it is, and who is at work in it.

It is made with mode 0700 and holds everything: configuration, key, sockets, logs, state, the nodes' scratch. Where it
is not in /tmp (``--directory``, XDG_RUNTIME_DIR), a link there leads to it, so that the name alone finds the cluster.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from jobs.rehearsal.cluster import Cluster
from jobs.rehearsal.errors import Failed, NotUp, Refused

DESCRIPTION = "cluster.json"
UP = "up.pid"
#: Made first and removed last: but for the usual places, only a directory with it, or an empty one, is removed.
OURS = ".hvdkan-rehearsal"


def usual(name: str) -> Path:
    """Where a cluster lives unless told otherwise."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / f"hvdkan-rehearsal-{name}" if runtime else anchor(name)


def places(name: str, given: Path | None = None) -> list[Path]:
    """Every place that may hold a cluster of this name; what links lead to comes before the links."""
    found = [given] if given is not None else []
    for place in dict.fromkeys([usual(name), anchor(name)]):
        if place.is_symlink() and _is_mine(place):
            found.append(place.readlink())
        found.append(place)
    return list(dict.fromkeys(found))


def make(cluster: Cluster) -> None:
    """The empty directory, and the link to it. Raises :class:`Refused` where something is there already."""
    home, link = Path(cluster.directory), anchor(cluster.name)
    if not home.parent.is_dir():
        raise Refused(f"{home.parent} is not a directory; name one below which the cluster's may be made")
    if os.path.lexists(home):
        raise Refused(f"{home} is there already; name a directory that is not")
    if home != link:
        # First, so that an `up` killed right here leaves nothing that its name does not find.
        try:
            link.symlink_to(home)
        except OSError as error:
            raise Refused(f"{link}: {error.strerror}; is a cluster of this name up?") from None
    try:
        home.mkdir(mode=0o700)
    except OSError as error:
        if home != link:
            link.unlink()
        raise Refused(f"{home}: {error.strerror}") from None
    (home / OURS).touch()


def fill(cluster: Cluster) -> None:
    """Write the description and make the folders."""
    home = Path(cluster.directory)
    (home / UP).write_text(str(os.getpid()))
    (home / DESCRIPTION).write_text(cluster.to_json())
    for folder in ("munge", "state", "run", "log", "dev"):
        (home / folder).mkdir()
    for host in cluster.hosts:
        for folder in ("spool", "tmp", "cgroup"):
            (home / "nodes" / host / folder).mkdir(parents=True)
    for number in range(cluster.gpus):
        # Slurm asks of a GPU that its file be there and be a device.
        (home / "dev" / f"gpu{number}").symlink_to("/dev/null")


def find(name: str, given: Path | None = None) -> Cluster:
    """The description of the cluster ``name``. Raises :class:`NotUp`."""
    for place in places(name, given):
        if not place.is_symlink() and _is_mine(place):
            with contextlib.suppress(OSError, ValueError, TypeError):
                cluster = Cluster.from_json((place / DESCRIPTION).read_text())
                if cluster.name == name:
                    return cluster
    raise NotUp(f"no cluster named {name!r} is up; start one with: python -m jobs.rehearsal up --name {name}")


def check_given(given: Path | None) -> None:
    """What ``--directory`` names is a cluster's, or nothing yet. Raises :class:`Refused`."""
    if given is not None and os.path.lexists(given) and not _is_ours(given):
        raise Refused(f"{given} is no directory of a rehearsal cluster; it was left alone")


def remove(name: str, given: Path | None = None) -> bool:
    """Remove the directory and the link to it; whether there was anything. Raises :class:`Refused` for another's."""
    found = False
    for place in places(name, given):
        if not os.path.lexists(place):
            continue
        if not _is_mine(place):
            raise Refused(f"{place} belongs to another user; nothing was removed there")
        if place.is_symlink():
            place.unlink()
        elif place in (usual(name), anchor(name)) or _is_ours(place):
            _remove_tree(place)
        else:
            # A link leads to what somebody put there after an `up` was killed.
            continue
        found = True
    return found


@contextlib.contextmanager
def locked(name: str, given: Path | None, wait_s: float) -> Iterator[bool]:
    """Hold the directory while at work in it; where there is none there is nothing to hold.

    An `up` that holds it is told to stop, and takes down what it made; gives whether that was so. Raises
    :class:`Failed` after ``wait_s``.
    """
    stopped = False
    with contextlib.ExitStack() as stack:
        for place in places(name, given):
            if place.is_dir() and not place.is_symlink() and _is_mine(place):
                stopped = stack.enter_context(_lock(place, wait_s)) or stopped
        yield stopped


@contextlib.contextmanager
def _lock(place: Path, wait_s: float) -> Iterator[bool]:
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        yield False
        return
    try:
        until, told = time.monotonic() + wait_s, False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    told = _stop_up(place)
                if time.monotonic() > until:
                    raise Failed(f"{place} is held by another `up` or `down` for {wait_s:.0f} s already") from None
                time.sleep(0.1)
        yield told
    finally:
        os.close(descriptor)


def _stop_up(place: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        pid = int((place / UP).read_text())
        if b"rehearsal" in Path(f"/proc/{pid}/cmdline").read_bytes() and pid != os.getpid():
            os.kill(pid, signal.SIGTERM)
            return True
    return False


def anchor(name: str) -> Path:
    """The place in /tmp: the directory itself or a link to it."""
    return Path(f"/tmp/hvdkan-rehearsal-{name}-{os.geteuid()}")


def _is_mine(place: Path) -> bool:
    try:
        status = place.lstat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and (stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode))


def _is_ours(place: Path) -> bool:
    """A directory of this user's that a cluster made, or that is empty."""
    if place.is_symlink() or not place.is_dir() or not _is_mine(place):
        return False
    return (place / OURS).exists() or not any(place.iterdir())


def _remove_tree(place: Path) -> None:
    """All that is in it, then the file that says whose it is: one that was removed by half is still known."""
    for _ in range(20):
        for entry in place.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != OURS:
                entry.unlink(missing_ok=True)
        if [entry.name for entry in place.iterdir()] in ([OURS], []):
            break
        # A dying daemon wrote a last file.
        time.sleep(0.1)
    (place / OURS).unlink(missing_ok=True)
    place.rmdir()
