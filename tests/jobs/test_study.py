"""The runner: it records every launch, repeats what failed and nothing else, and lets nobody interfere."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from hvdkan import record
from jobs import study
from jobs.plan import load

#: Each starts processes, if only short ones.
pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PLAN = """
study = "tiny"
blocks = 2
timeout_s = 30
primary = [["a", "b"]]
[common]
samples = 100
batch_size = 10
epochs = 1
backend = "single"
[[variant]]
name = "a"
ranks = 1
[[variant]]
name = "b"
ranks = 1
operator = "mlp"
"""


class Study:
    """A study in a directory of its own, with launches that behave as told."""

    def __init__(self, path, monkeypatch, capsys):
        # A directory that a shell would trip over.
        self.path = path / "it's $HOME `here` é"
        self.path.mkdir()
        self.plan, self.starts = self.path / "plan.toml", self.path / "starts"
        self.root = self.path / "results/tiny"
        self.plan.write_text(PLAN)
        self._monkeypatch, self._capsys = monkeypatch, capsys
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(HERE)]))
        monkeypatch.setenv("FAKE_STARTS", str(self.starts))

    def arguments(self, *more):
        return [str(self.plan), "--results", str(self.path / "results"), *more, "--no-report"]

    def run(self, *more, **modes):
        """The exit status; ``out``, ``err`` and ``started`` (names of launches) belong to this run."""
        self._monkeypatch.setenv("FAKE_TRAIN", json.dumps(modes.pop("modes", modes)))
        self.starts.unlink(missing_ok=True)
        self._capsys.readouterr()
        status = study.main(self.arguments(*more), module="fake_train")
        self.out, self.err = self._capsys.readouterr()
        self.started = self.starts.read_text().split() if self.starts.exists() else []
        return status

    def start(self, *, report=False, **modes):
        """The runner as a process."""
        arguments = self.arguments()[: -1 if report else None]
        code = "import sys; from jobs import study; sys.exit(study.main(sys.argv[1:], module='fake_train'))"
        return subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env=os.environ | {"FAKE_TRAIN": json.dumps(modes), "FAKE_PIDS": str(self.path / "pids")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def pids(self):
        file = self.path / "pids"
        for _ in range(200):
            if file.exists() and file.read_text().endswith("\n"):
                return [int(word) for word in file.read_text().split()]
            time.sleep(0.05)
        raise AssertionError("the launch did not start")

    def files(self):
        return sorted(file.name for file in (self.root / "records").iterdir())

    def one(self, name):
        reading = record.read(self.root / "records" / f"{name}.jsonl")
        assert not reading.damaged and len(reading.records) == 1
        return reading.records[0]


@pytest.fixture
def tiny(tmp_path, monkeypatch, capsys):
    return Study(tmp_path, monkeypatch, capsys)


ALL = ["a-b1-a1.jsonl", "a-b2-a1.jsonl", "b-b1-a1.jsonl", "b-b2-a1.jsonl"]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


# --- what is run and recorded ---


def test_every_launch_is_run_once_in_the_planned_order_and_recorded(tiny):
    assert tiny.run() == 0
    assert tiny.files() == ALL
    expected = study.expand(load(tiny.plan))
    assert tiny.started == [launch.file for launch in expected]
    assert [(launch.block, launch.order) for launch in expected] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    # AB in one block, BA in the other.
    assert expected[0].variant == expected[3].variant != expected[1].variant
    for launch in expected:
        one = tiny.one(launch.file)
        assert {name: one[name] for name in launch.labels()} == launch.labels()
        assert (tiny.root / "logs" / f"{launch.file}.log").read_text() == "hello from 0\n"
    assert (tiny.root / "plan.toml").read_text() == PLAN
    assert not (tiny.root / "running").exists()
    lines = tiny.out.splitlines()
    assert len(lines) == 5 and lines[0].startswith("launch 1 of 4  block 1  ") and "  ok " in lines[0]
    assert lines[4].startswith("4 launches: 4 done, 0 failed; ")


def test_the_environment_of_every_launch_is_the_same(tiny, monkeypatch):
    monkeypatch.setenv("HOROVOD_HIERARCHICAL_ALLREDUCE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert tiny.run() == 0
    for name in ("a-b1-a1", "b-b2-a1"):
        assert tiny.one(name)["threads"] == "1" and tiny.one(name)["variable"] is None


def test_blocks_can_be_fewer_and_the_rest_later(tiny):
    assert tiny.run("--blocks", "1") == 0
    assert tiny.files() == ["a-b1-a1.jsonl", "b-b1-a1.jsonl"]
    assert tiny.run() == 0
    assert tiny.files() == ALL and len(tiny.started) == 2
    assert tiny.run("--blocks", "3") == 0
    assert sorted(tiny.started) == ["a-b3-a1", "b-b3-a1"]


def test_more_blocks_than_before_keep_the_order_of_those_that_are_there(tiny):
    def orders(blocks):
        launches = study.expand(load(tiny.plan), blocks)
        return [[one.variant.name for one in launches if one.block == block] for block in range(1, blocks + 1)]

    tiny.plan.write_text(PLAN + "".join(f'[[variant]]\nname = "v{n}"\nranks = 1\n' for n in range(6)))
    assert orders(3) == orders(8)[:3]


def test_a_dry_run_prints_commands_and_touches_nothing(tiny):
    assert tiny.run("--dry-run") == 0
    assert not tiny.started and not tiny.root.exists()
    lines = tiny.out.splitlines()
    assert len(lines) == 4
    assert all(
        line.startswith("env OMP_NUM_THREADS=1 ") and " -m fake_train --backend single " in line for line in lines
    )
    echoed = subprocess.run(["sh", "-c", f"set -- {lines[0]}; printf '%s\\n' \"$@\""], capture_output=True, text=True)
    assert f"{tiny.root}/running/" in echoed.stdout


# --- starting again ---


def test_finished_launches_are_never_run_again(tiny):
    assert tiny.run() == 0
    before = {file.name: file.read_bytes() for file in (tiny.root / "records").iterdir()}
    assert tiny.run(a="raise") == 0
    assert tiny.started == []
    assert before == {file.name: file.read_bytes() for file in (tiny.root / "records").iterdir()}
    assert "4 of 4 launches were done before" in tiny.out


def test_failed_launches_are_run_again_as_the_next_attempt(tiny):
    assert tiny.run(modes={"a-b2": "raise"}) == 1
    assert tiny.files() == ALL
    assert tiny.run(modes={"a-b2": "exit 3"}) == 1
    assert tiny.started == ["a-b2-a2"]
    assert tiny.run() == 0
    assert tiny.started == ["a-b2-a3"]
    assert [tiny.one(f"a-b2-a{n}")["status"] for n in (1, 2, 3)] == ["failed", "failed", "ok"]
    assert tiny.run() == 0 and tiny.started == []


def test_a_torn_record_counts_as_missing_and_its_bytes_are_kept(tiny):
    assert tiny.run() == 0
    file = tiny.root / "records/b-b1-a1.jsonl"
    file.write_bytes(torn := file.read_bytes()[:-30])
    assert tiny.run() == 0
    assert tiny.started == ["b-b1-a2"]
    assert file.read_bytes() == torn
    assert f"note: {file}: line 1 is damaged" in tiny.out


def test_an_empty_or_foreign_record_counts_as_missing(tiny):
    assert tiny.run() == 0
    (tiny.root / "records/a-b1-a1.jsonl").write_bytes(b"")
    (tiny.root / "records/b-b1-a1.jsonl").write_bytes((tiny.root / "records/b-b2-a1.jsonl").read_bytes())
    assert tiny.run() == 0
    assert sorted(tiny.started) == ["a-b1-a2", "b-b1-a2"]
    assert "the record's block is 2 and not 1" in tiny.out


def test_preempted_launches_are_run_again(tiny):
    assert tiny.run() == 0
    file = tiny.root / "records/a-b1-a1.jsonl"
    record.write(file, [tiny.one("a-b1-a1") | {"status": "preempted"}])
    assert tiny.run() == 0
    assert tiny.started == ["a-b1-a2"]


def test_compressed_records_count(tiny):
    import gzip

    assert tiny.run() == 0
    file = tiny.root / "records/a-b1-a1.jsonl"
    file.with_name("a-b1-a1.jsonl.gz").write_bytes(gzip.compress(file.read_bytes()))
    file.unlink()
    assert tiny.run() == 0 and tiny.started == []


def test_a_record_of_another_schema_stops_the_study(tiny):
    assert tiny.run() == 0
    file = tiny.root / "records/a-b1-a1.jsonl"
    record.write(file, [tiny.one("a-b1-a1") | {"schema": "9.0"}])
    assert tiny.run() == 2
    assert "schema '9.0'" in tiny.err and tiny.started == []


# --- launches that fail ---


@pytest.mark.parametrize(
    "mode, kind, message",
    [
        ("raise", "exit_status", "exit status 1: RuntimeError: boom"),
        ("exit 3", "exit_status", "exit status 3"),
        ("ok then 3", "exit_status", "exit status 3"),
        ("silent", "no_record", "exit status 0, but no record was written"),
        ("torn", "no_record", "exit status 0, but line 1 is damaged"),
        ("mislabelled", "no_record", "exit status 0, but the record's block is 99 and not 1"),
        ("own record", "RuntimeError", "loss is NaN at step 7"),
    ],
)
def test_a_failed_launch_is_recorded_and_the_others_go_on(tiny, mode, kind, message):
    assert tiny.run("--blocks", "1", a=mode) == 1
    assert tiny.files() == ["a-b1-a1.jsonl", "b-b1-a1.jsonl"]
    one = tiny.one("a-b1-a1")
    assert one["status"] == "failed" and tiny.one("b-b1-a1")["status"] == "ok"
    assert one["error"]["kind"] == kind
    assert one["error"]["message"].startswith(message)
    assert (one["study"], one["variant"], one["block"], one["attempt"]) == ("tiny", "a", 1, 1)
    assert f"failed: a block 1: {message}" in tiny.out
    assert f"log: {tiny.root}/logs/a-b1-a1.log" in tiny.out
    assert tiny.run("--blocks", "1") == 0 and tiny.started == ["a-b1-a2"]


def test_a_failed_record_holds_the_end_of_the_log_and_the_traceback(tiny):
    assert tiny.run("--blocks", "1", a="raise") == 1
    one = tiny.one("a-b1-a1")
    assert one["error"]["message"].splitlines()[-1] == "RuntimeError: boom"
    assert one["error"]["traceback"].startswith("Traceback (most recent call last):")
    assert one["error"]["traceback"].endswith("RuntimeError: boom")
    assert one["error"]["exit_status"] == 1
    assert one["config"]["samples"] == 100 and one["config"]["operator"] == "spline"
    assert one["requested"]["allreduce"] == "stock" and one["effective"] is None


def test_a_failed_record_says_which_transport_was_asked_for(tiny):
    variant = 'name = "a"\nranks = 1\nbackend = "horovod"\ntransport = "gloo"\n'
    tiny.plan.write_text(PLAN.replace('name = "a"\nranks = 1\n', variant))
    assert tiny.run("--blocks", "1", a="raise") == 1
    assert tiny.one("a-b1-a1")["requested"] == {"allreduce": "stock", "engine": "auto", "transport": "gloo"}


@pytest.mark.launch
def test_the_time_limit_leaves_a_failed_record_and_no_process(tiny, monkeypatch):
    monkeypatch.setenv("FAKE_PIDS", str(tiny.path / "pids"))
    tiny.plan.write_text(PLAN.replace("timeout_s = 30", "timeout_s = 1.5"))
    # Its own complete record does not make a launch that hangs at its end a good one.
    assert tiny.run("--blocks", "1", a="hang", b="ok then hang") == 1
    assert not any(map(alive, tiny.pids()))
    for name in ("a-b1-a1", "b-b1-a1"):
        assert tiny.one(name)["status"] == "failed"
        assert tiny.one(name)["error"]["kind"] == "timeout"
        assert tiny.one(name)["error"]["message"].startswith("not finished after 1.5 s, and ended")


@pytest.mark.launch
def test_the_time_limit_is_said_and_not_the_signal_that_it_sent(tiny):
    tiny.plan.write_text(PLAN.replace("timeout_s = 30", "timeout_s = 2"))
    assert tiny.run("--blocks", "1", a="bar until told") == 1
    assert "failed: a block 1: not finished after 2 s, and ended" in tiny.out
    assert "ended by SIGTERM" not in tiny.out
    # A progress bar is nothing to keep.
    assert tiny.one("a-b1-a1")["error"]["message"].splitlines()[1:] == [
        "hello from 0",
        "the last words",
        "behind a bar",
    ]


@pytest.mark.launch
def test_a_full_disk_is_said_with_its_place(tiny):
    """A limit on files' sizes fails as a full disk does, when something is written, and names no file."""
    words = [sys.executable, "-m", "jobs.study", str(tiny.plan), "--results", str(tiny.root.parent)]
    limited = ["bash", "-c", 'ulimit -f 0; exec "$@"', "bash", *words]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, f"error: {tiny.root.parent}: File too large\n")


