"""The rehearsal cluster for real: it starts, Slurm schedules on it, and it goes whatever was killed."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from jobs.rehearsal import cluster as names
from jobs.rehearsal import network, processes, requirements
from jobs.rehearsal.errors import RehearsalError
from tests.cluster.needs import required

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[2]
#: Of this test run only: another may be at work on the same machine.
BASE = f"t{os.getpid()}"
_FOREIGN = ("SLURM_", "OMPI_", "PMIX_", "PRTE_", "HOROVOD_", "XDG_RUNTIME_DIR")


@pytest.fixture(scope="session", autouse=True)
def possible():
    """Skip by name and reason where a cluster cannot be; CI has everything it takes."""
    required(rate=True)


def environment(**more):
    return {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)} | more


def start(*words, **more):
    return subprocess.Popen(
        [sys.executable, "-m", "jobs.rehearsal", *map(str, words)],
        cwd=ROOT,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def rehearsal(*words, timeout=240, **more):
    """`python -m jobs.rehearsal WORDS`: status, output, errors."""
    with start(*words, **more) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def shell(name, script, timeout=90):
    """What a user types in the outer shell after `eval "$(python -m jobs.rehearsal env)"`."""
    lines = f'eval "$({sys.executable} -m jobs.rehearsal env --name {name})"\n{script}'
    return subprocess.run(
        ["bash", "-c", lines], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=timeout, check=False
    )


def left(name):
    """Everything that is still there of a cluster, looked for without its own code where that is short."""
    found = [str(path) for path in Path("/tmp").glob(f"hvdkan-rehearsal-{name}-*")]
    found += [line for line in run("ip", "netns", "list").splitlines() if f"-{name}-" in line]
    found += [line for line in run("ip", "-br", "link").splitlines() if names.bridge(name) in line]
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"-{name}-" in line]
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(entry.name) != os.getpid() and f"-{name}-".encode() in (entry / "cmdline").read_bytes():
                found.append((entry / "cmdline").read_text().replace("\0", " "))
    return found + [f"process {pid}" for pid in processes.members(name)]


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@contextlib.contextmanager
def cluster(name, *options):
    """A cluster while the test lasts; nothing of it remains."""
    try:
        up = rehearsal("up", "--name", name, "--nodes", 2, "--gpus-per-node", 2, *options)
        assert up.returncode == 0, up.stdout + up.stderr
        yield up.stdout
    finally:
        down = rehearsal("down", "--name", name)
        assert down.returncode == 0, down.stderr
        assert left(name) == []


@pytest.fixture(scope="module")
def two():
    """Two nodes of two GPUs behind links of 200 Mbit/s: the name, and what `up` printed."""
    with cluster(f"{BASE}-two", "--cross-rate", "200mbit") as printed:
        yield f"{BASE}-two", printed


def test_up_verifies_itself_and_says_what_it_saw(two):
    _, printed = two
    assert "2 nodes are idle" in printed
    assert "host names differ (node1 to node2), CUDA_VISIBLE_DEVICES=0,1 on each" in printed
    assert "of 200 Mbit/s asked for" in printed
    assert "an MPI job runs: rank 0 of 2 on node1; rank 1 of 2 on node2" in printed


def test_srun_from_the_outer_shell_starts_one_task_a_node(two):
    done = shell(two[0], "srun -N2 hostname")
    assert sorted(done.stdout.split()) == ["node1", "node2"], done.stderr


def test_a_task_sees_its_gpus_and_the_core_it_was_given(two):
    code = 'import os; print(os.environ["CUDA_VISIBLE_DEVICES"], len(os.sched_getaffinity(0)))'
    done = shell(two[0], f"srun -N2 --gpus-per-node=2 python -c '{code}'")
    assert done.stdout.split("\n")[:2] == ["0,1 1"] * 2, done.stdout + done.stderr


def test_two_jobs_of_one_gpu_share_a_node_and_not_a_device(two):
    script = "srun -N1 --gpus-per-node=1 sh -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES; sleep 2' & "
    done = shell(two[0], script + script + "wait")
    lines = done.stdout.splitlines()
    assert len(lines) == len(set(lines)) == 2, done.stdout + done.stderr


def test_three_gpus_on_nodes_of_two_are_refused(two):
    done = shell(two[0], "srun -N1 --gpus-per-node=3 hostname")
    assert done.returncode != 0
    assert "Requested node configuration is not available" in done.stderr


def test_sbatch_squeue_scontrol_and_scancel(two, tmp_path):
    done = shell(
        two[0],
        f"""set -e
        cd {tmp_path}
        first=$(sbatch --parsable --nodes=2 --output=%j.out --wait --wrap 'srun hostname; echo in $TMPDIR')
        sort $first.out
        second=$(sbatch --parsable --output=/dev/null --wrap 'sleep 100')
        squeue -h -j $second -o '%T' | grep -E 'RUNNING|PENDING'
        scancel $second
        for _ in $(seq 100); do scontrol show job $second | grep -q CANCELLED && exit 0; sleep 0.1; done
        exit 7""",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split("\n")[1:3] == ["node1", "node2"], done.stdout
    # What jobs leave in the temporary directory is the cluster's.
    assert done.stdout.startswith(f"in /tmp/hvdkan-rehearsal-{two[0]}-{os.geteuid()}/nodes/node"), done.stdout


def test_a_node_sees_its_own_network_hosts_and_shared_memory_only(two):
    marker = f"hvdkan-test-{BASE}"
    Path("/dev/shm", marker).touch()
    try:
        script = "ls /sys/class/net | xargs; getent hosts node2 | cut -d' ' -f1; "
        script += f"test -e /dev/shm/{marker} && echo shared || echo own"
        done = shell(two[0], f'srun -N1 -w node1 sh -c "{script}"')
    finally:
        Path("/dev/shm", marker).unlink()
    interfaces, found, shared = done.stdout.splitlines()
    assert interfaces.split() == ["eth0", "lo"]
    assert found.endswith(".12")
    assert shared == "own"
    assert "controller" not in Path("/etc/hosts").read_text()


def test_status_tells_nodes_links_and_jobs(two):
    told = rehearsal("status", "--name", two[0])
    assert told.returncode == 0, told.stderr
    assert "each node's link 200 Mbit/s" in told.stdout
    assert "node1 idle" in told.stdout and "node2 idle" in told.stdout
    assert told.stdout.endswith("job none\n")


def test_the_directory_lets_nobody_else_in(two):
    assert Path(f"/tmp/hvdkan-rehearsal-{two[0]}-{os.geteuid()}").stat().st_mode & 0o777 == 0o700


def test_a_second_up_of_the_same_name_is_refused_and_harms_nothing(two):
    again = rehearsal("up", "--name", two[0])
    assert again.returncode == 2
    assert "is up, or remains of it are there" in again.stderr
    assert shell(two[0], "srun -N2 hostname").returncode == 0


def test_two_clusters_side_by_side(two, tmp_path):
    other = f"{BASE}-other"
    place = Path(f"/tmp/{BASE}-place")
    with cluster(other, "--directory", place):
        assert place.is_dir() and place.stat().st_mode & 0o777 == 0o700
        first = shell(two[0], "srun -N2 --gpus-per-node=2 hostname; scontrol show config | grep ClusterName")
        second = shell(other, "srun -N2 --gpus-per-node=2 hostname; scontrol show config | grep ClusterName")
        for name, done in ((two[0], first), (other, second)):
            assert done.returncode == 0, done.stderr
            assert done.stdout.split("=")[1].strip() == name
    assert not place.exists()
    assert shell(two[0], "srun -N2 hostname").returncode == 0


def test_shell_sets_what_env_exports(two):
    done = subprocess.run(
        [sys.executable, "-m", "jobs.rehearsal", "shell", "--name", two[0]],
        cwd=ROOT,
        env=environment(SHELL="/bin/sh", SLURM_JOB_ID="7"),
        input="sinfo -h -o %D; echo job=$SLURM_JOB_ID; exit 5\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 5
    assert done.stdout.splitlines()[-2:] == ["2", "job="], done.stdout + done.stderr


# --- it goes, whatever was killed ---


def pids(name, program):
    """The cluster's processes of one program."""
    found = []
    for pid in processes.members(name):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == program:
                found.append(pid)
    return found


