"""hvdkan.train in another directory on some ranks: ``elsewhere.py '{"1": "/tmp/other"}' FLAGS...``."""

import json
import os
import sys

from hvdkan import train
from hvdkan.launcher import detect


def main(directories, *flags):
    os.chdir(json.loads(directories)[str(detect().rank)])
    return train.main([*flags])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