# --- refusals ---


def refused(tiny, *words):
    assert tiny.started == []
    assert len(tiny.err.splitlines()) == 1 and tiny.err.startswith("error: ")
    assert all(word in tiny.err for word in words)


def test_a_changed_plan_is_refused(tiny):
    assert tiny.run("--blocks", "1") == 0
    tiny.plan.write_text(PLAN.replace("epochs = 1", "epochs = 2"))
    for more in ((), ("--dry-run",)):
        assert tiny.run(*more) == 2
        refused(tiny, str(tiny.root), "variant a: epochs was 1 and is 2")
    assert (tiny.root / "plan.toml").read_text() == PLAN
    tiny.plan.write_text(PLAN.replace("blocks = 2", "blocks = 3"))
    assert tiny.run() == 0 and len(tiny.started) == 4
    assert "blocks = 3" in (tiny.root / "plan.toml").read_text()


def test_a_plan_may_change_before_there_are_records(tiny):
    tiny.root.mkdir(parents=True)
    (tiny.root / "plan.toml").write_text(PLAN.replace("epochs = 1", "epochs = 2"))
    assert tiny.run() == 0


def test_records_without_their_plan_are_refused(tiny):
    assert tiny.run() == 0
    (tiny.root / "plan.toml").unlink()
    assert tiny.run() == 2
    refused(tiny, "has records and no plan.toml")
    (tiny.root / "plan.toml").write_text("blocks = ")
    assert tiny.run() == 2
    refused(tiny, "the plan of the records cannot be read any more")


