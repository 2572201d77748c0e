"""The rehearsal cluster's pure parts: configuration as text, names, addresses, values. Nothing is started here."""

import os
from pathlib import Path

import pytest

from jobs.rehearsal import cluster as names
from jobs.rehearsal import config, home, network, outside, requirements
from jobs.rehearsal.cluster import Cluster
from jobs.rehearsal.errors import NotUp, Refused

TWO = Cluster(
    name="t",
    directory="/run/t",
    network="10.200.3.0/24",
    nodes=2,
    gpus=2,
    cores=4,
    machine_cores=4,
    memory_mb=8000,
    rate_bits=10**9,
)

SLURM_CONF = """\
ClusterName=t
SlurmctldHost=controller(10.200.3.2)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=/run/t/munge/socket
StateSaveLocation=/run/t/state
SlurmctldPidFile=/run/t/run/slurmctld.pid
SlurmctldLogFile=/run/t/log/slurmctld.log
SlurmdPidFile=/run/t/run/%n.pid
SlurmdLogFile=/run/t/log/%n.log
SlurmdSpoolDir=/run/t/nodes/%n/spool
TmpFS=/run/t/nodes/%n/tmp
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
TaskProlog=/run/t/taskprolog.sh
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=pmix
GresTypes=gpu
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MailProg=/bin/true
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=10
MessageTimeout=5
KillWait=15
SchedulerParameters=sched_interval=5,bf_interval=5
NodeName=DEFAULT Sockets=1 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=8000 Gres=gpu:2
NodeName=node1 NodeAddr=10.200.3.11
NodeName=node2 NodeAddr=10.200.3.12
PartitionName=rehearsal Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

START = """\
set -e
hostname node2
mount --bind /run/t/hosts /etc/hosts
mount -t tmpfs -o mode=1777,nosuid,nodev hvdkan-t /dev/shm
# /sys shows the network interfaces of whoever mounted it; Slurm wants the machine's cgroups beside them.
mount --rbind /sys/fs/cgroup /run/t/nodes/node2/cgroup
mount -t sysfs sysfs /sys
mount --rbind /run/t/nodes/node2/cgroup /sys/fs/cgroup
exec slurmd -D -N node2 -f /run/t/slurm.conf
"""


def changed(**values):
    return Cluster(**{**TWO.__dict__, **values})


def test_slurm_conf_is_this_text():
    assert config.slurm_conf(TWO) == SLURM_CONF


def test_gres_conf_names_one_device_file_a_gpu():
    assert config.gres_conf(TWO) == "AutoDetect=off\nName=gpu File=/run/t/dev/gpu[0-1]\n"


def test_a_cluster_without_gpus_speaks_of_none():
    without = changed(gpus=0)
    assert "gpu" not in config.slurm_conf(without).lower()
    assert config.gres_conf(without) == "AutoDetect=off\n"


def test_a_node_starts_with_this_script():
    assert config.start_script(TWO, "node2") == START
    assert config.start_script(TWO, "controller").endswith("exec slurmctld -D -f /run/t/slurm.conf\n")


def test_hosts_names_every_host_and_the_outer_machine():
    text = "127.0.0.1 localhost\n10.200.3.1 login\n10.200.3.2 controller\n10.200.3.11 node1\n10.200.3.12 node2\n"
    assert config.hosts(TWO, "login") == text


def test_tasks_are_bound_only_to_cores_that_exist():
    assert config.task_plugin(changed(cores=4)) == "task/affinity"
    assert config.task_plugin(changed(cores=5)) == "task/none"


def test_shaping_of_a_link_in_both_directions():
    bucket = "handle 10: tbf rate 1000000000bit burst 31250b limit 6250000b"
    assert [" ".join(words) for words in network.shaping(TWO, "node2")] == [
        f"tc -n hvdkan-t-node2 qdisc add dev eth0 root {bucket}",
        f"tc qdisc add dev {names.bridge('t')}n2 root {bucket}",
    ]


def test_a_delay_is_added_where_packets_leave_a_node_and_once():
    commands = [" ".join(words) for words in network.shaping(changed(delay_us=50), "node1")]
    assert commands[0] == "tc -n hvdkan-t-node1 qdisc add dev eth0 root handle 1: netem delay 50us limit 100000"
    assert commands[1].startswith("tc -n hvdkan-t-node1 qdisc add dev eth0 parent 1:1 handle 10: tbf rate ")
    assert sum("netem" in command for command in commands) == 1


def test_an_unshaped_link_is_left_alone():
    assert network.shaping(changed(rate_bits=None), "node1") == []


@pytest.mark.parametrize(("rate", "burst"), [(10**6, 4096), (200 * 10**6, 6250), (10**9, 31250)])
def test_the_bucket_holds_a_quarter_of_a_millisecond_and_a_packet_at_least(rate, burst):
    words = network.shaping(changed(rate_bits=rate), "node1")[0]
    assert words[words.index("burst") + 1] == f"{burst}b"


@pytest.mark.parametrize("name", ["a", "rehearsal", "a-node1", "x" * 24])
def test_interface_names_fit_and_belong_to_one_cluster_only(name):
    links = [names.bridge(name), names.port(name, "controller"), names.port(name, "node32")]
    assert all(len(link) <= 15 and names.owns_link(name, link) for link in links)
    assert not any(names.owns_link("other", link) for link in links)
    assert not names.owns_link(name, links[0] + "x1") and not names.owns_link(name, "eth0")


def test_a_namespace_belongs_to_one_cluster_only():
    assert names.namespace("a", "node1") == "hvdkan-a-node1"
    assert names.owns_namespace("a", "hvdkan-a-node1") and names.owns_namespace("a", "hvdkan-a-controller")
    # A cluster named a-node1 has a node1 too.
    assert not names.owns_namespace("a", "hvdkan-a-node1-node1")
    assert not names.owns_namespace("a-node1", "hvdkan-a-node1")


def test_a_subnet_follows_from_the_name_and_gives_way_to_what_is_there():
    first = names.subnet("rehearsal", [])
    assert first == names.subnet("rehearsal", ["192.168.0.0/16", "10.0.0.0/9"]) != names.subnet("other", [])
    second = names.subnet("rehearsal", [first])
    assert second != first and second != names.subnet("rehearsal", [first, second])
    with pytest.raises(Refused, match="no free network"):
        names.subnet("rehearsal", ["10.0.0.0/8"])


def test_a_description_survives_its_file():
    assert Cluster.from_json(TWO.to_json()) == TWO


@pytest.mark.parametrize(
    ("text", "bits"), [("1gbit", 10**9), ("200mbit", 2 * 10**8), ("2.5gbit", 25 * 10**8), ("5000kbit", 5 * 10**6)]
)
def test_rates(text, bits):
    assert names.rate(text) == bits


@pytest.mark.parametrize(
    "text", ["", "1", "gbit", "1 gbit", "1GBIT", "-1gbit", "0gbit", "999kbit", "101gbit", "1e3mbit"]
)
def test_rates_that_are_refused(text):
    with pytest.raises(Refused, match=r"--cross-rate is .*mbit"):
        names.rate(text)


def test_delays():
    assert (names.delay("50us"), names.delay("1.5ms")) == (50, 1500)
    for text in ("50", "0us", "1001ms", "us", "1s"):
        with pytest.raises(Refused, match=r"--cross-delay is .*from 1us to 1000ms"):
            names.delay(text)


@pytest.mark.parametrize("text", ["", "0", "33", "-1", "1.5", "two", "\u0663"])
def test_numbers_of_nodes_that_are_refused(text):
    with pytest.raises(Refused, match=r"--nodes is .* from 1 to 32"):
        names.whole("--nodes", text, 1, names.MOST_NODES)


@pytest.mark.parametrize("text", ["", "A", "1a", "a_b", "a b", "../a", "a" * 25])
def test_names_that_are_refused(text):
    with pytest.raises(Refused, match="--name is"):
        names.check_name(text)


def test_a_directory_leaves_room_for_the_socket():
    longest = "/" + "d" * (107 - len("/munge/socket") - 1)
    assert names.check_directory(Path(longest)) == Path(longest)
    with pytest.raises(Refused, match="socket"):
        names.check_directory(Path(longest + "d"))
    with pytest.raises(Refused, match="letters, digits"):
        names.check_directory(Path("/tmp/a,b"))


def test_missing_programs_are_named_with_their_package(monkeypatch):
    monkeypatch.setattr(requirements, "PROGRAMS", {"no-such-daemon": "no-such-package", "sh": "dash"})
    with pytest.raises(Refused, match=r"missing here: no-such-daemon; on Debian: apt-get install no-such-package$"):
        requirements.check_programs()


def test_a_python_without_mpi4py_is_refused(tmp_path):
    bare = tmp_path / "python"
    with pytest.raises(Refused, match=r"is missing: .*make setup"):
        requirements.check_python(bare)
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o700)
    with pytest.raises(Refused, match="has no mpi4py"):
        requirements.check_python(bare)


def test_what_env_exports():
    lines = outside.exports(TWO, f"/usr/bin:{outside.python().parent}:/bin").splitlines()
    values = dict(line.removeprefix("export ").split("=", 1) for line in lines)
    assert values == {
        "SLURM_CONF": "/run/t/slurm.conf",
        "PATH": f"{outside.python().parent}:/usr/bin:/bin",
        "OMPI_MCA_btl_tcp_if_include": "10.200.3.0/24",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


def test_a_job_around_does_not_leak_into_the_cluster():
    outer = {"PATH": "/bin", "SLURM_JOB_ID": "7", "SBATCH_PARTITION": "x", "OMPI_COMM_WORLD_SIZE": "2", "HOME": "/h"}
    made = outside.environment(TWO, outer)
    assert set(made) - set(outside.variables(TWO, "")) == {"HOME"}


# --- the private directory ---


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


NAME = f"text-{os.getpid()}"


def test_the_directory_is_private_and_goes_with_its_link(runtime, tmp_path):
    place = tmp_path / "elsewhere"
    cluster = changed(name=NAME, directory=str(place))
    home.make(cluster)
    home.fill(cluster)
    assert place.stat().st_mode & 0o777 == 0o700
    assert home.anchor(NAME).readlink() == place
    assert home.find(NAME) == cluster
    assert home.remove(NAME) and not home.remove(NAME)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(NotUp, match="no cluster named"):
        home.find(NAME)


def test_a_directory_that_is_there_is_left_alone(runtime):
    there = runtime / "data"
    there.mkdir()
    (there / "keep").touch()
    with pytest.raises(Refused, match="is there already"):
        home.make(changed(name=NAME, directory=str(there)))
    with pytest.raises(Refused, match="is not a directory"):
        home.make(changed(name=NAME, directory=str(runtime / "no" / "such")))
    assert (there / "keep").exists() and not os.path.lexists(home.anchor(NAME))


def test_only_a_clusters_own_directory_is_ever_removed(runtime):
    there = runtime / "data"
    there.mkdir()
    (there / "keep").touch()
    link = runtime / "link"
    link.symlink_to(there)
    for given in (there, link):
        with pytest.raises(Refused, match="is no directory of a rehearsal cluster"):
            home.check_given(given)
    # An `up` was killed before it made its directory, and somebody else used the place.
    home.anchor(NAME).symlink_to(there)
    assert home.remove(NAME)
    assert (there / "keep").exists() and not os.path.lexists(home.anchor(NAME))


def test_a_directory_removed_by_half_is_still_known(runtime):
    cluster = changed(name=NAME, directory=str(runtime / "half"))
    home.make(cluster)
    home.fill(cluster)
    home.anchor(NAME).unlink()
    (runtime / "half" / home.DESCRIPTION).unlink()
    assert home.remove(NAME, runtime / "half")
    assert list(runtime.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make another user's directory")
def test_another_users_directory_is_neither_trusted_nor_removed(runtime):
    place = home.usual(NAME)
    place.mkdir()
    (place / home.DESCRIPTION).write_text(changed(name=NAME, directory=str(place)).to_json())
    os.chown(place, 65534, 65534)
    with pytest.raises(NotUp):
        home.find(NAME)
    with pytest.raises(Refused, match="another user"):
        home.remove(NAME)
    assert place.exists()
