"""Run under a launcher: one training for each line of a file of flags, in one process; the records go to another."""

import sys
from pathlib import Path

from hvdkan import train


def main(flags_file, record):
    for line in Path(flags_file).read_text().splitlines():
        # Flags of its own come last, and win.
        status = train.main(["--record", record, *line.split()])
        print("ran", status, line, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
