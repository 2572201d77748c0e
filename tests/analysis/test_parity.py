import pytest

from analysis.parity import affinity, differences, settings

SAME = {"torch": "2.13.0", "threads": 1, "cpu": "a CPU"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"config_samples": 80000}, "samples (80,000 against 20,000)"),
        ({"samples_seen": [20000, 19000]}, "samples seen (20,000, 19,000 against 20,000, 20,000)"),
        ({"steps": 40}, "steps (40 against 10)"),
        ({"batch_per_rank": 500}, "batch per rank (500 against 1,000)"),
        ({"global_batch": 2000}, "global batch (2,000 against 4,000)"),
        ({"grad_bytes": 10904}, "bytes on the wire (10,904 against 5,760)"),
        ({"config_fusion_mb": 0.5}, "fusion (0.5 against default)"),
        ({"config_overlap": False}, "overlap (False against True)"),
        ({"config_dtype": "float64"}, "dtype (float64 against float32)"),
        ({"parameters": {"all": 2726, "trainable": 1824}}, "trainable set (1,824 against 1,440)"),
        ({"config_learning_rate": 0.1},
         "optimiser form (not recorded, learning rate 0.1 against not recorded, learning rate 0.01)"),
        ({"optimizer": "Adam fused"},
         "optimiser form (Adam fused, learning rate 0.01 against not recorded, learning rate 0.01)"),
        ({"environment": SAME | {"threads": 2}}, "threads (2 against 1)"),
        ({"ranks": []}, "affinity (not recorded against 0 1, 0 1, 0 1, 0 1)"),
        ({"data": {"digest": "abc", "rows": 9}}, "data (abc against not recorded)"),
        ({"config_hidden": [64]}, "hidden (64 against 32)"),
        ({"environment": SAME | {"torch": "2.14.0"}}, "torch version (2.14.0 against 2.13.0)"),
        ({"environment": SAME | {"cpu": "another"}}, "CPU model (another against a CPU)"),
        ({"environment": SAME | {"spline_kernel": "none"}}, "spline kernel (none against not recorded)"),
        ({"environment": SAME | {"commit": "0123456789abcdef+changes"}},
         "commit (0123456789ab+changes against not recorded)"),
        ({"placement": "4G4N"}, "placement (4G4N against 4G2N)"),
    ],
)  # fmt: skip
def test_each_setting_is_named_with_both_values(make, change, named):
    assert differences(settings(make(**change)), settings(make())) == [named]


def test_the_same_work_has_no_difference(make):
    one, other = settings(make("horovod-flat")), settings(make("ddp-flat", block=2, step_s=1.0))
    assert differences(one, other) == []


def test_mpi_libraries_are_compared_where_both_have_one(make):
    one, other, none = (
        settings(make(environment=SAME | {"mpi": mpi})) for mpi in ("Open MPI v5.0.11", "MPICH 4.2", None)
    )
    assert differences(one, other) == ["MPI library (Open MPI v5.0.11 against MPICH 4.2)"]
    assert differences(one, none) == differences(none, one) == differences(none, settings(make())) == []


def test_allowed_differences_are_not_named(make):
    one, other = settings(make(steps=3)), settings(make())
    assert differences(one, other, allowed=("steps",)) == []


def ranks(*cores, host="a"):
    return [{"rank": rank, "host": host, "cores": list(mine)} for rank, mine in enumerate(cores)]


def test_affinity_is_a_pattern_of_sharing():
    assert affinity(ranks([4, 5], [6, 7])) == affinity(ranks([0, 1], [2, 3], host="b"))
    assert affinity(ranks([0], [0])) != affinity(ranks([0], [1]))
    two_hosts = [*ranks([0]), {"rank": 1, "host": "b", "cores": [0]}]
    assert affinity(two_hosts) == ((0,), (0,))
    assert affinity([]) is None
