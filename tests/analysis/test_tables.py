import csv
import math

import pytest

from analysis.tables import Table, guarded, write_csv
from analysis.text import compact, counted, listed, shown


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=1+1", "'=1+1"),
        ("  =1+1", "'  =1+1"),
        ("\t=1", "' =1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("|x", "'|x"),
        ("a=1", "a=1"),
        (-1.5, "-1.5"),
        (-3, "-3"),
        (None, "n/a"),
        (math.nan, "n/a"),
        (True, "yes"),
        (1234567.891, "1.23457e+06"),
    ],
)
def test_csv_cells(cell, written):
    assert guarded(cell) == written


def test_a_csv_file_reads_back(tmp_path):
    rows = [('a "quoted", name', 1.5, None), ("two\nlines", -2, "=x")]
    path = write_csv(Table("t", "caption", ("name", "x (ms)", "what"), rows), tmp_path)
    with path.open(newline="", encoding="utf-8") as file:
        read = list(csv.reader(file))
    assert read == [["name", "x (ms)", "what"], ['a "quoted", name', "1.5", "n/a"], ["two lines", "-2", "'=x"]]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123456, "0.0123"), (1.0, "1.00"), (9.996, "10.0"), (99.96, "100"), (123456.7, "123,000"), (-0.5, "-0.500"),
        (0.0, "0"), (1e-9, "1.00e-09"), (1e12, "1.00e+12"), (math.nan, "n/a"), (None, "n/a"), (math.inf, "inf"),
        (26618, "26,618"), (True, "yes"), ("a\x00b", "a\ufffdb"),
    ],
)  # fmt: skip
def test_numbers_are_rounded_for_readers(value, text):
    assert shown(value) == text


def test_lists_and_counts_in_sentences():
    assert (counted(1, "launch"), counted(2, "launch"), counted(0, "block")) == ("1 launch", "2 launches", "0 blocks")
    assert (listed([]), listed(["a"]), listed(["a", "b", "c"])) == ("", "a", "a, b and c")
    assert listed(list("abcd"), 2) == "a, b and 2 more"


def test_evidence_on_one_line():
    assert compact({"steps": ["a", "b"], "mca": {"x": 1}}) == 'steps: a, b; mca: {"x": 1}'
    assert compact("x" * 300, 20) == "x" * 19 + "…"