def test_a_bad_plan_or_word_is_refused(tiny):
    assert tiny.run("--launcher", "slurp") == 2
    refused(tiny, "'slurp'", "local", "mpirun")
    for blocks in ("0", "-1", "x", "1.5", "²", "1000000000", "9" * 5000):
        assert tiny.run(f"--blocks={blocks}") == 2
        refused(tiny, f"{blocks!r} is not a whole number of at least 1")
    tiny.plan.write_text(PLAN.replace("blocks", "bloks"))
    assert tiny.run() == 2
    refused(tiny, "unknown key 'bloks'; the valid ones are study, blocks")
    assert not tiny.root.exists()


def test_results_that_cannot_be_written_are_refused(tiny):
    (tiny.path / "results").write_text("a file")
    assert tiny.run() == 2
    refused(tiny, "cannot be written")


def test_no_mpirun_is_said_before_the_first_launch(tiny, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tiny.path / "python"))
    monkeypatch.setenv("PATH", str(tiny.path))
    assert tiny.run("--launcher", "mpirun") == 2
    refused(tiny, "no mpirun")


# --- others and interruptions ---


def test_two_runners_of_one_study_refuse_each_other_and_a_lock_dies_with_its_runner(tiny):
    with tiny.start(a="hang", b="hang") as first:
        pids = tiny.pids()
        assert tiny.run() == 2
        refused(tiny, "another runner is at work", f"process {first.pid} on ")
        first.kill()
    deadline = time.monotonic() + 10
    for pid in pids:
        # The launch itself ends with its runner; a child in a session of its own is out of reach of a dead runner.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (tiny.root / "running").exists() and (tiny.root / ".lock").exists()
    assert tiny.run() == 0
    assert tiny.files() == ALL


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.launch
def test_an_interruption_ends_the_launch_and_keeps_what_is_finished(tiny, number, status):
    first, second = study.expand(load(tiny.plan))[:2]
    with tiny.start(**{f"{second.variant.name}-b1": "hang"}) as runner:
        pids = tiny.pids()
        runner.send_signal(number)
        out, err = runner.communicate(timeout=30)
    assert runner.returncode == status
    assert err == ""
    assert not any(map(alive, pids))
    assert tiny.files() == [f"{first.file}.jsonl"]
    assert out.splitlines()[-1].startswith("interrupted; what is finished is kept. To go on: python -m jobs.study '")
    assert tiny.run() == 0
    assert len(tiny.started) == 3 and tiny.files() == ALL


