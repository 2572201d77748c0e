"""Findings: one line each, and many ranks' findings as one."""

import pytest

from jobs.preflight.findings import ALIKE, Finding, closing, failure, merged, named, ok, to_json, warning, worst

NEW, OLD = ok("torch", "2.13.0, as tested"), failure("torch", "2.12.0 is not within >=2.13", "make setup")
ALSO = ok("torch", "2.14.0 (tested: 2.13.0)")


@pytest.mark.parametrize(("level", "remedy"), [("ok", "do"), ("warning", ""), ("failure", ""), ("error", "do")])
def test_a_finding_has_a_remedy_where_something_is_wrong_and_only_there(level, remedy):
    with pytest.raises(ValueError, match="must be ok, or a warning or failure with a remedy"):
        Finding("torch", level, "text", remedy)


def test_lines_are_wrapped_with_an_indent_and_paths_are_whole():
    path = "/a" * 50
    text = warning("imports", f"torch from {path}, not from here", "take it off PYTHONPATH, and look again").lines()
    assert text == (
        f"warning  imports: torch from\n         {path},\n"
        "         not from here; remedy: take it off PYTHONPATH, and look again"
    )
    assert ok("python", "3.11.7").lines() == "ok       python: 3.11.7"


@pytest.mark.parametrize(
    ("found", "hosts", "expected"),
    [
        ([NEW, NEW], ["a", "b"], NEW),
        ([None, NEW, None], ["a", "a", "b"], NEW),
        ([None, None], ["a", "b"], None),
        (
            [NEW, NEW, OLD, NEW],
            ["node1", "node2", "node3", "node4"],
            failure("torch", "node3: 2.12.0 is not within >=2.13; elsewhere: 2.13.0, as tested", "make setup"),
        ),
        # Well everywhere, and still not the same.
        (
            [NEW, NEW, ALSO, ALSO, NEW],
            ["a", "a", "b", "b", "c"],
            warning("torch", "b: 2.14.0 (tested: 2.13.0); elsewhere: 2.13.0, as tested", ALIKE),
        ),
        # One rank of a host alone.
        (
            [NEW, ALSO, NEW, NEW],
            ["a", "a", "b", "b"],
            warning("torch", "rank 1 of a: 2.14.0 (tested: 2.13.0); elsewhere: 2.13.0, as tested", ALIKE),
        ),
        # Ranks that did not look do not count against their host.
        (
            [NEW, None, ALSO, None, NEW, None],
            ["a", "a", "b", "b", "c", "c"],
            warning("torch", "b: 2.14.0 (tested: 2.13.0); elsewhere: 2.13.0, as tested", ALIKE),
        ),
        # The remedy is that of the worst.
        (
            [OLD, NEW, NEW, warning("torch", "is slow", "wait")],
            ["a", "b", "c", "d"],
            failure("torch", "a: 2.12.0 is not within >=2.13; d: is slow; elsewhere: 2.13.0, as tested", "make setup"),
        ),
        (
            [OLD, ALSO, NEW, NEW],
            ["a", "b", "c", "d"],
            failure(
                "torch",
                "a: 2.12.0 is not within >=2.13; b: 2.14.0 (tested: 2.13.0); elsewhere: 2.13.0, as tested",
                "make setup",
            ),
        ),
    ],
)
def test_what_differs_between_ranks_names_the_hosts(found, hosts, expected):
    assert merged(found, hosts) == expected


def test_many_names_are_counted():
    assert named(list("abcde")) == "a, b, c, d, e"
    assert named(list("abcdef")) == "a, b, c, d and 2 more"


def test_the_worst_decides_and_the_last_line_counts():
    findings = [NEW, warning("cores", "few", "more"), NEW]
    assert (worst([]), worst([NEW]), worst(findings), worst([*findings, OLD])) == ("ok", "ok", "warning", "failure")
    assert closing(findings, "2 ranks on 1 node") == "preflight: 2 ok, 1 warning, 0 failures; 2 ranks on 1 node"


def test_json_holds_the_same():
    assert to_json([NEW, OLD], ranks=2) == {
        "schema": 1,
        "status": "failure",
        "ranks": 2,
        "findings": [
            {"check": "torch", "level": "ok", "text": "2.13.0, as tested", "remedy": ""},
            {"check": "torch", "level": "failure", "text": "2.12.0 is not within >=2.13", "remedy": "make setup"},
        ],
    }
