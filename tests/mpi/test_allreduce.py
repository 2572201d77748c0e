"""Our all-reduce under real mpirun."""

from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "check_allreduce.py"

MAPS = {
    1: ["A"],
    2: ["AA", "AB"],
    3: ["AAB", "ABA", "ABC"],
    4: ["AABB", "ABAB", "AAAB"],
    5: ["ABCCC", "AABBB"],
    6: ["AABBCC", "ABCABC"],
    8: ["AAAABBBB", "ABABABAB", "AAABBBBB", "ABBBBBBB", "ABCDEFGH", "AAAAAAAA", "AABBCCDD"],
}


@pytest.mark.launch
@pytest.mark.parametrize("size", MAPS)
def test_equals_mpis_own(mpirun, size):
    done = mpirun(size, PROGRAM, *MAPS[size])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("checked") == size


@pytest.mark.launch
def test_communicators_are_freed(mpirun):
    done = mpirun(2, PROGRAM, "close", 35_000, timeout=200)
    assert done.returncode == 0, done.stderr
