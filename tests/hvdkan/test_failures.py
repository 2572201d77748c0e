"""A job that cannot go on ends in seconds, says why first, and leaves a record; a job that cannot start says so."""

import json
import os
import time
from pathlib import Path

import pytest

from hvdkan import record

FAULTY = Path(__file__).parent / "programs" / "faulty.py"
APART = FAULTY.with_name("apart.py")
TRAIN = ("-m", "hvdkan.train")
SMALL = ("--samples", "400", "--global-batch-size", "100", "--epochs", "2", "--hidden", "4", "--threads", "1")
#: Far more than a start takes, far less than any library's own patience.
SOON = 60


def failed(done, path, *words, status="failed"):
    """The run ended badly, in the failing rank's words before anybody else's, and its record says so."""
    assert done.returncode not in (0, None)
    shown = done.stderr + done.stdout
    assert "rank 1 on" in shown
    text = shown[shown.index("rank 1 on") :]
    for word in words:
        assert word in text
    (found,) = record.read(path).records
    assert found["status"] == status
    assert found["error"]["rank"] == 1
    return found


@pytest.mark.launch
@pytest.mark.parametrize(
    ("backend", "fault", "call", "kind"),
    [
        # One way out serves all back ends; what differs is where the other ranks wait.
        ("horovod", "missing", 0, "FileNotFoundError"),
        ("horovod", "nan", 3, "FloatingPointError"),
        ("horovod", "full", 3, "OSError"),
        ("horovod", "interrupt", 3, "KeyboardInterrupt"),
        ("horovod", "exit", 3, "SystemExit"),
        ("ddp", "missing", 0, "FileNotFoundError"),
        ("ddp", "exit", 3, "SystemExit"),
        ("mpi", "nan", 3, "FloatingPointError"),
        ("mpi", "full", 3, "OSError"),
    ],
)
def test_one_rank_that_raises_ends_the_job(mpirun, tmp_path, backend, fault, call, kind):
    path = tmp_path / "r.jsonl"
    flags = ("--backend", backend, *SMALL, "--record", path)
    done = mpirun(3, FAULTY, fault, call, *flags, timeout=SOON)
    found = failed(done, path, kind)
    assert found["error"]["kind"] == kind
    first = done.stderr.index("rank 1 on")
    for echo in ("MPI_ABORT", "prterun has exited", "rank 0 on", "rank 2 on"):
        assert echo not in done.stderr[:first]
    if fault == "exit":
        assert done.returncode == 3


@pytest.mark.launch
@pytest.mark.parametrize("backend", ["horovod", "ddp"])
def test_one_rank_that_raises_under_torchrun(torchrun, tmp_path, backend):
    path = tmp_path / "r.jsonl"
    flags = ("--backend", backend, *SMALL, "--record", path)
    done = torchrun(3, FAULTY, "full", 3, *flags, timeout=SOON)
    failed(done, path, "No space left on device")
    first = done.stderr.index("rank 1 on")
    assert "rank 0 on" not in done.stderr[:first]
    assert "Root Cause" not in done.stderr[:first]


@pytest.mark.launch
@pytest.mark.parametrize("backend", ["horovod", "ddp", "mpi"])
def test_a_rank_that_never_comes_is_not_waited_for(mpirun, tmp_path, backend):
    path = tmp_path / "r.jsonl"
    started = time.monotonic()
    flags = ("--backend", backend, *SMALL, "--timeout-s", "5", "--record", path)
    done = mpirun(2, FAULTY, "sleep", 3, *flags, timeout=SOON)
    assert time.monotonic() - started < SOON
    assert done.returncode not in (0, None)
    assert "no progress for 5 s while waiting for step 3 of 8" in done.stderr
    (found,) = record.read(path).records
    assert found["status"] == "failed"


@pytest.mark.launch
def test_a_rank_that_never_comes_to_mpi_is_not_waited_for(mpirun, tmp_path):
    """The others wait inside MPI_Init, where mpi4py would let no other thread run."""
    path = tmp_path / "r.jsonl"
    flags = ("--backend", "mpi", *SMALL, "--timeout-s", "5", "--record", path)
    done = mpirun(2, FAULTY, "sleep", "init", *flags, timeout=SOON)
    assert done.returncode not in (0, None)
    assert "no progress for 5 s while waiting for" in done.stderr
    (found,) = record.read(path).records
    assert (found["status"], found["error"]["rank"]) == ("failed", 0)


@pytest.mark.launch
@pytest.mark.parametrize(("backend", "rank"), [("horovod", 0), ("horovod", 1), ("ddp", 1), ("mpi", 0)])
def test_a_rank_that_is_killed_leaves_a_record(mpirun, tmp_path, backend, rank):
    path = tmp_path / "r.jsonl"
    flags = ("--backend", backend, *SMALL, "--record", path)
    done = mpirun(3, FAULTY, f"SIGKILL@{rank}", 3, *flags, timeout=SOON)
    assert done.returncode not in (0, None)
    (found,) = record.read(path).records
    assert found["status"] == "failed"
    assert found["error"]["rank"] != rank


