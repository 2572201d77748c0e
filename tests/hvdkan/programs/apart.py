"""hvdkan.train with other flags or variables on some ranks, once for each case: ``apart.py CASES FLAGS...``.

CASES is a JSON list of cases such as ``{"1": ["--grid", "5", "NAME=VALUE"]}``, each of them JSON text.
"""

import json
import os
import sys

from hvdkan import train
from hvdkan.launcher import detect


def main(cases, *flags):
    status = 0
    for case in json.loads(cases):
        own = json.loads(case).get(str(detect().rank), [])
        variables = dict(word.split("=") for word in own if "=" in word)
        os.environ.update(variables)
        status = max(status, train.main([*flags, *(word for word in own if "=" not in word)]))
        for name in variables:
            os.environ.pop(name, None)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
