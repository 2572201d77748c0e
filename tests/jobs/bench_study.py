"""What a study adds to the wall time of its launches: ``python -m tests.jobs.bench_study [ROUNDS]``.

The commands that ``--dry-run`` prints are run one after another by a shell, and the study runs the same launches; both
take turns. Reading the plan, the order, the store and its locks, logs and records are the study's; the report is not.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PLAN = """
study = "overhead"
blocks = 2

[common]
samples = 20000
global_batch_size = 1000
epochs = 5
threads = 1
device = "cpu"

[[variant]]
name = "one"
ranks = 1
backend = "single"

[[variant]]
name = "two"
ranks = 2
backend = "mpi"
"""


def timed(command: list[str], **options) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    return time.perf_counter() - start


def main(rounds: int) -> None:
    ratios = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as directory:
            plan = Path(directory) / "plan.toml"
            plan.write_text(PLAN)
            study = [sys.executable, "-m", "jobs.study", str(plan), "--results", directory, "--no-report"]
            bare = Path(directory) / "bare"
            words = [*study[:-2], str(bare), "--no-report", "--dry-run"]
            lines = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            (bare / "overhead" / "running").mkdir(parents=True)
            takes = {
                "bare": lambda lines=lines: timed(["sh", "-e"], input=lines.encode()),
                "study": lambda study=study: timed(study),
            }
            seconds = {name: takes[name]() for name in (("bare", "study"), ("study", "bare"))[number % 2]}
        ratios.append(seconds["study"] / seconds["bare"])
        print(f"launches alone {seconds['bare']:.2f} s, as a study {seconds['study']:.2f} s: {ratios[-1] - 1:+.1%}")
    print(f"a study adds {statistics.median(ratios) - 1:+.1%} (median of {rounds} rounds of 4 launches)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
