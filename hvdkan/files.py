"""Files that appear complete or not at all. Standard library only."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream whose bytes become ``path`` when the block ends, and nothing when it raises.

    A rename within a directory is whole on NFS and Lustre too. Permissions are those of an ordinary new file. Where
    ``path`` is a symbolic link, the file that it names is written. Raises OSError, also where that is no regular file.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is {kind(path.stat().st_mode)}; it must be a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = _beside(path)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def why_unwritable(name: str, *, replaced: bool = False) -> str | None:
    """What stands in the way of writing the file ``name``, in words, or None. Its directory is made if need be.

    ``replaced``: by :func:`replacing`, which needs to make another file beside it.
    """
    path = Path(os.path.realpath(name))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        existed = os.path.lexists(path)
        if existed and not stat.S_ISREG(mode := path.stat().st_mode):
            # Before it is opened: a FIFO would wait for its reader.
            return f"{kind(mode)}; it must be a file"
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
        if replaced:
            handle, temporary = _beside(path)
            os.close(handle)
            Path(temporary).unlink()
    except OSError as error:
        return f"which cannot be written: {error.strerror}"
    return None


def _beside(path: Path) -> tuple[int, str]:
    # Not named after the file: its name may be as long as names can be.
    return tempfile.mkstemp(dir=path.parent, prefix=".writing-", suffix=".part")


def kind(mode: int) -> str:
    """What a file of ``mode`` is that is no regular one, in words."""
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
