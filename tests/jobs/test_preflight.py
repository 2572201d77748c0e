"""The command: its lines, its file, its status, alone and under a real mpirun; nobody waits for ever."""

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvdkan.launcher import Launcher, detect
from jobs.preflight import cli, judge
from jobs.preflight.hardware import Memory
from jobs.preflight.infiniband import Port
from jobs.preflight.judge import Situation
from jobs.preflight.launch import Gpus
from jobs.preflight.look import Seen, first_of_node
from jobs.preflight.one_mpi import Mpis, Tool
from jobs.preflight.software import Package, Wanted
from mpi.topology import TopologyError

FAULT = str(Path(__file__).parent / "programs" / "preflight_fault.py")
WANTED = {"python": Wanted(">=3.11"), "torch": Wanted(">=2.13", "2.13.0")}
SOON = 90


def seen(host, **changes):
    """A rank on a well-kept node of two GPUs."""
    plain = {
        "label": f"{host} boot-of-{host}",
        "packages": [Package("python", "3.11.7"), Package("torch", "2.13.0", "/env/torch")],
        "ours": {"hvdkan": "/src/hvdkan"},
        "prefixes": ["/env"],
        "built": {"mpi": True, "gloo": True, "nccl": True, "cuda": True},
        "mpis": Mpis("Open MPI v5.0.11, x", "/env/libmpi.so.40", "/env/libmpi.so.40", ("/env/libmpi.so.40",)),
        "tools": True,
        "mpirun": Tool("/env/bin/mpirun", "mpirun (Open MPI) 5.0.11", 0),
        "srun": Tool("/bin/srun", "MPI plugin types are...\n\tnone\n\tpmix", 0),
        "gpus": Gpus((f"{host}-0", f"{host}-1"), 2, 2, True),
        "cores": [0, 1],
        "online": 4,
        "omp": "",
        "memory": Memory(1 << 34, 1 << 34),
        "memlock": None,
        "clocksource": "tsc",
        "ports": [Port("mlx5_0", 1, "ACTIVE", "InfiniBand", "200 Gb/sec")],
        "interfaces": ["ib0"],
        "slurm_name": host,
    }
    return Seen(**plain | changes)


def situation(size, launcher_size=None, **environment):
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "PMIX_RANK": "0"}
    environment = {**step, "SLURM_STEP_NUM_TASKS": str(launcher_size or size), **environment}
    return Situation(detect(environment), size, "MPI (mpi4py)", environment)


def job(*changes):
    """The findings of two ranks a node on as many nodes as there are changes, one dictionary each."""
    ranks = []
    for number, change in enumerate(changes, start=1):
        first = seen(f"node{number}", **change)
        second = {"cores": [2, 3], "tools": False, "mpirun": None, "srun": None}
        ranks += [first, seen(f"node{number}", **(second | change | {"tools": False}))]
    return judge.judge(ranks, situation(len(ranks)), WANTED, "/src")


