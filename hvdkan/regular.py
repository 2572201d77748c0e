"""Reading files that somebody else may have put there: regular ones, and no more of them than is asked for.

A name in a directory of results may belong to a pipe or a device, which is read for ever. Standard library only.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class NotReadable(ValueError):
    """A file that is none to be read; the message is one line that does not name it."""


def check(path: Path) -> None:
    """Raises :class:`NotReadable` where ``path`` is a pipe or a device, OSError where it is a directory or nothing."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        # Told from its status, for a pipe that is opened waits for its writer.
        raise NotReadable("not a regular file")


def read_text(path: Path, most: int) -> str:
    """The UTF-8 text of a file of at most ``most`` bytes. Raises :class:`NotReadable` or OSError."""
    check(path)
    with path.open("rb") as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise NotReadable(f"larger than {most // 1024:,} KiB")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise NotReadable(f"not UTF-8 (byte {error.start})") from error
