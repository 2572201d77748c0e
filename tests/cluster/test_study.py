"""A study as batch jobs under a real Slurm: to its report, and through what can end a launch in the middle."""

import os
import signal
import time
from pathlib import Path

import pytest

from hvdkan import record

pytestmark = pytest.mark.cluster
PLAN = """
study = "tiny"
blocks = 2
timeout_s = 240
primary = [["flat", "hierarchical"]]

[common]
backend = "mpi"
hidden = [8]
grid = 5
samples = 1100
global_batch_size = 300
epochs = 2
probe_steps = 5
threads = 1

[[variant]]
name = "flat"
placement = "4G2N"
allreduce = "flat"

[[variant]]
name = "hierarchical"
placement = "4G2N"
allreduce = "hierarchical"
"""
#: On all nodes, so that one job waits for the other.
LONG = """
study = "tiny"
blocks = 3
timeout_s = 240

[common]
backend = "mpi"
hidden = [8]
grid = 5
samples = 1000
global_batch_size = 200
epochs = 60
threads = 1

[[variant]]
name = "one"
placement = "4G4N"
"""
#: What a job may go on for after one of its parts is gone.
SOON_S = 30


def study(place, text):
    (place / "plan.toml").write_text(text)
    return (
        f"python -m jobs.study {place}/plan.toml --launcher sbatch --site rehearsal --results {place}/results",
        place / "results" / "tiny",
    )


def until(found, seconds, what):
    """The first true answer of ``found``; the test fails when there is none in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := found():
            return answer
        time.sleep(0.2)
    return pytest.fail(f"no {what} within {seconds} s")


def records(results):
    return [one for file in sorted((results / "records").glob("*.jsonl")) for one in record.read(file).records]


def ranks(results):
    """Process ids of the ranks that train for this study now."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            words = (directory / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        ours = b"hvdkan.train" in words and any(word.startswith(os.fsencode(results)) for word in words)
        if ours and b"python" in words[0]:
            found.append(int(directory.name))
    return sorted(found)


def held(results, count):
    """Wait until ``count`` ranks are at work, and hold one of them, so that their launch cannot end by itself."""
    until(lambda: len(ranks(results)) >= count, 90, f"{count} ranks")
    time.sleep(4)
    found = ranks(results)
    os.kill(found[0], signal.SIGSTOP)
    return found


def completed(shell, line):
    """Start a study to its end."""
    done = shell(line, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr


def of_block(results, block):
    return [one for one in records(results) if one["block"] == block]


def running(shell, job=None):
    """The numbers of the jobs that hold nodes now, or only this one."""
    jobs = shell("squeue --noheader --states=RUNNING,COMPLETING --format=%A").stdout.split()
    return [one for one in jobs if job in (None, one)]


def test_two_blocks_to_their_report(shell, single, tmp_path):
    line, results = study(tmp_path, PLAN)
    completed(shell, line)
    made = [one for one in records(results) if one["status"] == "ok"]
    assert sorted((one["variant"], one["block"]) for one in made) == [
        ("flat", 1), ("flat", 2), ("hierarchical", 1), ("hierarchical", 2),
    ]  # fmt: skip
    for one in made:
        assert (one["status"], one["placement"], one["emulated"]) == ("ok", "4G2N", True)
        assert one["effective"]["allreduce"] == one["variant"] and one["effective"]["reason"] is None
        assert one["epoch_loss"] == pytest.approx(single["epoch_loss"], rel=1e-5)
    page = (results / "report.html").read_text()
    assert "mpi hierarchical on 4G2N took" in page and "emulated" in page
    assert shell("squeue --noheader --states=RUNNING,PENDING").stdout == ""
    again = shell(line)
    assert again.returncode == 0 and "4 of 4 launches were done before" in again.stdout
    assert len([one for one in records(results) if one["status"] == "ok"]) == 4


def test_what_is_killed_is_recorded_and_the_next_start_completes(shell, start, cluster, tmp_path):
    line, results = study(tmp_path, LONG)
    first = start(line)
    try:
        # One rank: its launch fails, and the next job begins.
        os.kill(held(results, 4)[1], signal.SIGKILL)
        (killed,) = until(lambda: records(results), SOON_S, "record of a launch with a killed rank")
        assert killed["status"] == "failed" and killed["error"]["kind"] == "exit_status"
        # The whole job.
        held(results, 4)
        (job,) = running(shell)
        shell(f"scancel {job}")
        until(lambda: not running(shell, job), SOON_S, "end of a cancelled job")
        until(lambda: of_block(results, 2), 2 * SOON_S, "record of a cancelled launch")
        (cancelled,) = of_block(results, 2)
        assert cancelled["status"] == "preempted"
        assert f"job {job} was told to end while this ran (scancel" in cancelled["error"]["message"] or (
            "ended by SIG" in cancelled["error"]["message"]
        )
        # A node that no longer answers.
        held(results, 4)
        (job,) = running(shell)
        (daemon,) = shell(f"pgrep -f 'slurmd -D -N node2 -f .*{cluster}'").stdout.split()
        os.kill(int(daemon), signal.SIGSTOP)
        try:
            until(lambda: not running(shell, job), SOON_S, "end of a job that lost a node")
        finally:
            os.kill(int(daemon), signal.SIGCONT)
        out, err = first.communicate(timeout=120)
    finally:
        if first.poll() is None:
            os.killpg(first.pid, signal.SIGKILL)
    assert first.returncode == 1, out + err
    # The records tell of all three, and the report is younger than they are.
    assert (results / "report.html").stat().st_mtime >= max(f.stat().st_mtime for f in (results / "records").iterdir())
    (lost,) = of_block(results, 3)
    assert lost["status"] == "preempted"
    assert "NODE_FAIL" in lost["error"]["message"] or "failed node" in lost["error"]["message"]
    completed(shell, line)
    good = [(one["variant"], one["block"]) for one in records(results) if one["status"] == "ok"]
    assert len(good) == len(set(good)) == 3
    assert (results / "report.html").exists()
