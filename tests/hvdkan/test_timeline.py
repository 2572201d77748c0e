"""Horovod's timeline, read and split."""

import json

import pytest

from hvdkan.timeline import read, split


def line(pid, *spans):
    """Events of one tensor: names with begin and end in microseconds, each before what lies within it."""
    events = [{"name": "process_name", "ph": "M", "pid": pid, "args": {"name": f"allreduce.g{pid}"}}]
    marks = [(start, 1, -end, {"ph": "B", "name": name, "ts": start, "pid": pid}) for name, start, end in spans]
    marks += [(end, 0, -start, {"ph": "E", "ts": end, "pid": pid}) for name, start, end in spans]
    return events + [mark[3] for mark in sorted(marks, key=lambda mark: mark[:3])]


def exchanged(pid, start):
    return line(
        pid,
        ("NEGOTIATE_ALLREDUCE", start, start + 100),
        ("ALLREDUCE", start + 110, start + 200),
        ("MEMCPY_IN_FUSION_BUFFER", start + 112, start + 122),
        ("MPI_ALLREDUCE", start + 122, start + 182),
        ("MEMCPY_OUT_FUSION_BUFFER", start + 182, start + 192),
    )


def test_a_tensor():
    assert split(exchanged(1, 0)) == pytest.approx(
        {"waiting_s": 100e-6, "copying_s": 20e-6, "exchanging_s": 60e-6, "steps": 1}
    )


def test_fused_tensors_count_once():
    assert split(exchanged(1, 0) + exchanged(2, 0)) == split(exchanged(1, 0))
    apart = split(exchanged(1, 0) + exchanged(2, 1000))
    assert apart["exchanging_s"] == pytest.approx(120e-6)
    assert split(exchanged(1, 0) + exchanged(2, 50))["waiting_s"] == pytest.approx(150e-6)


def test_seconds_are_of_one_step():
    found = split(exchanged(1, 0) + exchanged(1, 1000) + exchanged(2, 1000))
    assert found == pytest.approx({"waiting_s": 100e-6, "copying_s": 20e-6, "exchanging_s": 60e-6, "steps": 2})


def test_without_exchanges_there_is_nothing_to_split():
    assert split([]) is None
    assert split(line(1, ("NEGOTIATE_ALLREDUCE", 0, 5))) is None


@pytest.mark.parametrize("end", ["]", "\n]\n", "", ",", ",\n"])
def test_a_timeline_may_have_no_end(end):
    events = exchanged(1, 0)
    assert read("[\n" + ",".join(map(json.dumps, events)) + end) == events
    assert read("") == []


def test_what_is_no_timeline_is_an_error():
    with pytest.raises(ValueError):
        read("no timeline")
