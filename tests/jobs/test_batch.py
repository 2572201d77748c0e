"""Studies as batch jobs: scripts, what is refused before anything queues, and what is left when jobs end."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvdkan import record
from jobs import batch, launch, launchers, queue, study, waiting
from jobs.ledger import Ledger, LedgerError
from jobs.plan import parse
from jobs.runner import expand, missing
from jobs.sites import Site
from jobs.store import Store

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PLAN = """
study = "tiny"
blocks = 2
timeout_s = 30
primary = [["flat", "hierarchical"]]
[common]
samples = 800
batch_size = 10
epochs = 1
backend = "mpi"
[[variant]]
name = "flat"
placement = "4G2N"
allreduce = "flat"
[[variant]]
name = "hierarchical"
placement = "4G2N"
allreduce = "hierarchical"
[[variant]]
name = "small"
placement = "1G1N"
"""
LOCAL = re.sub(r'placement = ".*"', "ranks = 1", PLAN)
SITE = """
workers_per_node = 2
cpus_per_worker = 4
time_limit = "90"
partition = "gpu part"
account = "kan"
memory_per_node = "0"
gres = "gpu"
sbatch_options = ["--hint=nomultithread"]
report_options = ["--mem=4G"]
prolog = ["set -euo pipefail", "module load openmpi"]
[environment]
UCX_NET_DEVICES = "mlx5_0:1"
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory that a shell would trip over, with a plan and a site."""
    path = tmp_path / "it's $HOME é"
    path.mkdir(mode=0o755)
    (path / "plan.toml").write_text(PLAN)
    (path / "site.toml").write_text(SITE)
    (path / "site.toml").chmod(0o644)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(HERE)]))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return path


def command_line(place, *more):
    return [str(place / "plan.toml"), "--results", str(place / "results"), "--launcher", "sbatch", *more]


def stored(place, text=LOCAL):
    """A store as a runner leaves it, its plan's launches, and its ledger."""
    plan = parse(text)
    store = Store(place / "results", plan.study)
    with store.locked():
        store.keep(plan)
    return store, expand(plan), Ledger(store.root / "slurm")


def write(store, one, status="ok", **more):
    made = launch._failed(one, None, launch.datetime.now(launch.UTC), 2.0) | {"status": status} | more
    record.write(store.records / f"{one.file}.jsonl", [made])


# --- scripts ---


