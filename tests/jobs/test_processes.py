"""A command and everything it starts come to an end."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jobs import processes
from jobs.launchers import Mpirun

pytestmark = pytest.mark.launch
HERE = Path(__file__).parent
#: Ignores SIGTERM, tells its pid, and so does a child in a session of its own.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True)"
subprocess.Popen([sys.executable, "-c", code + "; time.sleep(600)"], start_new_session=True)
print(os.getpid(), flush=True)
time.sleep(600)
"""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def pids(log, count):
    """The process ids that a command printed, once they are all there."""
    for _ in range(200):
        found = [int(word) for word in log.read_text().split() if word.isdigit()] if log.exists() else []
        if len(found) == count:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{count} processes were expected, {found} told their number")


def run(tmp_path, code, timeout_s=60, **options):
    return processes.run([sys.executable, "-c", code], os.environ, tmp_path / "log", timeout_s, **options)


@pytest.mark.parametrize(
    "code, status",
    [("pass", 0), ("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137), ("raise ValueError", 1)],
)
def test_the_exit_status(tmp_path, code, status):
    outcome = run(tmp_path, code)
    assert (outcome.status, outcome.timed_out) == (status, False)
    assert outcome.wall_s > 0


def test_both_outputs_are_kept(tmp_path):
    run(tmp_path, "import sys; print('out', flush=True); print('err', file=sys.stderr)")
    assert (tmp_path / "log").read_text().split() == ["out", "err"]


def test_nothing_is_read_from_the_terminal(tmp_path):
    assert run(tmp_path, "import sys; sys.exit(len(sys.stdin.read()))").status == 0


def test_a_command_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        processes.run([str(tmp_path / "nothing")], {}, tmp_path / "log", 1)


def test_the_time_limit_ends_the_whole_tree(tmp_path):
    outcome = run(tmp_path, STUBBORN, timeout_s=1.5, grace_s=0.2)
    assert outcome.timed_out and outcome.status == 128 + signal.SIGKILL
    assert not any(map(alive, pids(tmp_path / "log", 2)))


def test_a_polite_command_is_ended_by_sigterm(tmp_path):
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(5)); time.sleep(60)"
    outcome = run(tmp_path, code, timeout_s=1.0, grace_s=30)
    assert outcome.timed_out and outcome.status == 5


def test_what_a_command_leaves_behind_is_ended(tmp_path):
    code = STUBBORN.replace("time.sleep(600)\n", "time.sleep(0.5)\n")
    outcome = run(tmp_path, code, grace_s=0.2)
    assert (outcome.status, outcome.timed_out) == (0, False)
    assert not any(map(alive, pids(tmp_path / "log", 2)))


def test_a_child_that_cleared_its_environment_is_ended_too(tmp_path):
    code = """
import os, subprocess
child = subprocess.Popen(["sleep", "600"], env={}, process_group=0)
print(child.pid, flush=True)
"""
    assert run(tmp_path, code).status == 0
    assert not any(map(alive, pids(tmp_path / "log", 1)))


def test_what_a_command_leaves_behind_is_asked_first(tmp_path):
    child = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(print('asked', flush=True)));"
    child += "print('ready', flush=True); time.sleep(600)"
    code = f"""
import subprocess, sys, time
from pathlib import Path
subprocess.Popen([sys.executable, "-c", {child!r}], start_new_session=True)
while "ready" not in Path({str(tmp_path / "log")!r}).read_text():
    time.sleep(0.01)
"""
    assert run(tmp_path, code, grace_s=30).status == 0
    assert (tmp_path / "log").read_text().split() == ["ready", "asked"]


def test_an_exception_ends_the_whole_tree(tmp_path):
    def interrupt(_seconds):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, STUBBORN, tick=interrupt, grace_s=0.2)
    assert not any(map(alive, pids(tmp_path / "log", 2)))


def test_other_processes_are_left_alone(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True) as other:
        run(tmp_path, STUBBORN, timeout_s=1.0, grace_s=0.2)
        assert other.poll() is None
        other.kill()


def test_a_command_ends_with_a_runner_that_is_killed(tmp_path):
    log = tmp_path / "log"
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    runner = f"""
import os, sys
from pathlib import Path
from jobs import processes
processes.run([sys.executable, "-c", {code!r}], os.environ, Path({str(log)!r}), 600)
"""
    with subprocess.Popen([sys.executable, "-c", runner], cwd=HERE.parents[1]) as process:
        (pid,) = pids(log, 1)
        assert alive(pid)
        process.kill()
    for _ in range(100):
        if not alive(pid):
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("the command outlived its runner by 5 s")


@pytest.mark.launch
def test_the_time_limit_reaches_the_ranks_of_mpirun(tmp_path):
    """Each rank is a process group of its own, and here none ends on SIGTERM."""
    log = tmp_path / "log"
    launcher = Mpirun()
    words = launcher.command(3, [sys.executable, "-c", STUBBORN])
    environment = os.environ | launcher.environment(1)
    result = []
    thread = threading.Thread(
        target=lambda: result.append(processes.run(words, environment, log, 6.0, grace_s=0.3)), daemon=True
    )
    thread.start()
    ranks = pids(log, 6)
    assert all(map(alive, ranks))
    thread.join(60)
    assert result[0].timed_out
    assert not any(map(alive, ranks))