@pytest.mark.launch
@pytest.mark.parametrize(
    ("name", "status", "exit_status", "words"),
    [
        ("SIGINT", "failed", 130, "interrupted"),
        ("SIGTERM", "failed", 143, "ended by SIGTERM"),
        ("SIGUSR2", "preempted", 140, "ended by SIGUSR2"),
    ],
)
def test_a_signal_ends_the_run_in_one_line(alone, tmp_path, name, status, exit_status, words):
    path = tmp_path / "r.jsonl"
    done = alone(FAULTY, name, 3, "--backend", "single", *SMALL, "--record", path, timeout=SOON)
    assert done.returncode == exit_status
    assert f": {words}\n" in done.stderr and "Traceback" not in done.stderr
    (found,) = record.read(path).records
    assert (found["status"], found["error"]["message"]) == (status, words)


@pytest.mark.launch
@pytest.mark.parametrize("backend", ["horovod", "ddp", "mpi"])
def test_a_signal_ends_ranks_that_wait_for_each_other(mpirun, tmp_path, backend):
    path = tmp_path / "r.jsonl"
    done = mpirun(3, FAULTY, "SIGUSR2", 3, "--backend", backend, *SMALL, "--record", path, timeout=SOON)
    found = failed(done, path, "ended by SIGUSR2", status="preempted")
    assert found["error"]["kind"] == "Stopped"
    assert "Traceback" not in done.stderr


@pytest.mark.launch
def test_a_loss_that_is_no_number_stops_with_the_step(alone, tmp_path):
    path = tmp_path / "r.jsonl"
    done = alone(*TRAIN, "--backend", "single", *SMALL, "--learning-rate", "1e30", "--record", path)
    assert done.returncode == 1
    (found,) = record.read(path).records
    assert found["status"] == "failed"
    assert found["error"]["kind"] == "FloatingPointError"
    assert "at step 2 (epoch 1)" in found["error"]["message"]
    assert found["error"]["message"] in done.stderr


# --- jobs that cannot start ---


def refused(done, *words):
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in lines[0]


def test_an_unknown_value_is_one_line(alone):
    done = alone(*TRAIN, "--operator", "kan")
    refused(done, "'kan'", "spline, matrix, pykan, mlp")
    assert done.stderr.count("\n") == 1


REFUSALS = [
    ("--order 0", ("--order is 0",)),
    ("--backend single", ("single has one worker", "mpirun started 3")),
    ("--simulate-nodes 2,2", ("places 4 workers, but 3 are running",)),
    ("--samples 100 --batch-size 50", ("50 on 3 ranks is 150 a step, more than --samples 100",)),
    ("--record /proc/no/such", ("--record is '/proc/no/such'", "cannot be written")),
    ("--save /proc", ("--save is '/proc', a directory",)),
    ("--save /dev/null", ("--save is '/dev/null', a device; it must be a file",)),
    ("--allreduce hierarchical --engine nccl", ("'nccl'", "ignores it", "process_sets")),
    *([] if os.path.exists("/dev/nvidia0") else [("--device cuda", ("torch sees no GPU",))]),  # noqa: PTH110
]


@pytest.mark.launch
def test_many_ranks_refuse_in_one_line(mpirun, tmp_path):
    """Each refused as a run of its own would be, in processes that go on with the next."""
    (tmp_path / "flags").write_text("".join(f"{flags}\n" for flags, _ in REFUSALS))
    done = mpirun(3, FAULTY.with_name("many_runs.py"), tmp_path / "flags", tmp_path / "r.jsonl", timeout=SOON)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == len(REFUSALS), done.stderr
    assert "Traceback" not in done.stderr
    for line, (flags, words) in zip(lines, REFUSALS, strict=True):
        assert all(word in line for word in words), (flags, line)
        assert done.stdout.count(f"ran 2 {flags}\n") == 3
    assert not (tmp_path / "r.jsonl").exists()


@pytest.mark.launch
@pytest.mark.parametrize("flag", ["--save", "--record"])
def test_what_is_read_is_not_written_to(alone, tmp_path, flag):
    table = tmp_path / "t.csv"
    table.write_text("a,y\n" + "".join(f"{n},{n * n}\n" for n in range(50)))
    before = table.read_bytes()
    done = alone(*TRAIN, "--backend", "single", "--data", table, "--target", "y", flag, table, "--epochs", "1")
    refused(done, f"{flag} is '{table}', which --data reads; it must be another file")
    assert table.read_bytes() == before


