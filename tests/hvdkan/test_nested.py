"""What makes of one task a node a worker for each GPU, as text; tests/cluster has it under a real Slurm."""

import pytest

from hvdkan.launcher import detect
from hvdkan.nested import Nested, environment_inside, visible_gpus, wanted

STEP = {
    "SLURM_PROCID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_JOB_ID": "77",
    "SLURM_CPUS_ON_NODE": "8",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "PMIX_RANK": "2",
}


def found(**changes):
    environment = {name: value for name, value in {**STEP, **changes}.items() if value is not None}
    return wanted(detect(environment), environment)


def test_one_task_a_node_with_two_gpus_means_two_workers_a_node():
    assert found() == Nested(job="77", nodes=4, workers=2, cpus=8, mpi="pmix")


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_NTASKS_PER_NODE": "1"},  # asked for
        {"SLURM_STEP_NUM_TASKS": "8"},  # two tasks a node already
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": ""},
        {"CUDA_VISIBLE_DEVICES": None},
        {"HVDKAN_NESTED": "1"},
        {"SLURM_STEP_ID": None},  # a batch script
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "8"},  # mpirun
    ],
)
def test_otherwise_nothing_special_happens(changes):
    assert found(**changes) is None


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ("", 0),
        ("NoDevFiles", 0),
        ("-1", 0),
        ("0", 1),
        ("0,1", 2),
        ("0, 1", 2),
        ("GPU-5ebe9f43,GPU-ac33420d", 2),
        ("MIG-GPU-5ebe9f43/1/0", 1),
    ],
)
def test_gpus_are_counted_and_never_read_as_numbers(value, count):
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}) == count


def test_the_command():
    assert found().command(["python", "-m", "hvdkan.train", "--seed", "3"]) == [
        "srun", "--overlap", "--jobid=77", "--nodes=4", "--ntasks=8", "--ntasks-per-node=2", "--gpus-per-node=2",
        "--kill-on-bad-exit=1", "--cpus-per-task=4", "--mpi=pmix", "python", "-m", "hvdkan.train", "--seed", "3",
    ]  # fmt: skip


def test_too_few_cores_are_shared_and_said():
    few = found(SLURM_CPUS_ON_NODE="1")
    assert "--overcommit" in few.command([])
    assert "WARNING: they share 1 CPU a node" in few.said()
    assert "WARNING" not in found().said()
    assert len(few.said().splitlines()) == 1


def test_the_outer_step_is_forgotten_and_nothing_else():
    kept = {
        "SLURM_CONF": "/a/slurm.conf",
        "SLURM_JOB_ID": "77",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
        "OMPI_MCA_btl": "tcp",
        "PATH": "/bin",
    }
    lost = {"SRUN_DEBUG": "3", "PMI_RANK": "1", "PMIX_NAMESPACE": "x", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}
    assert environment_inside({**kept, **lost}) == {**kept, "HVDKAN_NESTED": "1"}
