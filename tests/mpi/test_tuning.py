"""The table that `auto` chooses by."""

import json
import os
from pathlib import Path

import pytest

from mpi.algorithms import parse
from mpi.measuring import Timing
from mpi.topology import Topology
from mpi.tuning import Table, TableError, load, save, shape, table_for

PROGRAM = Path(__file__).parent / "programs" / "check_auto.py"


def timing(size, algorithm, seconds, wrong=0):
    return Timing("world", algorithm, size, size // 4, 4, (seconds,), (0,), wrong)


def test_the_nearest_size_by_ratio_decides():
    table = Table({1000: parse("flat"), 100_000: parse("ring")})
    assert [str(table.choose(size)) for size in (0, 1, 9_999, 10_001, 2**40)] == ["flat"] * 3 + ["ring"] * 2


def test_the_fastest_is_chosen_and_noise_changes_nothing():
    table = Table.fastest(
        [
            timing(100, "flat", 1.00),
            timing(100, "ring", 2.00),
            timing(200, "flat", 1.02),  # within 3% of the best: stays
            timing(200, "ring", 1.00),
            timing(400, "flat", 1.10),
            timing(400, "ring", 1.00),
            timing(400, "leader", 0.10, wrong=1),
            timing(400, "auto", 0.10),
        ]
    )
    assert {size: str(algorithm) for size, algorithm in table.rows.items()} == {100: "flat", 200: "flat", 400: "ring"}
    with pytest.raises(TableError, match="a table without rows"):
        Table.fastest([timing(100, "auto", 1)])


def test_files_hold_a_table_for_each_shape(tmp_path):
    path = tmp_path / "table.json"
    save(path, Topology.simulated((2, 2), 4), [timing(64, "two_level(cross=ring,chunks=4)", 1e-3)])
    save(path, Topology.simulated((1, 3), 4), [timing(64, "ring", 2e-3)])
    save(path, Topology.simulated((2, 2), 4), [timing(128, "flat", 3e-3)])
    tables = load(path)
    assert {key: {size: str(one) for size, one in table.rows.items()} for key, table in tables.items()} == {
        "2,2": {128: "flat"},
        "3,1": {64: "ring"},
    }
    assert json.loads(path.read_text())["tables"]["2,2"] == [{"bytes": 128, "algorithm": "flat", "median_s": 3e-3}]
    assert table_for(Topology.from_labels("ABBB"), tables, path).choose(1) == parse("ring")
    with pytest.raises(TableError, match=r"table.json has no table for nodes of 4 ranks; it has 2,2; 3,1"):
        table_for(Topology.simulated((4,), 4), tables, path)
    assert shape(Topology.from_labels("ABCAB")) == "2,2,1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no table of all-reduces: JSONDecodeError"),
        ("[]", "is no table of all-reduces: TypeError"),
        ("{}", "is no table of all-reduces: KeyError 'schema'"),
        ('{"schema": "2"}', "is a table of schema '2'; this reads '1'"),
        ('{"schema": "1", "tables": {"2,2": []}}', "is no table of all-reduces: a table without rows"),
        ('{"schema": "1", "tables": {"2": [{"bytes": 8}]}}', "is no table of all-reduces: KeyError 'algorithm'"),
        ('{"schema": "1", "tables": {"2": [{"bytes": 8, "algorithm": "x"}]}}', "algorithm is 'x'; it must be one of"),
        ('{"schema": "1", "tables": {"2": [{"bytes": -8, "algorithm": "ring"}]}}', "no whole number above 0"),
        ('{"schema": "1", "tables": {"2": [{"bytes": 8, "algorithm": "auto"}]}}', "auto cannot choose itself"),
        ('{"schema": "1", "tables": {"2": 7}}', "is no table of all-reduces: TypeError"),
        ("[" * 5000, "is no table of all-reduces: nested too deeply"),
        (" " * (4 * 2**20 + 1), "is no table of all-reduces: NotReadable larger than 4,096 KiB"),
    ],
)
def test_damaged_files_are_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(TableError) as raised:
        load(path)
    assert str(raised.value).startswith(str(path))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["/dev/zero", "pipe"])
def test_what_can_be_read_for_ever_is_not_read(tmp_path, name):
    path = tmp_path / name
    if name == "pipe":
        os.mkfifo(path)
    with pytest.raises(TableError, match="is no table of all-reduces: NotReadable not a regular file"):
        load(path)


@pytest.mark.launch
def test_auto_runs_what_the_table_says_on_all_ranks(mpirun, tmp_path):
    path = tmp_path / "table.json"
    times = [
        (64, "recursive_doubling"),
        (1024, "flat"),
        (16384, "two_level"),
        (2**18, "two_level(cross=ring,chunks=2)"),
    ]
    save(path, Topology.simulated((2, 2), 4), [timing(size, name, 1e-3) for size, name in times])
    done = mpirun(4, PROGRAM, path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("checked") == 4
