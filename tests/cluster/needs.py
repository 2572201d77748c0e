"""What a cluster needs of this machine."""

import os

import pytest

from jobs.rehearsal import requirements
from jobs.rehearsal.errors import RehearsalError


def required(rate):
    """Skip by name and reason where a cluster (with shaped links) cannot be; CI has everything it takes."""
    try:
        requirements.check_root()
        requirements.check_programs()
        requirements.check_kernel(rate=rate, delay=False)
    except RehearsalError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))
