"""Run under mpirun: our all-reduce against sums known beforehand, over every node map that is asked for."""

import hashlib
import sys

import numpy as np
from mpi4py import MPI

from mpi import collectives, wire
from mpi.algorithms import every, parse
from mpi.allreduce import Allreduce, AllreduceError
from mpi.topology import Topology

GUARD = -12345
COMM = MPI.COMM_WORLD
EXTRA = ("leader(cross=rabenseifner,chunks=3)", "two_level(cross=recursive_doubling,chunks=2)", "two_level(chunks=3)")


def algorithms(topology):
    """All, and also hierarchies where there are none."""
    wide = Topology.simulated((2, 2), 4)
    return dict.fromkeys([*every(topology), *every(wide), *map(parse, EXTRA)])


def check(labels):
    topology = Topology.from_labels(labels)
    size = COMM.size
    for algorithm in algorithms(topology):
        bits = hashlib.sha256()
        with Allreduce(COMM, topology, algorithm, checked=False) as allreduce:
            for place, count in enumerate((0, 1, 2, size - 1, size, size + 1, 2 * size - 1, 1000, 10007)):
                exact = (np.float32, np.int32, np.float64, np.int64)[place % 4]
                check_one(allreduce, count, exact, True, bits)
                check_one(allreduce, count, (np.float64, np.float32)[place % 2], False, bits)
        assert len(set(COMM.allgather(bits.hexdigest()))) == 1, f"{algorithm} on {labels}: ranks hold different bits"


def data(rank, count, exact):
    random = np.random.default_rng([rank, count])
    # Small whole numbers: their sum is exact in any order.
    return random.integers(-50, 50, count) if exact else random.standard_normal(count)


def guarded(values, dtype):
    padded = np.full(values.size + 14, GUARD, dtype)
    padded[7:-7] = values
    return padded, padded[7:-7]


def check_one(allreduce, count, dtype, exact, bits):
    given = [data(rank, count, exact).astype(dtype) for rank in range(COMM.size)]
    wanted = np.sum(given, axis=0, dtype=np.int64 if exact else np.float64)
    for in_place in (True, False):  # twice on the same communicators
        padded, buffer = guarded(given[COMM.rank], dtype)
        if in_place:
            out_padded, out = padded, buffer
            assert allreduce(buffer) is buffer
        else:
            out_padded, out = guarded(np.full(count, 99), dtype)
            assert allreduce(buffer, out) is out
            assert (buffer == given[COMM.rank]).all(), "changed its input"
        for ends in (padded[:7], padded[-7:], out_padded[:7], out_padded[-7:]):
            assert (ends == GUARD).all(), "wrote beside the buffer"
        if exact:
            assert (out == wanted).all(), (allreduce.algorithm, count, dtype)
        else:
            # Any order of p - 1 additions errs by at most (p - 1) eps sum|x| (Higham, Accuracy and Stability, 4.2).
            bound = COMM.size * np.finfo(dtype).eps * np.abs(given).astype(np.float64).sum(axis=0)
            assert (np.abs(out - wanted) <= bound).all(), (allreduce.algorithm, count, dtype)
        bits.update(out.tobytes())


