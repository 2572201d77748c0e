"""Time a report over many records: ``python -m tests.analysis.bench_report [RECORDS]``.

Launches as of the quick plan, with 300 steps each, written one file a launch; reading and writing are timed together.
"""

import sys
import tempfile
import time
from pathlib import Path

from analysis.report import main as report
from hvdkan import record
from tests.analysis.conftest import quick


def main(count):
    made = quick(blocks=1 + count // 14)[:count]
    with tempfile.TemporaryDirectory() as directory:
        for number, one in enumerate(made):
            one["step_s"] = one["step_s"][:1] * 300
            record.write(Path(directory) / "records" / f"{number}.jsonl", [one])
        start, busy = time.perf_counter(), time.process_time()
        status = report([directory])
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
        size = (Path(directory) / "report.html").stat().st_size
    times = f"{seconds:.1f} s ({busy:.1f} s of CPU)"
    print(f"\n{len(made):,} records read and reported in {times}, a page of {size / 1e3:,.0f} kB")
    return status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000))
