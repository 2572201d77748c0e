"""Cores and threads, shared memory, locked memory, clocks, and InfiniBand."""

import pytest

from jobs.preflight import hardware, infiniband
from jobs.preflight.hardware import Memory
from jobs.preflight.infiniband import Port
from mpi.topology import Topology

GIB = 1 << 30
ALL4 = [0, 1, 2, 3]


def nodes(*sizes):
    topology = Topology.simulated(sizes, sum(sizes))
    return topology, ["abcd"[node] for node in topology.nodes]


@pytest.mark.parametrize(
    ("sizes", "cores", "omp", "level", "text"),
    [
        ((2,), [[0, 1], [2, 3]], "", "ok", "2 cores a rank"),
        ((2,), [ALL4, ALL4], "", "ok", "2 cores a rank: 2 ranks share 4, not bound to their own"),
        # Nodes do not disturb each other: emulated ones share their numbers.
        ((1, 1), [[0], [0]], "", "ok", "1 core a rank"),
        ((1, 2), [ALL4, [0], [1]], "", "ok", "1 core a rank at least"),
        ((2,), [[0, 1], [0, 1]], "", "ok", "1 core a rank: 2 ranks share 2, not bound to their own"),
        ((2,), [[0], [0]], "", "warning", "2 ranks of a share 1 core (bound)"),
        ((5,), [ALL4] * 5, "", "warning", "5 ranks of a share 4 cores"),
        ((1, 2), [[0], [1], [1]], "", "warning", "2 ranks of b share 1 core (bound)"),
        (
            (3,), [[0, 1], [1, 2], [3]], "", "warning",
            "ranks are bound to cores that overlap: ranks 0 and 1 of a (core 1)",
        ),
        ((2,), [[0, 1], [2, 3]], "2", "ok", "2 cores a rank"),
        ((2,), [[0, 1], [2, 3]], "4", "warning", "OMP_NUM_THREADS is 4, and rank 0 of a has 2 cores to itself"),
        ((2,), [ALL4, ALL4], "3", "warning", "OMP_NUM_THREADS is 3, and rank 0 of a has 2 cores to itself"),
        ((2,), [ALL4, ALL4], "many", "ok", "2 cores a rank: 2 ranks share 4, not bound to their own"),
    ],
)  # fmt: skip
def test_cores_and_threads(sizes, cores, omp, level, text):
    topology, hosts = nodes(*sizes)
    finding = hardware.judge_cores(topology, hosts, cores, [4] * len(hosts), [omp] * len(hosts))
    assert (finding.check, finding.level, finding.text) == ("cores", level, text)


def test_unbound_ranks_are_not_told_to_bind():
    topology, hosts = nodes(5)
    assert hardware.judge_cores(topology, hosts, [ALL4] * 5, [4] * 5, [""] * 5).remedy == "fewer ranks a node"
    assert "--cpu-bind=cores" in hardware.judge_cores(topology, hosts, [ALL4] * 5, [64] * 5, [""] * 5).remedy


@pytest.mark.parametrize(
    ("seen", "level", "text"),
    [
        ([Memory(20 * GIB, 30 * GIB)] * 3, "ok", "at least 20 GiB free on each node"),
        ([Memory(20 * GIB, 5 * GIB)] * 3, "ok", "at least 5 GiB free on each node"),
        ([Memory(20 * GIB, None)] * 3, "ok", "at least 20 GiB free on each node"),
        ([Memory(128 << 20, 9 * GIB)] * 3, "ok", "at least 128 MiB free on each node"),
        ([Memory((128 << 20) - 1, 9 * GIB)] * 3, "warning", "free: a 128 MiB for 2 ranks"),
        ([Memory(7 << 20, 9 * GIB)] * 3, "failure", "free: a 7 MiB for 2 ranks; ranks would end with a bus error"),
        ([Memory(9 * GIB, 9 * GIB)] * 2 + [Memory(0, 9 * GIB)], "failure", "free: b 0 bytes for 1 rank; ranks would "),
        ([Memory(9 * GIB, 9 * GIB)] * 2 + [Memory(None, 9 * GIB)], "failure", "none that can be written on b"),
        ([Memory(9 * GIB, 1 * GIB - 1)] * 3, "warning", "memory available: a 1023 MiB for 2 ranks"),
    ],
)
def test_shared_memory(seen, level, text):
    topology, hosts = nodes(2, 1)
    finding = hardware.judge_memory(topology, hosts, seen)
    assert (finding.check, finding.level) == ("/dev/shm", level)
    assert finding.text.startswith(text)


def test_memory_is_looked_at(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       50 kB\nMemAvailable:   2048 kB\n")
    seen = hardware.look_memory(str(tmp_path), str(meminfo))
    assert seen.available == 2 << 20
    assert seen.shm > 0
    assert hardware.look_memory("/no/such", "/no/such") == Memory(None, None)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (8 << 20, "8 MiB"), (1 << 30, "1 GiB"), (23961075712, "22.3 GiB")],
)
def test_sizes(count, text):
    assert hardware.size(count) == text


@pytest.mark.parametrize(
    ("limit", "infiniband", "level", "text"),
    [
        (None, True, "ok", "unlimited, as InfiniBand needs"),
        (64 << 10, True, "warning", "64 KiB of memory may be locked; InfiniBand wants unlimited"),
    ],
)
def test_locked_memory_where_there_is_infiniband(limit, infiniband, level, text):
    finding = hardware.judge_memlock(limit, infiniband)
    assert (finding.check, finding.level, finding.text) == ("ulimit -l", level, text)
    assert hardware.judge_memlock(limit, False) is None


