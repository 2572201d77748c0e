"""Slurm's texts: node lists, task counts and times as Slurm writes them, and batch scripts to the last character."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.slurm import (
    Job,
    SlurmError,
    directives,
    expand_nodes,
    read_directives,
    read_time,
    script,
    task_counts,
    write_time,
)

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"


def rows(name):
    lines = (HERE / "data" / name).read_text().splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


# --- node lists and task counts ---


@pytest.mark.parametrize("text, hosts", rows("slurm_node_lists.tsv"))
def test_node_lists(text, hosts):
    assert expand_nodes(text) == hosts.split()


@pytest.mark.parametrize(
    "text, hosts",
    [
        ("", ""),
        ("n1", "n1"),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("n[7]", "n7"),
        ("rack[1-2]n[1-2]", "rack1n1 rack1n2 rack2n1 rack2n2"),
        ("a[1-2]-ib,b", "a1-ib a2-ib b"),
        ("a[1,3],a[5-6]", "a1 a3 a5 a6"),
    ],
)
def test_more_node_lists(text, hosts):
    assert expand_nodes(text) == hosts.split()


@pytest.mark.parametrize("text", ["n[1-", "n]1[", "n[a-b]", "n[]", "n[3-1]", "n[1-3", "a,,b", "a b", "n[1-999999999]"])
def test_what_is_no_node_list_is_named(text):
    with pytest.raises(SlurmError, match="node list"):
        expand_nodes(text)


@pytest.mark.parametrize("text, counts", rows("slurm_task_counts.tsv"))
def test_task_counts(text, counts):
    assert task_counts(text) == [int(count) for count in counts.split()]


@pytest.mark.parametrize("text", ["", "x", "2(x)", "2(x0)", "2,", "-1", "2 (x3)", "2(x999999999)"])
def test_what_is_no_task_count_is_named(text):
    with pytest.raises(SlurmError, match="task counts"):
        task_counts(text)


# --- times ---

TIMES = [
    ("90", 5400),
    ("5", 300),
    ("01:30", 90),
    ("90:00", 5400),
    ("02:00:00", 7200),
    ("1-00", 86400),
    ("2-12", 216000),
    ("1-02:03", 93780),
    ("1-02:03:04", 93784),
    ("0-00:00:01", 1),
]


@pytest.mark.parametrize("text, seconds", TIMES)
def test_times_are_read_as_slurm_reads_them(text, seconds):
    assert read_time(text) == seconds
    assert read_time(write_time(seconds)) == seconds


def test_times_are_written_as_slurm_writes_them():
    assert [write_time(seconds) for seconds in (1, 90, 3600, 86399, 86400, 93784, 59.2)] == [
        "00:00:01", "00:01:30", "01:00:00", "23:59:59", "1-00:00:00", "1-02:03:04", "00:01:00",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["UNLIMITED", "unlimited", "INFINITE", "-1"])
def test_no_limit_is_refused_by_its_name(text):
    with pytest.raises(SlurmError, match=f"time_limit is '{text}'; a limit is needed here"):
        read_time(text, "time_limit")


@pytest.mark.parametrize("text", ["", "0", "00:00:00", "1h", "1:2:3:4", "1-", "-5", "1.5", "\uff11", "1-2:3:4:5"])
def test_what_is_no_time_is_named(text):
    with pytest.raises(SlurmError, match="time is "):
        read_time(text)


# --- scripts ---

PLAIN = Job(
    name="quick-b01-3fa9c1",
    directory="/home/u/results/quick/slurm",
    work_directory="/home/u/hvdkan",
    command=("/home/u/.venv/bin/python", "-m", "jobs.batch", "run-block", "/home/u/results/quick/plan.toml"),
    time_s=7200,
    nodes=2,
    workers_per_node=2,
    cpus_per_worker=32,
    exclusive=True,
    options=(("--account", "kan"), ("--gres", "gpu:a100:2"), ("--hint", "nomultithread"), ("--contiguous", None)),
    environment=(("NCCL_IB_HCA", "=mlx5_0:1"),),
    prolog=("set -euo pipefail", "module load openmpi"),
)
ONE = Job(
    name="one-node",
    directory="/r/slurm",
    work_directory="/w",
    command=("python", "-m", "analysis.report", "/r"),
    time_s=90061,
    workers_per_node=2,
    cpus_per_worker=1,
)
ODD = Job(
    name="KAN 2x2 #1 | a$b `id`",
    directory='/home/josé/it\'s a "b" $c',
    work_directory="/home/josé/it's mine",
    command=("python", "-c", "print('$HOME')", "$(touch pwned)", "`id`", "a\\b", ""),
    time_s=60,
    options=(("--comment", "# 'no' \"comment\" \\"),),
    environment=(("ODD", "$HOME `id` 'é'"),),
    prolog=("set -euo pipefail", 'readonly MINE="prolog"'),
)


@pytest.mark.parametrize("name, job", [("plain", PLAIN), ("one", ONE), ("odd", ODD)])
def test_the_whole_script(name, job):
    assert script(job) == (GOLDEN / f"{name}.sh").read_text()


@pytest.mark.parametrize("job", [PLAIN, ONE, ODD])
def test_directives_read_back_equal_and_come_before_the_first_command(job):
    text = script(job)
    assert read_directives(text) == directives(job)
    assert dict(directives(job))["--job-name"] == job.name
    assert dict(directives(job))["--chdir"] == job.directory
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first:])
    assert lines[first] == (job.prolog or (f"export SRUN_CPUS_PER_TASK={job.cpus_per_worker}",))[0]
    asked = {
        flag: int(value) for flag, value in directives(job) if flag in ("--nodes", "--ntasks", "--ntasks-per-node")
    }
    assert asked["--ntasks"] == asked["--nodes"] * asked["--ntasks-per-node"]


def test_directives_are_read_as_sbatch_does():
    text = "#!/bin/sh\n#SBATCH --a=1 --b='x y'  # rest\n # c\n\n" + '#SBATCH --d="a\\"#" -N1\ntrue\n#SBATCH --late\n'
    assert read_directives(text) == [
        ("--a", "1"), ("--b", "x y"), ("--d", 'a"#'), ("-N1", None),
    ]  # fmt: skip


def test_the_script_is_bash_and_expands_nothing(tmp_path):
    place = tmp_path / "it's `here` $HOME é"
    place.mkdir()
    code = "import json, os, sys; print(json.dumps([os.getcwd(), sys.argv[1:], os.environ['ODD'], os.environ['HOME']]))"
    job = replace(ODD, work_directory=str(place), command=(sys.executable, "-c", code, *ODD.command[2:]))
    file = tmp_path / "job.sh"
    file.write_text(script(job))
    done = subprocess.run(["bash", str(file)], capture_output=True, text=True, check=True, cwd=tmp_path)
    where, words, odd, _ = json.loads(done.stdout)
    assert (where, words, odd) == (str(place), list(ODD.command[2:]), dict(ODD.environment)["ODD"])
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize(
    "change",
    [
        {"name": "a\nb"},
        {"name": "a\n#SBATCH --reservation=x"},
        {"directory": "/a\nb"},
        {"directory": "/a\\b"},
        {"work_directory": "/a\rb"},
        {"command": ("a", "b\nc")},
        {"environment": (("A", "x\ny"),)},
        {"prolog": ("set -e\nrm x",)},
        {"options": (("--comment", "a\0b"),)},
        {"name": "a/b"},
        {"name": ""},
    ],
)
def test_a_value_of_several_lines_is_refused(change):
    with pytest.raises(SlurmError, match=r" is '"):
        script(replace(ODD, **change))
