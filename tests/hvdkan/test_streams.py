"""Programs go on when nobody reads what they say."""

import subprocess
import sys

import pytest

SAYS = """
import sys
from hvdkan.streams import outlive_readers
outlive_readers()
for _ in range(3):
    print("x" * 100_000, file=getattr(sys, sys.argv[1]), flush=True)
open(sys.argv[2], "w").write("done")
"""


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize("redirect", ["| head -c 1", "2>&1 | head -c 1", ">&-", "2>&-", ">&- 2>&-", "> /dev/full 2>&1"])
def test_the_work_is_done_and_nothing_is_said(tmp_path, name, redirect):
    done = tmp_path / "done"
    command = f"{sys.executable} -c '{SAYS}' {name} {done} {redirect}"
    if "head" in redirect:
        command = f"set -o pipefail; {command}"
    shell = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert shell.returncode == 0, shell.stderr
    assert done.read_text() == "done"
    assert "Traceback" not in shell.stderr and "Exception ignored" not in shell.stderr


def test_a_closed_stream_is_not_taken_by_the_next_file(tmp_path):
    """A C library that writes to number 2 must not write into a file of ours."""
    program = "from hvdkan.streams import outlive_readers as o; o(); print(open('/dev/null').fileno() > 2)"
    shell = subprocess.run(
        ["bash", "-c", f'{sys.executable} -c "{program}" 2>&-'], capture_output=True, text=True, timeout=60, check=False
    )
    assert shell.stdout == "True\n"
