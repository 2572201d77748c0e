"""hvdkan.train with other flags or variables on some ranks: ``apart.py '{"1": ["--grid", "5"]}' FLAGS...``."""

import json
import os
import sys

from hvdkan import train
from hvdkan.launcher import detect


def main(ranks, *flags):
    own = json.loads(ranks).get(str(detect().rank), [])
    os.environ.update(word.split("=") for word in own if "=" in word)
    return train.main([*flags, *(word for word in own if "=" not in word)])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
