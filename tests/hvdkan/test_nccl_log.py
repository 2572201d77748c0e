"""NCCL's own words: lines as versions 2.18 and 2.24 print them, two nodes of two GPUs."""

import os
import socket

import pytest

from hvdkan.nccl_log import own, parse

LOG = """\
gpu01:4711:4711 [0] NCCL INFO Bootstrap : Using ib0:10.1.0.1<0>
gpu01:4711:4711 [0] NCCL INFO NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open
NCCL version 2.18.5+cuda12.1
gpu01:4711:4790 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.1.0.1<0>
gpu01:4711:4790 [0] NCCL INFO Using network IB
gpu01:4711:4790 [0] NCCL INFO Channel 00/02 :    0   1   2   3
gpu01:4711:4790 [0] NCCL INFO Channel 01/02 :    0   1   2   3
gpu01:4711:4790 [0] NCCL INFO Trees [0] 1/2/-1->0->-1 [1] 1/-1/-1->0->2
gpu01:4711:4790 [0] NCCL INFO P2P Chunksize set to 131072
gpu01:4711:4790 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0/GDRDMA
gpu01:4711:4790 [0] NCCL INFO Channel 01/0 : 3[1] -> 0[0] [receive] via NET/IB/0/GDRDMA
gpu01:4711:4790 [0] NCCL INFO Channel 00 : 0[41000] -> 1[81000] via SHM/direct/direct
gpu01:4711:4790 [0] NCCL INFO Channel 01 : 0[41000] -> 1[81000] via SHM/direct/direct
gpu01:4711:4790 [0] NCCL INFO Connected all rings
gpu01:4711:4790 [0] NCCL INFO Channel 00/0 : 2[0] -> 0[0] [receive] via NET/IB/1(2)/GDRDMA
gpu01:4711:4790 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0
gpu01:4711:4790 [0] NCCL INFO Connected all trees
gpu01:4711:4790 [0] NCCL INFO threadThresholds 8/8/64 | 32/8/64 | 512 | 512
gpu01:4711:4790 [0] NCCL INFO 2 coll channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer
gpu01:4711:4790 [0] NCCL INFO comm 0x5581 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 41000 - Init COMPLETE
gpu01:4711:4711 [0] NCCL INFO AllReduce: 46080 Bytes -> Algo 0 proto 0 time 31.4
gpu01:4711:4711 [0] NCCL INFO AllReduce: 46080 Bytes -> Algo 0 proto 0 time 31.4
gpu01:4711:4711 [0] NCCL INFO AllReduce: 268435456 Bytes -> Algo 1 proto 2 time 9000.1
"""


def test_a_log():
    assert parse(LOG.splitlines()) == {
        "version": "2.18.5+cuda12.1",
        "network": "IB",
        "channels": 2,
        "rings": [[0, 1, 2, 3], [0, 1, 2, 3]],
        "trees": 2,
        "transports": {"NET/IB": 1, "NET/IB/GDRDMA": 3, "SHM": 2},
        "choices": {"AllReduce 46080 bytes: TREE LL": 2, "AllReduce 268435456 bytes: RING SIMPLE": 1},
    }


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("a:1:2 [1] NCCL INFO Channel 12/0 : 5[5] -> 4[4] via P2P/CUMEM/read", {"transports": {"P2P/CUMEM": 1}}),
        ("a:1:2 [1] NCCL INFO Channel 12/0 : 5[5] -> 4[4] via P2P/IPC", {"transports": {"P2P/IPC": 1}}),
        ("a:1:2 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/Socket/0", {"transports": {"NET/Socket": 1}}),
        ("a:1:2 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/AWS Libfabric/0/GDRDMA",
         {"transports": {"NET/AWS": 1}}),
        ("a:1:2 [0] NCCL INFO AllReduce: 46080 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}",
         {"choices": {"AllReduce 46080 bytes: RING LL": 1}}),
        ("[0] a:1:2 [0] NCCL INFO 8 Bytes -> Algo 0 proto 0 time 25.200924", {"choices": {"call 8 bytes: TREE LL": 1}}),
        ("a:1:2 [0] NCCL INFO Channel 00/0 : 3[3] -> 4[0] [receive] via NET/IBext_v8/0/GDRDMA",
         {"transports": {"NET/IBext_v8/GDRDMA": 1}}),
        ("a:1:2 [2] NCCL INFO Channel 00 : 2[a000] -> 3[b000] via P2P/direct pointer",
         {"transports": {"P2P/direct": 1}}),
        ("a:1:2 [0] NCCL INFO AllReduce: 8 Bytes -> Algo 9 proto 1 time 1.0",
         {"choices": {"AllReduce 8 bytes: 9 LL128": 1}}),
        ("a:1:2 [0] NCCL INFO 24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels",
         {"channels": 24}),
        ("a:1:2 [0] NCCL INFO Trees [0] -1/-1/-1->1->0", {"trees": 1}),
        ("a:1:2 [0] NCCL WARN Call to connect returned Connection refused", {}),
        ("loss 0.1", {}),
        ("", {}),
    ],
)  # fmt: skip
def test_a_line(line, found):
    assert parse([line]) == found


def test_a_connection_is_counted_once():
    line = "a:1:2 [1] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct"
    assert parse([line, line])["transports"] == {"SHM": 1}


def test_the_file_of_this_process(tmp_path):
    (tmp_path / f"nccl.{socket.gethostname().split('.')[0]}.{os.getpid()}").write_text(LOG)
    environment = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{tmp_path}/nccl.%h.%p"}
    assert own(environment)["channels"] == 2
    assert own({**environment, "NCCL_DEBUG": "WARN"}) == {}
    assert own({"NCCL_DEBUG": "INFO"}) == {}
    assert own({**environment, "NCCL_DEBUG_FILE": f"{tmp_path}/none"}) == {}


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert own({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(tmp_path / "pipe")}) == {}
