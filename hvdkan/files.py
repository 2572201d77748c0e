"""Files that appear complete or not at all. Standard library only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream whose bytes become ``path`` when the block ends, and nothing when it raises.

    A rename within a directory is whole on NFS and Lustre too. Permissions are those of an ordinary new file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
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


def why_unwritable(name: str) -> str | None:
    """What stands in the way of writing the file ``name``, in words, or None. Its directory is made if need be."""
    path = Path(name)
    if path.is_dir():
        return "a directory; it must be a file"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        existed = path.exists()
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        return f"which cannot be written: {error.strerror}"
    return None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