def check_types():
    """Two-byte types are summed in four; means of whole numbers are refused."""
    topology = Topology.simulated((COMM.size // 2, COMM.size - COMM.size // 2), COMM.size)
    for algorithm in algorithms(topology):
        with Allreduce(COMM, topology, algorithm) as allreduce:
            for count in (1, 5, 1000):
                half = np.full(count, 40000, np.float16)
                out = np.zeros_like(half)
                assert (allreduce(half, out, op="mean") == 40000).all(), allreduce.algorithm
                assert (half == 40000).all()
                assert (allreduce(half, op="mean") == 40000).all()
                assert np.isinf(allreduce(half.copy())).all(), "160,000 is beyond float16"
                # 1 + 2**-7 is the next bfloat16 after 1; a mean of both ends halfway, and goes to the even one.
                ones = np.full((count, 2), 0x3F80 + COMM.rank % 2, np.uint16)
                assert (allreduce(ones, op="mean", dtype="bfloat16") == 0x3F80).all()
                largest = np.full(count, 0x7F00, np.uint16)  # 2**127
                assert (allreduce(largest, dtype="bfloat16") == (0x7F80 if COMM.size > 1 else 0x7F00)).all()
                whole = np.full((2, count), 2**40 + COMM.rank, np.int64)
                assert (allreduce(whole) == COMM.size * 2**40 + sum(range(COMM.size))).all()
                mean = allreduce(np.full((2, count), COMM.rank, np.float64), op="mean")
                assert (mean == (COMM.size - 1) / 2).all()
            refused(allreduce, "mean of int64; the types are float32, float64, float16, bfloat16", op="mean")


def refused(allreduce, message, buffer=None, out=None, **options):
    """The same message on all ranks, whichever of them is at fault, and the object still works."""
    buffer = np.zeros(4, np.int64) if buffer is None else buffer
    before = buffer.copy()
    try:
        allreduce(buffer, out, **options)
    except AllreduceError as error:
        assert message in str(error), str(error)
        assert len(set(COMM.allgather(str(error)))) == 1
        assert (buffer == before).all()
    else:
        raise AssertionError(f"not refused: {message}")
    assert (allreduce(np.ones(9)) == COMM.size).all()


def check_refusals():
    rank, last = COMM.rank, COMM.size - 1
    topology = Topology.simulated((2, last - 1), COMM.size)
    others = "ranks " + ", ".join(map(str, range(last))) if last > 1 else "rank 0"
    for algorithm in ("flat", "ring", "two_level", "two_level(cross=ring,chunks=2)"):
        with Allreduce(COMM, topology, algorithm) as allreduce:
            square = np.zeros((4, 4), np.float32)
            one = f"rank {last}: "
            message = "all-reduce of an array that is not contiguous"
            refused(allreduce, one + message, square[:, 1] if rank == last else square[1])
            refused(allreduce, "rank 0: " + message, square.T[:3])
            refused(allreduce, "all-reduce of complex64; the types are float32, ", square.astype(np.complex64))
            refused(allreduce, "all-reduce of uint16; the types are", square.astype(np.uint16))
            refused(allreduce, "all-reduce of float32 as bfloat16", square, dtype="bfloat16")
            refused(allreduce, "op is 'max'; it must be one of sum, mean", square, op="max")
            refused(allreduce, "all-reduce of float32[4, 4] into float32[16]", square, np.zeros(16, np.float32))
            refused(allreduce, "overlaps its input", square.reshape(-1)[:8], square.reshape(-1)[4:12])
            fixed = np.zeros(4)
            fixed.flags.writeable = rank != last
            refused(allreduce, one + "all-reduce into an array that is read-only", fixed)
            differ = "ranks call all-reduce with different buffers: "
            uneven = np.zeros(5 if rank == last else 4)
            refused(allreduce, f"{differ}sum of 4 x float64 on {others}; sum of 5 x float64 on rank {last}", uneven)
            mixed = np.zeros(4, np.float32 if rank == last else np.float64)
            refused(allreduce, f"{differ}sum of 4 x float64 on {others}; sum of 4 x float32 on rank {last}", mixed)
            op = "mean" if rank == last else "sum"
            refused(allreduce, f"{differ}sum of 4 x float64 on {others}; mean of", np.zeros(4), op=op)
            try:
                allreduce.start(uneven)
            except AllreduceError as error:
                assert "sum of 5 x float64" in str(error)
            else:
                raise AssertionError("not refused")
            # Unchecked, a rank still refuses what it can see itself.
            allreduce.checked = False
            try:
                allreduce(square[:, 1])
            except AllreduceError as error:
                assert str(error) == message
            else:
                raise AssertionError("not refused")


def check_pending():
    """Many exchanges at once, waited for in another order on every rank, with calls between."""
    topology = Topology.from_labels("ABAB"[: COMM.size])
    total = COMM.size * (COMM.size + 1) // 2
    for algorithm in algorithms(topology):
        with Allreduce(COMM, topology, algorithm) as allreduce:
            order = np.random.default_rng(COMM.rank)
            for exchanges, count in ((5, 20011), (200, 3), (3, 0)):
                given = [np.full(count, (COMM.rank + 1.0) * (number + 1)) for number in range(exchanges)]
                outs = [None if number % 2 else np.zeros(count) for number in range(exchanges)]
                pending = []
                for number, (buffer, out) in enumerate(zip(given, outs, strict=True)):
                    pending.append(allreduce.start(buffer, out, op="mean" if number % 3 == 0 else "sum"))
                    if number == 2:
                        assert allreduce(np.ones(10))[0] == COMM.size
                for number in order.permutation(exchanges):
                    if number % 2:
                        pending[number].wait()
                    while not pending[number].test():
                        pass
                    assert pending[number].done
                    found = given[number] if outs[number] is None else outs[number]
                    assert (found == total * (number + 1) / (COMM.size if number % 3 == 0 else 1)).all()
            # Left under way: close ends it.
            left = np.ones(50000)
            allreduce.start(left)
        assert (left == COMM.size).all()


def make_and_close(times):
    """More objects than MPI has communicators for."""
    topology = Topology.simulated((1,) * COMM.size, COMM.size)
    for _ in range(times):
        with Allreduce(COMM, topology) as allreduce:
            pass
    with Allreduce(COMM, topology) as allreduce:
        assert allreduce(np.ones(3))[0] == COMM.size


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "close":
        make_and_close(int(arguments[0]))
    elif what in ("maps", "cut"):
        if what == "cut":  # what happens beyond 2**30 elements, without the memory
            collectives.LIMIT = wire.LIMIT = 3
        for node_map in arguments:
            check(node_map)
    else:
        {"types": check_types, "refusals": check_refusals, "pending": check_pending}[what]()
    print("checked", flush=True)
