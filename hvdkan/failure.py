"""How a job ends when one of its ranks cannot go on: its own traceback first, a record, and all ranks with it."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from hvdkan import record, results
from hvdkan.backends.world import abort
from hvdkan.config import Config
from hvdkan.signals import Stopped

#: Seconds for a launcher to pass the traceback on before it reports the end of the job in its own words.
_FORWARDING_S = 0.3
#: Errors that follow from the end of another rank come a moment after it: leave the first cause time to be written.
_SECONDARY_S = 1.0
#: A signal comes to all ranks of a job: one record is enough, and rank 0 writes it, if it is there. Open MPI kills what
#: is left a second after its SIGTERM.
_SIGNALLED_S = 0.2


def end_job(config: Config, run_id: str, rank: int, error: BaseException) -> NoReturn:
    """Show ``error``, write the failed record unless another rank was first, and end the job from this rank."""
    host = socket.gethostname()
    if isinstance(error, Stopped):
        time.sleep(_SIGNALLED_S if rank != 0 else 0.0)
        print(f"\nrank {rank} on {host}: {error}", file=sys.stderr, flush=True)
    else:
        time.sleep(_SECONDARY_S if _is_secondary(error) else 0.0)
        text = "".join(traceback.format_exception(error))
        print(f"rank {rank} on {host} failed:\n{text}", file=sys.stderr, end="", flush=True)
    if config.record is not None:
        with contextlib.suppress(OSError):
            record.append_first(Path(config.record), results.failed(config, run_id, rank, host, error))
    time.sleep(_FORWARDING_S)
    status = 128 + error.number if isinstance(error, Stopped) else error.code if isinstance(error, SystemExit) else 1
    abort(status if isinstance(status, int) and 0 < status < 256 else 1)


def _is_secondary(error: BaseException) -> bool:
    """Whether this may be the echo of another rank's end: what communication libraries raise when a peer is gone."""
    text = f"{type(error).__name__} {error}"
    return any(
        word in text for word in ("HorovodInternalError", "Connection", "gloo", "NCCL", "MPI_ERR", "DistBackend")
    )