def test_a_job_in_order_has_nothing_but_ok_in_this_order():
    found = job({}, {})
    assert [one for one in found if one.level != "ok"] == []
    assert [one.check for one in found] == [
        "python", "torch", "imports", "horovod build", "one MPI", "mpirun", "srun", "world", "placement", "GPUs",
        "hierarchy", "engines", "cores", "/dev/shm", "InfiniBand", "ulimit -l", "clock source",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "check", "level", "text"),
    [
        (
            {"packages": [Package("python", "3.11.7"), Package("torch", "2.12.0", "/env/torch")]},
            "torch", "failure", "node3: 2.12.0 is not within >=2.13 (setup.cfg); elsewhere: 2.13.0, as tested",
        ),
        (
            {"packages": [Package("python", "3.11.9"), Package("torch", "2.13.0", "/env/torch")]},
            "python", "warning", "node3: 3.11.9; elsewhere: 3.11.7",
        ),
        ({"clocksource": "hpet"}, "clock source", "warning", "node3: hpet, which is slow to read"),
        ({"memlock": 65536}, "ulimit -l", "warning", "node3: 64 KiB of memory may be locked"),
        ({"ports": []}, "InfiniBand", "warning", "node3: none here; nodes talk over TCP; elsewhere: active: mlx5_0:1"),
        ({"devices": {"NCCL_IB_HCA": "mlx4_0"}}, "NCCL_IB_HCA", "warning", "'mlx4_0' names mlx4_0, which is not here"),
        (
            {"hierarchy": "1"},
            "hierarchy", "warning", "node3: HOROVOD_HIERARCHICAL_ALLREDUCE is 1: runs are hierarchical; elsewhere: ",
        ),
        ({"hierarchy": "yes"}, "hierarchy", "failure", "node3: HOROVOD_HIERARCHICAL_ALLREDUCE is 'yes'; it must be 0"),
        (
            {"gpus": Gpus(("x",), 1, 1, True)},
            "GPUs", "failure", "more ranks than GPUs on a node: node3 has 2 ranks and 1 GPU",
        ),
        ({"cores": [3]}, "cores", "warning", "2 ranks of node3 share 1 core (bound)"),
        ({"memory": Memory(1 << 20, 1 << 34)}, "/dev/shm", "failure", "free: node3 1 MiB for 2 ranks"),
        (
            {"mpirun": Tool("/usr/bin/mpirun", "mpirun (Open MPI) 4.1.4", 0)},
            "mpirun", "warning", "node3: /usr/bin/mpirun is Open MPI 4.1.4, the ranks load Open MPI 5.0.11; elsewhere",
        ),
        ({"ours": {"hvdkan": "/old/hvdkan"}}, "imports", "warning", "node3: hvdkan from /old/hvdkan, not from /src"),
    ],
)  # fmt: skip
def test_what_differs_on_one_node_names_it_and_nothing_else_is_said(change, check, level, text):
    (found,) = [one for one in job({}, {}, change, {}) if one.level != "ok"]
    assert (found.check, found.level) == (check, level)
    assert found.text.startswith(text)


def test_ranks_that_are_each_alone_say_so_and_nothing_of_placement():
    found = judge.judge([seen("node1")], situation(1, 8), WANTED, "/src")
    assert [(one.check, one.level) for one in found if one.level != "ok"] == [("world", "failure")]
    assert "placement" not in [one.check for one in found]
    # The simulated nodes would hold eight: one process knows of itself only.
    simulated = dataclasses.replace(situation(1, 8), simulated=(4, 4))
    again = judge.judge([seen("node1")], simulated, WANTED, "/src")
    assert [(one.check, one.level) for one in again] == [(one.check, one.level) for one in found]


def test_hosts_of_one_name_are_told_apart():
    ranks = [seen("box"), seen("box"), seen("box", label="box another-boot")]
    assert judge.host_names(ranks) == ["box", "box", "box#2"]


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({}, True),
        ({"SLURM_LOCALID": "0"}, True),
        ({"SLURM_LOCALID": "3"}, False),
        # Under mpirun in a batch job Slurm's is of the step around it.
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, False),
        ({"SLURM_LOCALID": "?"}, True),
    ],
)
def test_one_rank_of_a_node_asks_its_tools(environment, first):
    assert first_of_node(environment) is first


# --- the command line ---


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--simulate-nodes", "2,x"], "--simulate-nodes is '2,x'; it must be whole numbers of at least 1, as in 2,2"),
        (["--simulate-nodes", "0,1"], "--simulate-nodes is '0,1'; it must be"),
        (["--simulate-nodes", "2,2"], "--simulate-nodes 2,2 places 4 workers, but 1 are running"),
        (["--timeout-s", "0"], "--timeout-s is '0'; it must be a number above 0"),
        (["--timeout-s", "nan"], "--timeout-s is 'nan'"),
        (["--json", ""], "--json is ''; it must be the name of a file"),
        (["--jso", "x"], "unrecognized arguments: --jso x"),
        (["all"], "unrecognized arguments: all"),
    ],
)
def test_bad_arguments_are_one_line(capsys, monkeypatch, arguments, said):
    monkeypatch.setattr(cli, "detect", lambda: Launcher("alone"))
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"error: {said}")


def test_simulated_nodes_that_do_not_fit_are_refused_by_size():
    with pytest.raises(TopologyError, match="places 3 workers, but 4 are running"):
        cli.parse(["--simulate-nodes", "2,1"], Launcher("mpirun", 0, 4))


def test_what_is_left_of_another_launch_is_a_failure(capsys, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "four")
    assert cli.main([]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("failure world: OMPI_COMM_WORLD_RANK='0' and OMPI_COMM_WORLD_SIZE='four' must be whole")


def test_a_python_that_is_not_the_environments_is_told_in_one_line(tmp_path):
    # -S leaves out site-packages, -I what PYTHONPATH adds: such is the system's Python.
    root = str(Path(__file__).parents[2])
    code = f"import sys, runpy; sys.path.insert(0, {root!r}); runpy.run_module('jobs.preflight', run_name='__main__')"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=SOON)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith(f"failure  python: {sys.executable} has no ")
    assert "activate the environment" in " ".join(done.stdout.split())