def test_a_dry_run_prints_the_scripts_and_touches_nothing(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    assert study.main(command_line(place, "--site", str(place / "site.toml"), "--dry-run", "--blocks", "1")) == 0
    out, err = capsys.readouterr()
    as_root = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 "
    as_root += "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
    known = {str(place).replace("'", "'\"'\"'"): "PLACE", str(place): "PLACE", sys.executable: "PYTHON", as_root: ""}
    for text, name in known.items():
        out = out.replace(text, name)
    assert err == "" and out == (HERE / "golden/dry_run.txt").read_text()
    assert sorted(file.name for file in place.iterdir()) == ["plan.toml", "site.toml"]


def test_an_allocation_around_does_not_leak_into_the_job():
    inside = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SBATCH_PARTITION": "x", "SRUN_CPUS_PER_TASK": "3"}
    inside |= {"PMIX_RANK": "0", "PMI_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "SLURMD_NODENAME": "n", "SALLOC_X": "1"}
    inside |= {"CUDA_VISIBLE_DEVICES": "1", "HVDKAN_NESTED": "1"}
    kept = {"SLURM_CONF": "/etc/slurm.conf", "PATH": "/bin", "OMPI_MCA_pml": "ucx", "HOME": "/h"}
    assert queue.environment_outside(inside | kept) == kept
    # Outside an allocation the choice of devices is the user's.
    assert queue.environment_outside({"CUDA_VISIBLE_DEVICES": "1"}) == {"CUDA_VISIBLE_DEVICES": "1"}


# --- refusals before anything queues ---


def refused(capsys, *words):
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and err.startswith("error: "), (out, err)
    assert all(word in err for word in words), err


def test_a_site_is_needed_and_must_hold_the_plan(place, capsys):
    assert study.main(command_line(place)) == 2
    refused(capsys, "--launcher sbatch needs --site: one of finisterrae3, rehearsal, or the path")
    assert study.main(command_line(place, "--site", "nowhere")) == 2
    refused(capsys, "--site is 'nowhere'; it must be one of finisterrae3, rehearsal")
    for old, new, words in [
        ("workers_per_node = 2", "workers_per_node = 1", ["variant flat: 4G2N: 2 workers a node exceed", "1"]),
        ('time_limit = "90"', 'time_limit = "00:20"', ["timeout_s of the plan is 30", "00:20"]),
        ("gres =", "gras =", ["site.toml: unknown key 'gras'; the valid ones are workers_per_node"]),
    ]:
        (place / "site.toml").write_text(SITE.replace(old, new))
        assert study.main(command_line(place, "--site", str(place / "site.toml"))) == 2
        refused(capsys, *words)
    (place / "site.toml").write_text(SITE)
    (place / "site.toml").chmod(0o664)
    assert study.main(command_line(place, "--site", str(place / "site.toml"))) == 2
    refused(capsys, "can be written by others", "chmod go-w")
    assert not (place / "results").exists()


def test_threads_must_be_equal_and_fit(place, capsys):
    for threads, words in [("2", ["threads are 1, 2; in one allocation all must be equal"])]:
        (place / "plan.toml").write_text(PLAN + f"threads = {threads}\n")
        assert study.main(command_line(place, "--site", str(place / "site.toml"))) == 2
        refused(capsys, *words)
    (place / "plan.toml").write_text(PLAN.replace("[common]", "[common]\nthreads = 8"))
    assert study.main(command_line(place, "--site", str(place / "site.toml"))) == 2
    refused(capsys, "threads is 8, more than the site's cpus_per_worker 4")


def test_a_machine_without_slurm_is_told_so(place, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(place))
    assert study.main(command_line(place, "--site", str(place / "site.toml"), "--detach")) == 2
    assert "error: sbatch is not on PATH" in capsys.readouterr().err
    # It may have been submitted, as far as the ledger knows; the next start asks.
    assert [entry.job for entry in Ledger(place / "results/tiny/slurm").open()] == [None]


def test_detaching_is_for_jobs_and_srun_for_allocations(place, capsys):
    (place / "plan.toml").write_text(LOCAL)
    words = command_line(place, "--site", str(place / "site.toml"))
    words[words.index("sbatch")] = "local"
    assert study.main([*words, "--detach"]) == 2
    refused(capsys, "--detach is for --launcher sbatch")
    assert study.main([*words, "--wait", "1:00"]) == 2
    refused(capsys, "--wait is for --launcher sbatch")
    assert study.main(words) == 2
    refused(capsys, "which --launcher local does not use; use one of mpirun, sbatch, srun")
    words[words.index("local")] = "srun"
    assert study.main(words) == 2
    refused(capsys, "no Slurm allocation is here for srun")


def test_an_allocation_smaller_than_planned_is_refused():
    around = {"SLURM_JOB_NODELIST": "n[1-4]", "SLURM_TASKS_PER_NODE": "2(x4)"}
    batch.check_allocation(around, 4, 2)
    for nodes, each in [(5, 2), (4, 3)]:
        with pytest.raises(
            launchers.LauncherError, match=f"planned were {nodes} nodes for {each} .*n1, n2, n3, n4 for 2"
        ):
            batch.check_allocation(around, nodes, each)
    with pytest.raises(launchers.LauncherError, match="the allocation has no nodes for 0"):
        batch.check_allocation({}, 1, 1)


# --- the ledger ---


def test_the_ledger_is_on_disk_before_a_job_is_submitted(tmp_path):
    ledger = Ledger(tmp_path / "slurm")
    assert ledger.entries == [] and not (tmp_path / "slurm").exists()
    entry = ledger.add("tiny", 3)
    assert re.fullmatch(r"tiny-b03-[0-9a-f]{6}", entry.name) and ledger.add("tiny", 3).name != entry.name
    entry.job = "12"
    ledger.save()
    again = Ledger(tmp_path / "slurm")
    assert again.entries == ledger.entries and [one.job for one in again.open()] == ["12", None]
    again.entries[0].ended = "COMPLETED"
    again.save()
    assert len(Ledger(tmp_path / "slurm").open()) == 1
    (tmp_path / "slurm/jobs.json").write_text('[{"job": 1}]')
    with pytest.raises(LedgerError, match=r"jobs.json cannot be read"):
        Ledger(tmp_path / "slurm")


def test_other_launchers_stay_away_where_jobs_may_be_at_work(place, capsys, monkeypatch):
    store, _, ledger = stored(place)
    ledger.add("tiny", 1).job = "12"
    ledger.save()
    (place / "plan.toml").write_text(LOCAL)
    monkeypatch.setenv("PATH", str(place))
    assert study.main(command_line(place, "--launcher", "local", "--no-report")) == 2
    refused(capsys, "job 12 may be at work on ", str(store.root), "squeue is not on PATH")
    assert not any(store.records.iterdir())


# --- what jobs leave ---


def test_a_launch_that_its_job_took_with_it_is_recorded_and_the_rest_is_missing(place, capsys):
    store, launches, ledger = stored(place)
    first, second, third = (one for one in launches if one.block == 1)
    write(store, first)
    entry = ledger.add("tiny", 1)
    entry.job = "12"
    (store.logs / f"{first.file}.log").write_text("done\n")
    (store.logs / f"{second.file}.log").write_text("hello from 0\n")
    waiting.settle(entry, "NODE_FAIL", store, launches)
    assert entry.ended == "NODE_FAIL"
    cut = record.read(store.records / f"{second.file}.jsonl").records[0]
    assert cut["status"] == "preempted" and cut["variant"] == second.variant.name
    assert cut["error"]["message"] == "job 12 ended (NODE_FAIL) while this launch ran\nhello from 0"
    assert not (store.records / f"{third.file}.jsonl").exists()
    # The next start repeats those, as the next attempt where one was begun, and the finished one never.
    todo = {one.file for _, one in missing(launches, store) if one.block == 1}
    assert todo == {second.file.replace("-a1", "-a2"), third.file}
    # Seen twice, it changes nothing; nor does a log that is older than the job.
    before = sorted(store.records.iterdir())
    waiting.settle(entry, "NODE_FAIL", store, launches)
    log = store.logs / f"{third.file}.log"
    log.write_text("of an earlier run\n")
    os.utime(log, (entry.submitted - 60, entry.submitted - 60))
    waiting.settle(entry, "NODE_FAIL", store, launches)
    assert sorted(store.records.iterdir()) == before


def test_a_line_for_each_launch_that_finishes(place, capsys):
    store, launches, _ = stored(place)
    write(store, launches[0])
    watch = waiting._Watch(store, launches)
    assert watch.look() == 0
    write(store, launches[1])
    write(store, launches[4], "failed", error={"kind": "x", "message": "boom"})
    assert watch.look() == 2 and watch.look() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(len(line) <= 79 for line in lines)
    assert lines[0].startswith(f"launch 2 of 6  block 1  {launches[1].variant.name} 1G1N  ok 2.0 s")
    assert "launch 5 of 6  block 2" in lines[1] and "failed 2.0 s" in lines[1] and lines[2] == "  boom"
    assert [one.variant.name for one in watch.without_record(1)] == [launches[2].variant.name]


def test_the_summary_names_what_failed_and_what_was_not_started(place, capsys):
    store, launches, ledger = stored(place)
    ledger.add("tiny", None).ended = "FAILED"
    for one in launches[:4]:
        write(store, one)
    write(store, launches[4], "failed", error={"kind": "x", "message": "boom\nmore"})
    assert waiting._summary(ledger, store, launches) == 1
    out = capsys.readouterr().out
    assert "6 launches: 4 done, 2 failed or missing" in out
    assert f"failed: {launches[4].variant.name} block 2: boom\n" in out
    assert f"failed: {launches[5].variant.name} block 2: its job ended before it was started" in out
    assert "the report's job" in out and "ended (FAILED)" in out


# --- a launch that did not run as planned, or had no time ---


class Here(launchers.Local):
    """One machine as the only node."""


def launched(place, monkeypatch, mode, **fields):
    monkeypatch.setenv("FAKE_TRAIN", json.dumps({"small": mode}))
    monkeypatch.setenv("FAKE_RECORD", json.dumps(fields))
    store, launches, _ = stored(place, PLAN)
    one = next(one for one in launches if one.variant.name == "small")
    with store.locked():
        result = launch.run(one, Here(), "fake_train", store, 30.0, lambda seconds: None)
    return result, record.read(store.records / f"{one.file}.jsonl").records[0]


def test_a_launch_that_ran_elsewhere_than_planned_is_a_failure(place, monkeypatch):
    result, made = launched(place, monkeypatch, "ok", placement="1G1N")
    assert result.failure is None and made["status"] == "ok"
    result, made = launched(place, monkeypatch, "ok", placement="8G1N")
    assert result.failure == "ran as 8G1N and not as 1G1N, which was planned"
    assert made["status"] == "failed" and made["error"]["kind"] == "placement"


def test_a_launch_that_the_end_of_the_job_cut_off_is_preempted(place, monkeypatch):
    result, made = launched(place, monkeypatch, "usr2")
    assert result.preempted and made["status"] == "preempted"
    assert made["error"]["message"].startswith("ended by SIGUSR2: the time of the job around it was nearly over")


def test_a_launch_that_tells_of_its_preemption_is_believed(place, monkeypatch):
    result, made = launched(place, monkeypatch, "told")
    assert result.preempted and result.failure == "ended by SIGUSR2"
    assert made["status"] == "preempted" and made["error"]["host"] == "here"


# --- inside an allocation ---


def inside(place, monkeypatch):
    """The environment of a job of one node, this machine, and the words for block 2 with its launches."""
    site = 'workers_per_node = 2\ncpus_per_worker = 1\ntime_limit = "5"\nlauncher = "mpirun"\nbind = "none"\n'
    (place / "site.toml").write_text(site)
    for name in ("SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        monkeypatch.setenv(name, socket.gethostname())
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2")
    store, launches, _ = stored(place, LOCAL.replace('"small"\nranks = 1', '"small"\nranks = 2'))
    words = ["run-block", str(store.plan_file), "--results", str(place / "results")]
    words += ["--block", "2", "--site", str(place / "site.toml")]
    return words, [one for one in launches if one.block == 2]


@pytest.mark.launch
def test_a_block_runs_in_its_allocation_and_goes_on_after_a_failure(place, monkeypatch):
    words, launches = inside(place, monkeypatch)
    monkeypatch.setenv("FAKE_STARTS", str(place / "starts"))
    monkeypatch.setenv("FAKE_TRAIN", json.dumps({"hierarchical": "raise"}))
    assert batch.main(words, module="fake_train") == 1
    assert (place / "starts").read_text().split() == [one.file for one in launches]
    records = {one["variant"]: one for one in record.read(place / "results/tiny/records").records}
    assert {name: one["status"] for name, one in records.items()} == {
        "flat": "ok", "hierarchical": "failed", "small": "ok",
    }  # fmt: skip
    assert records["small"]["size"] == 2 and records["small"]["block"] == 2
    monkeypatch.setenv("FAKE_TRAIN", "{}")
    assert batch.main(words, module="fake_train") == 0
    assert (place / "starts").read_text().split()[3:] == ["hierarchical-b2-a2"]


@pytest.mark.launch
def test_a_job_that_is_told_to_end_records_the_launch_at_work(place, monkeypatch):
    words, (first, *_) = inside(place, monkeypatch)
    monkeypatch.setenv("FAKE_TRAIN", json.dumps({first.variant.name: "hang"}))
    monkeypatch.setenv("FAKE_PIDS", str(place / "pids"))
    code = "import sys; from jobs import batch; sys.exit(batch.main(sys.argv[1:], module='fake_train'))"
    with subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True) as job:
        deadline = time.monotonic() + 60
        while not (place / "pids").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        job.send_signal(signal.SIGTERM)
        _, err = job.communicate(timeout=60)
    assert (job.returncode, err) == (143, "")
    made = record.read(place / f"results/tiny/records/{first.file}.jsonl").records[0]
    assert made["status"] == "preempted" and made["error"]["message"].startswith(
        "job 12 was told to end while this ran"
    )
    assert not any(map(alive, (place / "pids").read_text().split()))


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_block_outside_an_allocation_is_refused(place, capsys):
    words = ["run-block", str(place / "plan.toml"), "--results", str(place / "results"), "--block", "1"]
    assert batch.main([*words, "--site", str(place / "site.toml")]) == 2
    assert "no Slurm allocation is here for srun" in capsys.readouterr().err
    assert batch.main(words) == 2
    assert "--site" in capsys.readouterr().err


def test_the_site_as_a_whole_is_what_the_job_asks_for():
    assert batch.shape(parse(PLAN), Site(2, 1, "90")) == (2, 2)
    assert batch.shape(parse(PLAN.replace("1G1N", "3G3N")), Site(2, 1, "90")) == (3, 2)
