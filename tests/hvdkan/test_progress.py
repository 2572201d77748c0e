import pytest

from hvdkan.progress import closing_summary

MADE = {
    "config": {"operator": "spline", "backend": "horovod"},
    "requested": {"allreduce": "hierarchical"},
    "effective": {
        "allreduce": "hierarchical",
        "engine": "process_sets",
        "transport": "mpi",
        "reason": None,
        "evidence": {},
    },
    "parameters": {"all": 10_123_456, "trainable": 5_123_456},
    "placement": "128G32N",
    "ranks_per_host": {f"node{n}": 4 for n in range(32)},
    "emulated": False,
    "simulated_topology": False,
    "oversubscribed": False,
    "launcher": "torchrun",
    "epoch_loss": [0.5, 0.25],
    "test_loss": 0.125,
    "test_rmse": 12.5,
    "data": {"digest": None, "rows": None, "scaling": {"target": "y"}},
    "samples_per_s": 123456789.0,
    "step_s": [0.001, 0.003],
    "exposed": {"fraction": 0.25, "with_s": 0.004, "without_s": 0.003, "steps": 40},
}


def test_it_says_what_ran_and_fits_a_terminal():
    text = closing_summary(MADE)
    assert "units" not in text
    for words in (
        "0.25 in training, 0.125 in test",
        "hierarchical by process_sets over mpi",
        "25.0% of a step is exchange (4.00 ms with, 3.00 without)",
    ):
        assert words in text
    assert "2.00 ms" in text
    assert all(len(line) <= 79 for line in text.splitlines())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"simulated_topology": True}, "say nothing about a network"),
        ({"oversubscribed": True}, "more threads than cores"),
        ({"emulated": True}, "32 emulated hosts"),
        ({"exposed": None}, "not measured"),
        (
            {"data": {"digest": "ab", "rows": 9, "scaling": {"target": "depth\n" + "x" * 99}}},
            r"12.5 (root mean square, in units of 'depth\nxxx",
        ),
        (
            {"effective": {**MADE["effective"], "allreduce": "flat", "reason": "one node"}},
            "NOT the hierarchical asked for: one node",
        ),
        ({"effective": {**MADE["effective"], "evidence": {"staged_through_host": True}}}, "through host memory"),
    ],
)
def test_what_a_reader_must_not_overlook_is_said(change, words):
    text = closing_summary({**MADE, **change})
    assert words in text
    assert all(len(line) <= 79 for line in text.splitlines())