@pytest.mark.launch
def test_a_refusal_of_many_ranks_is_the_exit_status(mpirun):
    refused(mpirun(2, *TRAIN, "--order", "0", timeout=SOON), "--order is 0")


DIFFERENT = [
    ({1: ["--grid", "5"]}, ("different settings: --grid is 10 on ranks 0, 2, 5 on rank 1",)),
    ({0: ["--backend", "single"]}, ("--backend is single on rank 0, horovod on ranks 1, 2",)),
    ({1: ["--grid", "0"]}, ("rank 1 of 3: --grid is 0; it must be",)),
    ({0: ["--grid", "0"], 2: ["--grid", "0"]}, ("ranks 0, 2 of 3: --grid is 0",)),
    (
        {1: ["HOROVOD_HIERARCHICAL_ALLREDUCE=1"]},
        ("--allreduce is stock on ranks 0, 2, hierarchical on rank 1", "mpirun -x HOROVOD_HIERARCHICAL_ALLREDUCE"),
    ),
]


@pytest.mark.launch
def test_ranks_that_were_told_different_things_do_not_train(mpirun, tmp_path):
    path = tmp_path / "r.jsonl"
    cases = [json.dumps(ranks) for ranks, _ in DIFFERENT]
    done = mpirun(3, APART, json.dumps(cases), *SMALL, "--record", path, timeout=SOON)
    refusals = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2 and len(refusals) == len(DIFFERENT), done.stderr
    for line, (_, words) in zip(refusals, DIFFERENT, strict=True):
        assert all(word in line for word in words), line
    assert not path.exists()


@pytest.mark.launch
@pytest.mark.parametrize("ranks", [{1: ["--grid", "0"]}, {1: ["--seed", "1"]}])
def test_ranks_of_torchrun_that_were_told_different_things_do_not_train(torchrun, ranks):
    done = torchrun(2, APART, json.dumps([json.dumps(ranks)]), *SMALL, "--backend", "ddp", timeout=SOON)
    assert done.returncode != 0
    assert done.stderr.count("error: rank") == 1, done.stderr


@pytest.mark.launch
def test_mpi_for_horovod_under_gloo_is_refused(horovodrun):
    done = horovodrun(2, *TRAIN, *SMALL, "--transport", "mpi", timeout=SOON)
    shown = done.stdout + done.stderr
    assert done.returncode != 0
    assert shown.count("error: --transport is 'mpi', but horovodrun offers no MPI; it must be auto or gloo") == 1, shown


@pytest.mark.launch
@pytest.mark.parametrize("backend", ["ddp", "mpi"])
@pytest.mark.parametrize("flags", [("--record", "/proc/no/such"), ("--samples", "100", "--batch-size", "60")])
def test_a_started_back_end_leaves_with_status_2(mpirun, backend, flags):
    refused(mpirun(2, *TRAIN, "--backend", backend, *flags, timeout=SOON), flags[-2])


@pytest.mark.launch
def test_a_failure_of_all_ranks_is_one_record(mpirun, tmp_path):
    """Horovod's own rendezvous fails before the ranks have a common run id."""
    path = tmp_path / "r.jsonl"
    broken = {"OMPI_MCA_btl": "no_such_component", "OMPI_MCA_pml": "ob1"}
    done = mpirun(3, *TRAIN, *SMALL, "--record", path, env=broken, timeout=SOON)
    assert done.returncode not in (0, None)
    if path.exists():
        assert len(record.read(path).records) == 1


@pytest.mark.launch
def test_a_missing_library_is_named(alone, tmp_path):
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("raise ModuleNotFoundError('gone', name='horovod')")
    done = alone(*TRAIN, *SMALL, env={"PYTHONPATH": str(tmp_path)})
    refused(done, "--backend horovod needs horovod, which is not installed on")


@pytest.mark.launch
@pytest.mark.parametrize("backend", ["horovod", "ddp", "mpi"])
def test_a_world_smaller_than_launched_does_not_train(alone, tmp_path, backend):
    """What happens when srun or a foreign mpirun starts processes that do not find each other."""
    path = tmp_path / "r.jsonl"
    lost = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
    done = alone(*TRAIN, "--backend", backend, *SMALL, "--record", path, env=lost, timeout=SOON)
    refused(done, "srun started 4 ranks (SLURM_STEP_NUM_TASKS)", "sees 1", "--mpi")
    assert not path.exists()


@pytest.mark.launch
def test_no_mpi_under_torchrun_is_said(torchrun):
    done = torchrun(2, *TRAIN, "--backend", "mpi", *SMALL, timeout=SOON)
    assert done.returncode != 0
    assert done.stderr.count("error: --backend mpi has no MPI under torchrun; start it with mpirun or srun") == 1