@pytest.mark.parametrize("program", ["slurmctld", "munged"])
def test_down_after_a_daemon_was_killed_leaves_nothing_and_a_second_down_finds_nothing(program):
    name = f"{BASE}-{program}"
    with cluster(name):
        job = subprocess.Popen(
            ["bash", "-c", f'eval "$({sys.executable} -m jobs.rehearsal env --name {name})"; exec srun -N2 sleep 1000'],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(lambda: len(pids(name, "sleep")) == 2)
        for pid in pids(name, program):
            os.kill(pid, signal.SIGKILL)
        if program == "slurmctld":
            told = rehearsal("status", "--name", name)
            assert told.returncode == 3
            assert "take it down with" in told.stderr
        assert rehearsal("down", "--name", name).stdout == "rehearsal: down; nothing of it is left\n"
        # srun in the outer shell does not go on waiting for a controller that is gone.
        job.wait(30)
        assert left(name) == []
        again = rehearsal("down", "--name", name)
        assert (again.returncode, again.stdout) == (0, f"rehearsal: nothing is up under the name '{name}'\n")
    told = rehearsal("status", "--name", name)
    assert told.returncode == 3 and "no cluster named" in told.stderr


def wait_for(condition, seconds=90):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_what_came_up_under_another_runtime_directory_is_found_and_goes():
    name, runtime = f"{BASE}-xdg", Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        with start("up", "--name", name, "--nodes", 1, XDG_RUNTIME_DIR=str(runtime)) as up:
            wait_for(lambda: pids(name, "slurmd"))
            up.kill()
            up.communicate(timeout=30)
        assert [entry.name for entry in runtime.iterdir()] == [f"hvdkan-rehearsal-{name}"]
        assert rehearsal("down", "--name", name).returncode == 0
        assert left(name) == [] and list(runtime.iterdir()) == []
    finally:
        shutil.rmtree(runtime)


MOMENTS = {
    "directory": lambda name: Path(f"/tmp/hvdkan-rehearsal-{name}-{os.geteuid()}").exists(),
    "bridge": lambda name: network.links(name),
    "namespaces": lambda name: len(network.namespaces(name)) == 2,
    "daemons": lambda name: pids(name, "slurmd"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_down_after_up_was_killed_in_the_middle(moment):
    name = f"{BASE}-kill-{moment}"
    with start("up", "--name", name, "--nodes", 2) as up:
        wait_for(lambda: MOMENTS[moment](name))
        up.kill()
        up.communicate(timeout=30)
    assert left(name) != []
    assert rehearsal("up", "--name", name).returncode == 2
    assert rehearsal("down", "--name", name).returncode == 0
    assert left(name) == []


@pytest.mark.parametrize(
    ("number", "moment"), [(signal.SIGINT, "namespaces"), (signal.SIGTERM, "daemons"), (signal.SIGTERM, "directory")]
)
def test_a_signal_to_up_takes_down_what_was_made(number, moment):
    name = f"{BASE}-{number.name.lower()}"
    with start("up", "--name", name, "--nodes", 2) as up:
        wait_for(lambda: MOMENTS[moment](name))
        up.send_signal(number)
        _, err = up.communicate(timeout=90)
    assert up.returncode == 128 + number
    assert err == "interrupted: everything was taken down again\n"
    assert left(name) == []


def test_down_ends_an_up_that_is_at_work():
    name = f"{BASE}-atwork"
    with start("up", "--name", name, "--nodes", 2) as up:
        wait_for(lambda: pids(name, "slurmd"))
        down = rehearsal("down", "--name", name)
        up.communicate(timeout=90)
    assert (down.returncode, up.returncode) == (0, 128 + signal.SIGTERM)
    assert down.stdout == "rehearsal: down; nothing of it is left\n"
    assert left(name) == []


def test_a_rate_that_this_machine_cannot_reach_fails_the_check_and_is_taken_down():
    name = f"{BASE}-fast"
    up = rehearsal("up", "--name", name, "--nodes", 2, "--cross-rate", "100gbit")
    assert up.returncode == 1
    assert "100000 Mbit/s was asked for" in up.stderr and "this machine reaches no more" in up.stderr
    assert up.stderr.endswith("error: everything was taken down again\n")
    assert left(name) == []


# --- refusals ---


def test_a_delay_is_refused_before_anything_is_made_or_acts():
    name = f"{BASE}-delay"
    try:
        requirements.check_kernel(rate=False, delay=True)
    except RehearsalError as error:
        refused = rehearsal("up", "--name", name, "--cross-delay", "50us")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr == f"error: {error}\n" and "netem" in refused.stderr
        assert left(name) == []
    else:
        with cluster(name, "--cross-delay", "2ms") as printed:
            assert "with 2000 us asked for each way" in printed


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "the following arguments are required"),
        (["begin"], "invalid choice: 'begin'"),
        (["up", "--nodes", "0"], "--nodes is '0'; it must be a whole number from 1 to 32"),
        (["up", "--gpus-per-node", "17"], "--gpus-per-node is '17'; it must be a whole number from 0 to 16"),
        (["up", "--cores-per-node", "many"], "--cores-per-node is 'many'; it must be a whole number from 1 to 256"),
        (["up", "--cross-rate", "fast"], "--cross-rate is 'fast'; it must be a number and kbit, mbit or gbit"),
        (["up", "--cross-delay", "1s"], "--cross-delay is '1s'; it must be a number and us or ms"),
        (["up", "--name", "../x"], "--name is '../x'"),
        (["up", "--directory", "/tmp"], "/tmp is there already"),
        (["down", "--nodes", "2"], "unrecognized arguments: --nodes 2"),
    ],
)
def test_refusals_are_one_line_and_status_2(words, told):
    refused = rehearsal(*words)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert (
        refused.stderr.startswith(f"error: {told}" if told.startswith("--") else "error: ") and told in refused.stderr
    )
    assert refused.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def nobody():
    """Run `python -m jobs.rehearsal` as another user than root, in a copy that this user can read."""
    with tempfile.TemporaryDirectory(dir="/tmp") as copy:
        for package in ("jobs", "hvdkan"):
            shutil.copytree(ROOT / package, Path(copy, package))
        Path(copy).chmod(0o755)

        def run_as(python, *words):
            return subprocess.run(
                [python, *words], cwd=copy, env=environment(), user=65534, capture_output=True, text=True, check=False
            )

        for python in (sys.executable, "/usr/bin/python3"):
            with contextlib.suppress(OSError):
                if run_as(python, "-c", "pass").returncode == 0:
                    yield lambda *words, python=python: run_as(python, "-m", "jobs.rehearsal", *words)
                    return
        pytest.skip("no Python that another user than root may run")


@pytest.mark.parametrize("command", ["up", "down", "status", "env"])
def test_without_root_it_says_so(nobody, command):
    done = nobody(command, "--name", f"{BASE}-nobody")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: a rehearsal cluster needs root: namespaces, links between them and slurmd do\n"
