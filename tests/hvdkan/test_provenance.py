from hvdkan.provenance import emulated, environment, oversubscribed, recorded, threads_for
from mpi.topology import Topology


def test_secrets_are_never_recorded():
    variables = {
        "HOROVOD_CYCLE_TIME": "1",
        "HOROVOD_SECRET_KEY": "s",
        "SLURM_JWT": "s",
        "SLURM_JOB_ID": "7",
        "NCCL_ALGO": "Ring",
        "AWS_SECRET_ACCESS_KEY": "s",
        "OMPI_MCA_coll_han_priority": "0",
        "PATH": "/bin",
    }
    assert recorded(variables) == {
        "HOROVOD_CYCLE_TIME": "1",
        "NCCL_ALGO": "Ring",
        "OMPI_MCA_coll_han_priority": "0",
        "SLURM_JOB_ID": "7",
    }


def test_threads_share_the_cores_of_a_host():
    hosts = Topology.from_labels("AAAAB")
    unbound = [[0, 1, 2, 3]] * 4 + [[0, 1]]
    assert [threads_for(rank, hosts, unbound) for rank in range(5)] == [1, 1, 1, 1, 2]
    bound = [[0, 1], [2, 3], [4], [5], [0]]
    assert [threads_for(rank, hosts, bound) for rank in range(5)] == [2, 2, 1, 1, 1]
    assert threads_for(0, Topology.from_labels("AAA"), [[0]] * 3) == 1


def test_oversubscribed_is_seen_on_one_host_of_many():
    hosts = Topology.from_labels("AAB")
    assert not oversubscribed(hosts, [[0, 1], [0, 1], [0]], [1, 1, 1])
    assert oversubscribed(hosts, [[0, 1], [0, 1], [0]], [1, 2, 1])
    assert oversubscribed(hosts, [[0], [0], [0]], [1, 1, 1])
    assert oversubscribed(Topology.from_labels("AAA"), [[0], [0], [1, 2, 3]], [1, 1, 1])
    assert not oversubscribed(Topology.from_labels("AAA"), [[0], [1], [0, 1, 2]], [1, 1, 1])


def test_hosts_on_one_kernel_are_emulated():
    assert emulated(["a 1", "a 1", "b 2"]) is False
    assert emulated(["a 1", "b 1"]) is True
    assert emulated(["a ", "b "]) == "unknown"
    assert emulated(["a "]) is False


def test_environment_names_versions():
    found = environment(2, "abc", [0.1])
    assert found["threads"] == 2
    assert found["commit"] == "abc"
    assert found["torch"]
    assert found["mpi4py"]
