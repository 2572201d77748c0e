"""What a network learns: formulas, tables that scikit-learn brings along, and a user's own file.

Every rank makes or reads the same data, so that nothing has to be sent and a global batch is the same set of samples
whatever the number of ranks. numpy only, but for what a task itself needs.
"""

from __future__ import annotations

from collections.abc import Sequence

from hvdkan.tasks.batches import global_batches, share
from hvdkan.tasks.bundled import BUNDLED
from hvdkan.tasks.data import Data, DataError, Scaling
from hvdkan.tasks.feynman import FEYNMAN
from hvdkan.tasks.formulas import TOYS, Formula, sampled
from hvdkan.tasks.readers import READERS
from hvdkan.tasks.special import SPECIAL
from hvdkan.tasks.tables import divided, from_file

__all__ = [
    "BUNDLED",
    "FORMULAS",
    "NAMES",
    "READERS",
    "TABLE",
    "Data",
    "DataError",
    "Formula",
    "Scaling",
    "global_batches",
    "make_data",
    "share",
]

FORMULAS = {**TOYS, **FEYNMAN, **SPECIAL}
#: The task that is a user's own file.
TABLE = "table"
NAMES = (*FORMULAS, *BUNDLED, TABLE)


def make_data(
    task: str,
    samples: int | None,
    test_samples: int | None,
    noise: float,
    seed: int,
    file: str | None = None,
    target: str | None = None,
    inputs: Sequence[str] | None = None,
) -> Data:
    """The data of a task; the same on all ranks. Raises DataError.

    ``file``, ``target`` and ``inputs`` are of the task ``table``; numbers of samples may be None for tables alone, and
    ``noise`` is of formulas alone.
    """
    if task in FORMULAS:
        return sampled(FORMULAS[task], samples, test_samples, noise, seed)
    table = BUNDLED[task]() if task in BUNDLED else from_file(file, target, inputs)
    return divided(table, samples, test_samples, seed)