def test_the_report_is_made_at_the_end_and_its_failure_is_told(tiny, monkeypatch):
    package = tiny.path / "stand-in/analysis"
    package.mkdir(parents=True)
    code = "import os, sys; print('report of', sys.argv[1]); sys.exit(bool(os.environ['FAIL']))"
    (package / "__init__.py").touch()
    (package / "report.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package.parent), str(ROOT), str(HERE)]))
    # The current directory comes first on the path of python -m.
    monkeypatch.chdir(tiny.path)
    for fail, status, last in (("", 0, f"report of {tiny.root}"), ("1", 1, "the report ended with status 1")):
        monkeypatch.setenv("FAIL", fail)
        with tiny.start(report=True) as runner:
            out, _ = runner.communicate(timeout=30)
        assert (runner.returncode, out.splitlines()[-1]) == (status, last)


# --- under mpirun ---


@pytest.mark.launch
def test_launches_under_mpirun(tiny):
    tiny.plan.write_text(PLAN.replace('"single"', '"mpi"').replace("ranks = 1", "ranks = 3"))
    assert tiny.run("--blocks", "1", b="raise") == 1
    assert tiny.one("a-b1-a1")["size"] == 3
    failed = tiny.one("b-b1-a1")
    assert failed["status"] == "failed" and "RuntimeError: boom" in failed["error"]["traceback"]
    assert tiny.run() == 0
    assert Counter(name[0] for name in tiny.started) == {"a": 1, "b": 2}
    assert tiny.run("--launcher", "mpirun", "--blocks", "3") == 0 and len(tiny.started) == 2