# --- real launches ---


def words(text):
    return " ".join(text.split())


def read(path):
    content = json.loads(path.read_text())
    return content, {one["check"]: one for one in content["findings"]}


@pytest.mark.launch
def test_alone(alone, tmp_path):
    path = tmp_path / "new" / "it's.json"
    done = alone("-m", "jobs.preflight", "--json", path)
    content, checks = read(path)
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    assert (content["schema"], content["launcher"], content["ranks"], content["links"]) == (1, "alone", 1, [])
    for one in content["findings"]:
        said = f"{one['level']} {one['check']}: {one['text']}" + (f"; remedy: {one['remedy']}" if one["remedy"] else "")
        assert words(said) in words(done.stdout)
    for check in ("python", "numpy", "torch", "horovod", "mpi4py", "pykan", "imports", "horovod build", "one MPI"):
        assert checks[check]["level"] == "ok", checks[check]
    assert checks["mpirun"]["level"] in ("ok", "warning")
    assert done.stdout.splitlines()[-1].endswith("0 failures; 1 rank on 1 node")
    assert max(len(line) for line in done.stdout.splitlines() if " " in line.strip()) <= 80


@pytest.mark.launch
def test_a_file_that_cannot_be_written_is_refused(alone, tmp_path):
    done = alone("-m", "jobs.preflight", "--json", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: --json is '{tmp_path}', a directory; it must be a file\n"


@pytest.mark.launch
def test_a_wrong_value_of_the_variable_is_a_failure(alone):
    done = alone("-m", "jobs.preflight", env={"HOROVOD_HIERARCHICAL_ALLREDUCE": "true"})
    assert done.returncode == 1
    assert "failure hierarchy: HOROVOD_HIERARCHICAL_ALLREDUCE is 'true'; it must be 0" in words(done.stdout)


@pytest.mark.launch
def test_a_foreign_package_on_the_path_is_named(alone, tmp_path):
    (tmp_path / "kan").mkdir()
    (tmp_path / "kan/__init__.py").touch()
    done = alone("-m", "jobs.preflight", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0
    assert f"warning imports: pykan from {tmp_path}/kan, not from " in words(done.stdout)


@pytest.mark.launch
def test_a_rank_that_its_launcher_is_not_of_comes_up_alone(alone):
    # What mpirun of another MPI looks like to the ranks.
    done = alone("-m", "jobs.preflight", env={"PMI_RANK": "0", "PMI_SIZE": "4"})
    assert done.returncode == 1
    assert "failure world: mpirun started 4 ranks (PMI_SIZE), but MPI (mpi4py) sees 1" in words(done.stdout)
    assert done.stdout.splitlines()[-1].endswith("1 failure; one of 4 processes, each alone")
    other = alone("-m", "jobs.preflight", env={"PMI_RANK": "1", "PMI_SIZE": "4"})
    assert (other.returncode, other.stdout) == (1, "")


@pytest.mark.launch
def test_under_mpirun_with_simulated_nodes(mpirun, tmp_path):
    path = tmp_path / "f.json"
    done = mpirun(4, "-m", "jobs.preflight", "--simulate-nodes", "1,2,1", "--json", path)
    assert done.returncode == 0, done.stdout + done.stderr
    content, checks = read(path)
    assert (content["simulated"], content["ranks"], len(content["hosts"])) == (True, 4, 1)
    assert checks["world"]["text"] == "mpirun started 4 ranks (OMPI_COMM_WORLD_SIZE), MPI (mpi4py) sees 4"
    assert checks["placement"]["text"].startswith("4G3N: SIMULATED nodes of ")
    named = [(pair["first"], pair["second"]) for pair in content["links"]]
    assert named == [("simulated1", "simulated2"), ("simulated1", "simulated3"), ("simulated2", "simulated3")]
    for pair in content["links"]:
        assert 0 < pair["latency_s"] < 1
        assert 1e6 < pair["there"] < 1e12
        assert 1e6 < pair["back"] < 1e12
    assert checks["links"]["text"].startswith("3 pairs of nodes, ")
    # Printed once, by rank 0.
    assert done.stdout.count("preflight: ") == 1
    assert done.stdout.rstrip().endswith("0 failures; 4 ranks on 3 simulated nodes")


@pytest.mark.launch
def test_one_node_has_no_links(mpirun, tmp_path):
    path = tmp_path / "f.json"
    done = mpirun(2, "-m", "jobs.preflight", "--json", path, env={"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    content, checks = read(path)
    assert content["links"] == []
    assert not {"links", "link", "clock"} & set(checks)
    assert checks["hierarchy"]["level"] == "warning"
    assert "but there is one node" in checks["hierarchy"]["text"]


@pytest.mark.launch
def test_a_failure_is_the_status_of_all_ranks(mpirun):
    done = mpirun(2, "-m", "jobs.preflight", env={"HOROVOD_HIERARCHICAL_ALLREDUCE": "2"})
    assert done.returncode == 1
    assert done.stdout.count("failure  hierarchy: ") == 1


@pytest.mark.launch
def test_bad_arguments_are_said_once_under_mpirun(mpirun):
    done = mpirun(2, "-m", "jobs.preflight", "--simulate-nodes", "3")
    assert done.returncode == 2
    assert done.stderr.count("error: --simulate-nodes 3 places 3 workers, but 2 are running") == 1


@pytest.mark.launch
def test_a_clock_that_goes_wrong_is_named(mpirun, tmp_path):
    path = tmp_path / "f.json"
    done = mpirun(3, FAULT, "late", "--json", path)
    assert done.returncode == 0, done.stdout + done.stderr
    content, checks = read(path)
    assert content["hosts"] == ["host0", "host1", "host2"]
    assert (checks["clock"]["level"], checks["clock"]["text"]) == ("warning", "of other nodes': host1 7.5 s behind")


@pytest.mark.launch
def test_clocks_that_agree(mpirun, tmp_path):
    path = tmp_path / "f.json"
    assert mpirun(2, FAULT, "two_hosts", "--json", path).returncode == 0
    assert read(path)[1]["clock"]["level"] == "ok"


@pytest.mark.launch
def test_a_link_that_lets_nothing_through_has_a_name_and_an_end(mpirun, tmp_path):
    path = tmp_path / "f.json"
    done = mpirun(3, FAULT, "deaf", "--simulate-nodes", "1,1,1", "--timeout-s", "15", "--json", path, timeout=SOON)
    assert done.returncode not in (0, None)
    content, checks = read(path)
    assert content["status"] == "failure"
    assert checks["waiting"]["text"] == (
        "no progress for 15 s while waiting for the link between simulated1 and simulated2"
    )
    # What was found before is not lost.
    assert checks["torch"]["level"] == "ok"
    assert "failure  waiting: " in done.stdout


@pytest.mark.launch
def test_a_rank_that_never_comes_is_not_waited_for(mpirun):
    done = mpirun(2, FAULT, "stuck", "--timeout-s", "15", timeout=SOON)
    assert done.returncode not in (0, None)
    assert "no progress for 15 s while waiting for all ranks to come up" in words(done.stdout)
    assert "ok torch: " in words(done.stdout)
    # The one that hangs says what in.
    assert done.stderr.count("preflight: rank ") == 1
    assert "preflight: rank 1 on " in done.stderr
    assert ": no progress for 15 s while waiting for its own look at its node" in done.stderr


@pytest.mark.launch
def test_a_rank_that_raises_ends_the_job(mpirun):
    started = time.monotonic()
    done = mpirun(2, FAULT, "raises", "--simulate-nodes", "1,1", timeout=SOON)
    assert done.returncode not in (0, None)
    assert time.monotonic() - started < 50  # not by the watchdog, after 60
    assert "preflight: rank 1 on " in done.stderr
    assert "TypeError" in done.stderr


@pytest.mark.launch
def test_under_torchrun(torchrun):
    done = torchrun(2, "-m", "jobs.preflight")
    assert done.returncode == 0, done.stdout + done.stderr
    said = words(done.stdout)
    assert "ok world: torchrun started 2 ranks (WORLD_SIZE), torch.distributed sees 2" in said
    assert "mpi two_level: no MPI under torchrun" in said


@pytest.mark.launch
def test_under_horovodrun(horovodrun):
    done = horovodrun(2, "-m", "jobs.preflight")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "horovodrun started 2 ranks (HOROVOD_SIZE)," in done.stdout
