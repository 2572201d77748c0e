"""What the terminal shows of a study."""

import io

import pytest

from jobs.plan import Variant
from jobs.progress import Progress, duration
from jobs.store import Launch


class Terminal(io.StringIO):
    def isatty(self):
        return True


def launch(name="horovod-flat", nodes=(2, 2)):
    from hvdkan.config import Config

    return Launch("s", Variant(name, sum(nodes), {}, Config(simulate_nodes=nodes)), block=2, order=1)


def test_a_line_for_each_launch_in_a_file():
    stream = io.StringIO()
    progress = Progress(45, 3, stream)
    progress.running(7, launch(), 2.0)
    progress.finished(7, launch(), "ok", 5.1)
    progress.finished(8, launch(), "failed", 70.3, "boom")
    progress.finished(9, launch(), "ok", 5.0)
    assert stream.getvalue().splitlines() == [
        "launch 7 of 45  block 2  horovod-flat 4G2N  ok 5.1 s  about 10 s left",
        "launch 8 of 45  block 2  horovod-flat 4G2N  failed 70.3 s  about 38 s left",
        "  boom",
        "launch 9 of 45  block 2  horovod-flat 4G2N  ok 5.0 s",
    ]


def test_a_terminal_line_is_rewritten_and_leaves_nothing_of_the_longer_one(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    progress = Progress(2, 2, stream)
    progress.running(1, launch("a-long-name-of-a-variant"), 100.0)
    progress.finished(1, launch("x"), "ok", 1.0)
    first, second = stream.getvalue().removesuffix("\n").split("\r")[1:]
    assert first == "launch 1 of 2  block 2  a-long-name-of-a-variant 4G2N  100 s"
    assert second == "launch 1 of 2  block 2  x 4G2N  ok 1.0 s  about 1 s left".ljust(len(first))
    assert stream.getvalue().endswith("\n")


@pytest.mark.parametrize("length", (1, 20, 40, 64))
@pytest.mark.parametrize("columns", (40, 80, 300))
def test_no_line_is_wider_than_79_columns_or_the_terminal(monkeypatch, length, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    for stream in (io.StringIO(), Terminal()):
        progress = Progress(99999, 99999, stream)
        progress.running(12345, launch("n" * length), 99999)
        progress.finished(12345, launch("n" * length), "failed", 99999.9, "many words " * 20)
        progress.running(12346, launch("n" * length), 99999)
        widest = 79 if stream.__class__ is io.StringIO else min(79, columns - 1)
        assert all(len(line) <= widest for line in stream.getvalue().replace("\r", "\n").split("\n"))


def test_a_long_name_is_cut_in_the_middle():
    stream = io.StringIO()
    Progress(45, 45, stream).finished(7, launch("horovod-" + "x" * 40 + "-again"), "ok", 5.1)
    line = stream.getvalue()
    assert line == "launch 7 of 45  block 2  horovod-xxxx..x-again 4G2N  ok 5.1 s  about 4 min left\n"


@pytest.mark.parametrize(
    "seconds, text",
    [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (200, "3 min"), (3599, "1 h 0 min"), (7500, "2 h 5 min")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