@pytest.mark.parametrize(
    ("name", "level"), [("tsc", "ok"), ("kvm-clock", "ok"), (None, "ok"), ("hpet", "warning"), ("acpi_pm", "warning")]
)
def test_the_clock_source(name, level):
    finding = hardware.judge_clocksource(name)
    assert (finding.check, finding.level) == ("clock source", level)


@pytest.mark.parametrize(
    ("offsets", "level", "text"),
    [
        ([("a", 0, 0), ("b", 0.0002, 0.00001), ("c", -0.0003, 0.00002)], "ok", "nodes agree within 0.5 ms"),
        ([("a", 0, 0), ("b", 0.9, 0.001)], "ok", "nodes agree within 901.0 ms"),
        ([("a", 0, 0), ("b", 1.2, 0.001)], "warning", "of other nodes': b 1.2 s ahead"),
        ([("a", 0, 0), ("b", -3.04, 0.001)], "warning", "of other nodes': a 3.0 s ahead"),
        ([("a", 0, 0), ("b", 5.5, 0.001), ("c", 5.501, 0.001)], "warning", "of other nodes': a 5.5 s behind"),
        # What could be the round trip's own length is not called a skew.
        ([("a", 0, 0), ("b", 1.2, 0.5)], "ok", "nodes agree within 1.7 s"),
    ],
)
def test_skew(offsets, level, text):
    finding = hardware.judge_skew(offsets)
    assert (finding.check, finding.level, finding.text) == ("clock", level, text)


# --- InfiniBand ---

IB = Port("mlx5_0", 1, "ACTIVE", "InfiniBand", "200 Gb/sec (4X HDR)")
DOWN = Port("mlx5_1", 1, "DOWN", "InfiniBand", "10 Gb/sec")
ROCE = Port("mlx5_bond_0", 1, "ACTIVE", "Ethernet", "25 Gb/sec")


@pytest.mark.parametrize(
    ("ports", "variables", "level", "text"),
    [
        ([], {}, "ok", "none here; nodes talk over TCP"),
        ([IB, DOWN], {}, "ok", "active: mlx5_0:1 (200 Gb/sec (4X HDR))"),
        ([DOWN], {}, "warning", "no port is active: mlx5_1:1 DOWN"),
        ([IB, ROCE], {}, "warning", "active are mlx5_0:1, and over Ethernet mlx5_bond_0:1: NCCL takes both"),
        (
            [IB, ROCE],
            {"NCCL_IB_HCA": "=mlx5_0:1"},
            "ok",
            "active: mlx5_0:1 (200 Gb/sec (4X HDR)), mlx5_bond_0:1 (25 Gb/sec)",
        ),
        ([ROCE], {}, "ok", "active: mlx5_bond_0:1 (25 Gb/sec)"),
    ],
)
def test_infiniband_ports(ports, variables, level, text):
    finding = infiniband.judge(ports, ["eth0"], variables)[0]
    assert (finding.check, finding.level, finding.text) == ("InfiniBand", level, text)


@pytest.mark.parametrize(
    ("variable", "value", "level", "words"),
    [
        ("NCCL_IB_HCA", "mlx5_0:1", "ok", "names what is here"),
        ("NCCL_IB_HCA", "=mlx5_0:1", "ok", "names what is here"),
        ("NCCL_IB_HCA", "mlx5", "ok", "names what is here"),
        ("NCCL_IB_HCA", "=mlx5", "warning", "names mlx5, which is not here"),
        ("NCCL_IB_HCA", "=mlx5_0,mlx5_7:1", "warning", "names mlx5_7:1, which is not here"),
        ("NCCL_IB_HCA", "eth0", "warning", "names eth0, which is not here"),
        ("NCCL_IB_HCA", "=mlx5_1:1", "warning", "names mlx5_1:1, which is not active"),
        ("NCCL_IB_HCA", "^mlx5_9", "ok", "only leaves devices out"),
        ("UCX_NET_DEVICES", "all", "ok", "names what is here"),
        ("UCX_NET_DEVICES", "mlx5_0:1,eth0", "ok", "names what is here"),
        ("UCX_NET_DEVICES", "mlx5_*:1", "ok", "names what is here"),
        ("UCX_NET_DEVICES", "mlx5_1:1,mlx5_0:1", "warning", "names mlx5_1:1, which is not active"),
        ("UCX_NET_DEVICES", "mlx5_0:2", "warning", "names mlx5_0:2, which is not here"),
        ("UCX_NET_DEVICES", "ib0", "warning", "names ib0, which is not here"),
    ],
)
def test_devices_that_variables_name(variable, value, level, words):
    found = infiniband.judge([IB, DOWN], ["eth0", "lo"], {variable: value})
    assert [finding.check for finding in found] == ["InfiniBand", variable]
    assert found[1].level == level
    assert found[1].text == f"{value!r} {words}"


def test_a_device_named_where_there_is_none():
    (_, finding) = infiniband.judge([], ["eth0"], {"NCCL_IB_HCA": "mlx5_0"})
    assert finding.remedy == "unset it on nodes without InfiniBand"


def test_ports_are_read_as_the_kernel_shows_them(tmp_path):
    for device, number, state in (("mlx5_1", 1, "1: DOWN"), ("mlx5_0", 1, "4: ACTIVE"), ("mlx5_0", 2, "4: ACTIVE")):
        port = tmp_path / device / "ports" / str(number)
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
        if number == 1:
            (port / "link_layer").write_text("InfiniBand\n")
    assert infiniband.look(tmp_path) == [
        IB,
        Port("mlx5_0", 2, "ACTIVE", "unknown", "200 Gb/sec (4X HDR)"),
        Port("mlx5_1", 1, "DOWN", "InfiniBand", "200 Gb/sec (4X HDR)"),
    ]
    assert infiniband.look(tmp_path / "none") == []
