"""`python -m jobs.preflight`: the command line, and one line where this Python cannot even import it."""

import sys

from hvdkan.streams import outlive_readers
from jobs.preflight.findings import failure


def unusable(missing: ModuleNotFoundError) -> int:
    """Say that this is not the environment that was set up; the exit status."""
    remedy = "activate the environment (. .venv/bin/activate), or make it (make setup)"
    print(failure("python", f"{sys.executable} has no {missing.name}", remedy).lines(), flush=True)
    return 1


if __name__ == "__main__":
    outlive_readers()
    try:
        from jobs.preflight.cli import main
    except ModuleNotFoundError as error:
        sys.exit(unusable(error))
    sys.exit(main())
