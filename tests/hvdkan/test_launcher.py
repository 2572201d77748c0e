import pytest

from hvdkan.launcher import Launcher, LaunchError, check_size, detect

MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}
STEP = {"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4"}
ELASTIC = {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, ("alone", 0, 1)),
        (MPI, ("mpirun", 3, 8)),
        (STEP, ("srun", 1, 4)),
        (ELASTIC, ("torchrun", 1, 2)),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "3"}, ("horovodrun", 1, 3)),
        # MPICH's mpirun, whose proxies are a step of Slurm's; and srun --mpi=pmi2, which sets both alike.
        ({"PMI_RANK": "2", "PMI_SIZE": "3", **STEP}, ("mpirun", 2, 3)),
        ({"PMI_RANK": "1", "PMI_SIZE": "4", **STEP}, ("srun", 1, 4)),
        # mpirun in a batch job: Slurm describes the step that started mpirun's daemons, one a node.
        ({**STEP, **MPI}, ("mpirun", 3, 8)),
        # The batch script itself, and an interactive step, are no launch of ranks.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"}, ("alone", 0, 1)),
        ({**STEP, "SLURM_STEP_ID": "4294967290"}, ("alone", 0, 1)),
        # Left by a shell or a scheduler, and not torchrun's.
        ({"RANK": "0", "WORLD_SIZE": "1"}, ("alone", 0, 1)),
        ({"WORLD_SIZE": "8"}, ("alone", 0, 1)),
        ({**MPI, "RANK": "0", "WORLD_SIZE": "2"}, ("mpirun", 3, 8)),
    ],
)
def test_who_started_this(environment, wanted):
    found = detect(environment)
    assert (found.kind, found.rank, found.size) == wanted


def test_numbers_that_are_none_are_named():
    with pytest.raises(LaunchError, match="OMPI_COMM_WORLD_SIZE='many'"):
        detect({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "many"})


def test_ranks_that_nothing_started_do_not_train_each_alone():
    with pytest.raises(LaunchError, match="RANK='0' and WORLD_SIZE='8' are set, but no launcher started this process"):
        detect({"RANK": "0", "WORLD_SIZE": "8"})


@pytest.mark.parametrize("kind", ["srun", "mpirun", "torchrun", "horovodrun"])
def test_another_size_stops_with_both_numbers_and_a_cause(kind):
    with pytest.raises(LaunchError) as raised:
        check_size(Launcher(kind, 0, 8, "SOME_SIZE"), 1, "Horovod")
    text = str(raised.value)
    assert f"{kind} started 8 ranks (SOME_SIZE), but Horovod sees 1: probably" in text
    assert "\n" not in text


def test_eight_nodes_of_one_rank_are_fine():
    check_size(Launcher("srun", 5, 8, "SLURM_STEP_NUM_TASKS"), 8, "MPI")
