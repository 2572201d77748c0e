"""Our all-reduce under real mpirun."""

from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "check_allreduce.py"

MAPS = {
    1: ["A"],
    2: ["AA", "AB"],
    3: ["AAB", "ABA", "ABC"],
    4: ["AABB", "ABAB", "AAAB"],
    5: ["ABCCC", "AABBB", "BACAB"],
    6: ["AABBCC", "ABCABC"],
    8: ["AAAABBBB", "ABABABAB", "AAABBBBB", "ABBBBBBB", "ABCDEFGH", "AAAAAAAA", "AABBCCDD"],
}


def checked(mpirun, ranks, *arguments, timeout=120):
    done = mpirun(ranks, PROGRAM, *arguments, timeout=timeout)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("checked") == ranks


@pytest.mark.launch
@pytest.mark.parametrize("size", MAPS)
def test_sums_of_every_algorithm(mpirun, size):
    checked(mpirun, size, "maps", *MAPS[size])


@pytest.mark.launch
def test_messages_of_more_elements_than_mpi_counts(mpirun):
    checked(mpirun, 3, "cut", "ABB")


@pytest.mark.launch
@pytest.mark.parametrize("size", [2, 4])
def test_two_byte_types_and_means(mpirun, size):
    checked(mpirun, size, "types")


@pytest.mark.launch
@pytest.mark.parametrize("size", [3, 4])
def test_buffers_that_differ_are_refused_on_all_ranks(mpirun, size):
    checked(mpirun, size, "refusals")


@pytest.mark.launch
@pytest.mark.parametrize("size", [1, 3, 4])
def test_exchanges_under_way_at_once(mpirun, size):
    checked(mpirun, size, "pending")


@pytest.mark.launch
def test_communicators_are_freed(mpirun):
    checked(mpirun, 2, "close", 70_000, timeout=200)
