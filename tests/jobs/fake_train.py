"""Stands where hvdkan.train stands in a launch: starts fast and behaves as FAKE_TRAIN says, by variant and block."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from hvdkan import record


def value(flag):
    return sys.argv[sys.argv.index(flag) + 1]


labels = dict(word.split("=", 1) for word in sys.argv if "=" in word)
labels |= {name: int(labels[name]) for name in ("block", "order", "attempt")}
told = json.loads(os.environ.get("FAKE_TRAIN", "{}"))
mode = told.get(f"{labels['variant']}-b{labels['block']}") or told.get(labels["variant"], "ok")
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
size = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
file = Path(value("--record"))
if "FAKE_STARTS" in os.environ and rank == 0:
    with Path(os.environ["FAKE_STARTS"]).open("a") as starts:
        starts.write(f"{labels['variant']}-b{labels['block']}-a{labels['attempt']}\n")
one = {"schema": record.SCHEMA, "run_id": "r", **labels, "cell": "main", "status": "ok", "error": None, "config": {}}
one |= {"requested": {}, "effective": {}, "size": size, "threads": os.environ.get("OMP_NUM_THREADS")}
one |= json.loads(os.environ.get("FAKE_RECORD", "{}"))
one |= {"variable": os.environ.get("HOROVOD_HIERARCHICAL_ALLREDUCE")}

print("hello from", rank, flush=True)
if rank == 0 and mode in ("ok", "ok then 3", "ok then hang"):
    record.append(file, one)
if rank == 0 and mode == "mislabelled":
    record.append(file, one | {"block": 99})
if rank == 0 and mode == "torn":
    file.write_bytes(record.encode(one)[:-20])
if mode == "own record":
    record.append(
        file, one | {"status": "failed", "error": {"kind": "RuntimeError", "message": "loss is NaN at step 7"}}
    )
    sys.exit(1)
if mode == "told":
    error = {"kind": "Stopped", "message": "ended by SIGUSR2", "rank": 0, "host": "here"}
    record.append(file, one | {"status": "preempted", "error": error})
    sys.exit(140)
if mode == "bar until told":

    def told_to_end(*_):
        error = {"kind": "Stopped", "message": "ended by SIGTERM", "rank": 0, "host": "here"}
        record.append(file, one | {"status": "failed", "error": error})
        sys.exit(143)

    signal.signal(signal.SIGTERM, told_to_end)
    print("the last words\n\r 50%|#####     | 5/10 [00:01<00:01, 4.2step/s, loss 0.1]behind a bar\n", flush=True)
    time.sleep(600)
if mode == "usr2":
    os.kill(os.getpid(), signal.SIGUSR2)
if mode == "raise":
    raise RuntimeError("boom")
if mode.endswith("3"):
    sys.exit(3)
if mode.endswith("hang"):
    # A child in a session of its own, as a daemon may be.
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    if "FAKE_PIDS" in os.environ:
        with Path(os.environ["FAKE_PIDS"]).open("a") as pids:
            pids.write(f"{os.getpid()} {child.pid}\n")
    time.sleep(600)
