"""Output whose reader is gone (``| head``), or that was closed (``2>&-``), ends no work. Standard library only."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO


def outlive_readers() -> None:
    """From here on, standard output and error lose what nobody takes instead of raising. For a program's start."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            # Closed from the start: else the next file or socket to be opened gets the number, and C libraries' words.
            _discard(number)
            stream = os.fdopen(number, "w", closefd=False)
        setattr(sys, name, Lasting(stream))


class Lasting:
    """``stream`` as it is, but writing to it never raises OSError."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lost(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lost(error)

    def _lost(self, error: OSError) -> None:
        # A full disk may have room again; a reader does not come back, and what waits for it is tried at every write.
        if isinstance(error, BrokenPipeError):
            _discard(self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _discard(number: int) -> None:
    """Let what is written to a file descriptor vanish."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)
