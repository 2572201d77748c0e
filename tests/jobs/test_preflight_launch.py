"""What was started against what came up: the seven symptoms of launches that go wrong, and more."""

import pytest

from hvdkan.launcher import Launcher, detect
from hvdkan.nested import Nested
from jobs.preflight import launch
from jobs.preflight.launch import Gpus
from mpi.topology import Topology

STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}
OMPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}
PMI = {"PMI_RANK": "0", "PMI_SIZE": "4"}


def nodes(*sizes):
    """Consecutive ranks on nodes a, b, ... of these sizes, and the host of each rank."""
    topology = Topology.simulated(sizes, sum(sizes))
    return topology, ["abcdefgh"[node] for node in topology.nodes]


# --- symptom 1: each believes to be rank 0 of 1 ---


@pytest.mark.parametrize(
    ("environment", "variable", "cause"),
    [
        (STEP, "srun started 4 ranks (SLURM_STEP_NUM_TASKS)", "srun's --mpi type does not fit this MPI"),
        (OMPI, "mpirun started 4 ranks (OMPI_COMM_WORLD_SIZE)", "mpirun belongs to another MPI than the one"),
        (PMI, "mpirun started 4 ranks (PMI_SIZE)", "mpirun belongs to another MPI than the one"),
    ],
)
def test_ranks_that_are_each_alone_fail_and_both_numbers_are_named(environment, variable, cause):
    finding = launch.judge_world(detect(environment), 1, "MPI (mpi4py)", environment)
    assert (finding.check, finding.level) == ("world", "failure")
    assert finding.text.startswith(f"{variable}, but MPI (mpi4py) sees 1: probably ")
    assert cause in finding.text
    assert finding.remedy


def test_a_world_that_agrees():
    finding = launch.judge_world(detect(STEP), 4, "MPI (mpi4py)", STEP)
    assert (finding.level, finding.text) == ("ok", "srun started 4 ranks (SLURM_STEP_NUM_TASKS), MPI (mpi4py) sees 4")


def test_alone_there_is_no_world():
    assert launch.judge_world(Launcher("alone"), 1, "MPI", {}).text.startswith("one process, no launcher")


# --- symptom 3: 80 tasks on 2 nodes of 4 GPUs ---


@pytest.mark.parametrize(
    "gpus", [Gpus(seen=("g0", "g1", "g2", "g3"), cuda=True), Gpus(named=4), Gpus(named=1, on_node=4)]
)
def test_forty_ranks_a_node_on_four_gpus_fail_and_both_numbers_are_named(gpus):
    topology, hosts = nodes(40, 40)
    finding = launch.judge_gpus(topology, hosts, [gpus] * 80)
    assert (finding.check, finding.level) == ("GPUs", "failure")
    assert finding.text == "more ranks than GPUs on a node: a has 40 ranks and 4 GPUs, b has 40 ranks and 4 GPUs"
    assert "--ntasks-per-node=4 at most" in finding.remedy


def test_the_same_in_a_batch_script_before_anything_is_started():
    finding = launch.judge_planned({"SLURM_TASKS_PER_NODE": "40(x2)"}, Gpus(("g0", "g1", "g2", "g3")))
    assert (finding.level, finding.text) == ("failure", "the job has 40 tasks a node and 4 GPUs a node")
    assert finding.remedy == "ask for --ntasks-per-node=4 at most"


@pytest.mark.parametrize(
    ("environment", "gpus", "expected"),
    [
        ({"SLURM_TASKS_PER_NODE": "2(x3),1"}, Gpus(("g0", "g1")), ("ok", "2 tasks a node and 2 GPUs a node")),
        ({"SLURM_TASKS_PER_NODE": "1,3"}, Gpus(named=2), ("failure", "the job has 3 tasks a node and 2 GPUs a node")),
        ({"SLURM_TASKS_PER_NODE": "40(x2)"}, Gpus(), None),
        ({}, Gpus(("g0",)), None),
    ],
)
def test_tasks_a_node_of_a_job(environment, gpus, expected):
    finding = launch.judge_planned(environment, gpus)
    assert (None if finding is None else (finding.level, finding.text)) == expected


def test_task_counts_that_slurm_never_writes_are_told():
    finding = launch.judge_planned({"SLURM_TASKS_PER_NODE": "two"}, Gpus(("g0",)))
    assert finding.level == "warning"
    assert "'two'" in finding.text


# --- symptom 4: mpirun in a batch job ---


def test_under_mpirun_in_a_batch_job_the_ranks_are_those_of_mpi():
    environment = {**STEP, **OMPI, "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "4294967291"}
    finding = launch.judge_world(detect(environment), 4, "MPI (mpi4py)", environment)
    assert finding.level == "ok"
    assert finding.text == (
        "mpirun started 4 ranks (OMPI_COMM_WORLD_SIZE), MPI (mpi4py) sees 4 "
        "(SLURM_STEP_NUM_TASKS='1', SLURM_NTASKS='1' is of the step around mpirun)"
    )


# --- symptom 5: one visible GPU a rank ---


def test_one_visible_gpu_a_rank_is_well():
    topology, hosts = nodes(2, 2)
    gpus = [Gpus((name,), named=1, cuda=True) for name in ("g0", "g1", "h0", "h1")]
    finding = launch.judge_gpus(topology, hosts, gpus)
    assert (finding.level, finding.text) == ("ok", "2 ranks and 2 GPUs a node")


def test_one_and_the_same_visible_gpu_is_not():
    topology, hosts = nodes(2, 2)
    finding = launch.judge_gpus(topology, hosts, [Gpus(("g0",)), Gpus(("g0",)), Gpus(("h0",)), Gpus(("h1",))])
    assert (finding.level, finding.text) == ("failure", "more ranks than GPUs on a node: a has 2 ranks and 1 GPU")


# --- symptom 6: 8 nodes of 1 rank ---


def test_eight_nodes_of_one_rank_are_not_flagged():
    topology, hosts = nodes(*[1] * 8)
    gpus = [Gpus((f"g{node}",), named=1) for node in range(8)]
    environment = {**STEP, "SLURM_STEP_NUM_TASKS": "8"}
    found = [
        launch.judge_world(detect(environment), 8, "MPI (mpi4py)", environment),
        launch.judge_placement(topology, hosts, False, [""] * 8),
        launch.judge_gpus(topology, hosts, gpus),
        launch.judge_variable(None, topology, False),
        launch.judge_variable("0", topology, False),
    ]
    assert [finding.level for finding in found] == ["ok"] * 5
    assert found[1].text.startswith("8G8N: a 1, b 1, ")


# --- symptom 7: Slurm's names of nodes are not the hosts' ---


def test_placement_comes_from_the_ranks_whatever_slurm_calls_their_nodes():
    topology, _ = nodes(2, 2)
    hosts, names = ["c209-3"] * 2 + ["c209-4"] * 2, ["a100-35"] * 2 + ["a100-36"] * 2
    finding = launch.judge_placement(topology, hosts, False, names)
    assert finding.level == "ok"
    assert finding.text == "4G2N: c209-3 2, c209-4 2 (c209-3 is Slurm's a100-35, c209-4 is Slurm's a100-36)"


def test_a_name_with_its_domain_is_the_same_name():
    topology, _ = nodes(1, 1)
    finding = launch.judge_placement(topology, ["a.site", "b.site"], False, ["a", "b"])
    assert finding.text == "2G2N: a.site 1, b.site 1"


def test_simulated_nodes_are_said_to_be_simulated():
    topology, _ = nodes(2, 2)
    assert launch.judge_placement(topology, ["h"] * 4, True, [""] * 4).text == "4G2N: SIMULATED nodes of h"


# --- GPUs beyond the symptoms ---


def test_ranks_that_would_take_one_gpu_though_there_are_enough():
    # The second rank of the node takes the second GPU it sees, which is the first rank's first.
    topology, hosts = nodes(2)
    finding = launch.judge_gpus(topology, hosts, [Gpus(("g0",)), Gpus(("g1", "g0"))])
    assert (finding.level, finding.text) == ("failure", "two ranks take one GPU: ranks 0 and 1 of a")


@pytest.mark.parametrize(
    ("gpus", "level", "text"),
    [
        ([Gpus(), Gpus()], "ok", "none; training takes the CPUs"),
        ([Gpus(("g0", "g1")), Gpus(("h0", "h1"))], "ok", "1 rank and 2 GPUs a node"),
        ([Gpus(("g0", "g1")), Gpus(("h0",))], "ok", "1 rank and 2 GPUs a node; 1 rank and 1 GPU a node"),
        ([Gpus(("g0",)), Gpus()], "failure", "torch sees no GPU on rank 1 of b, but elsewhere it does"),
        (
            [Gpus(named=2), Gpus(named=2)],
            "warning",
            "GPUs are given to a, b, and torch sees none of them: this torch is a CPU build",
        ),
        (
            [Gpus(("g0",), 1, cuda=True), Gpus(named=1, cuda=True)],
            "warning",
            "GPUs are given to b, and torch sees none of them: see nvidia-smi there",
        ),
    ],
)
def test_gpus_against_ranks(gpus, level, text):
    topology, hosts = nodes(1, 1)
    finding = launch.judge_gpus(topology, hosts, gpus)
    assert (finding.level, finding.text) == (level, text)


def test_ranks_in_any_order_on_unequal_nodes():
    topology = Topology((0, 1, 0, 1, 1))
    gpus = [Gpus(("g0", "g1")), Gpus(("h0", "h1")), Gpus(("g0", "g1")), Gpus(("h0", "h1")), Gpus(("h0", "h1"))]
    finding = launch.judge_gpus(topology, ["a", "b", "a", "b", "b"], gpus)
    assert finding.text == "more ranks than GPUs on a node: b has 3 ranks and 2 GPUs"


# --- one task a node ---


@pytest.mark.parametrize(
    ("inside", "level", "text"),
    [
        (Nested("7", 4, 2, 8, "pmix"), "ok", "hvdkan.train would start 8 workers here, 2 a node"),
        (
            Nested("7", 4, 2, 1, "pmix"),
            "warning",
            "hvdkan.train would start 8 workers here, 2 a node, which share 1 core a node",
        ),
    ],
)
def test_workers_that_training_would_start(inside, level, text):
    finding = launch.judge_nested(inside)
    assert (finding.level, finding.text) == (level, text)
    assert launch.judge_nested(None) is None


# --- what the hierarchy can be ---


@pytest.mark.parametrize(
    ("value", "sizes", "nested", "level", "words"),
    [
        (None, (2, 2), False, "ok", "is unset: runs are stock"),
        ("0", (2, 2), False, "ok", "is 0: runs are flat"),
        ("1", (2, 2), False, "ok", "is 1: runs are hierarchical"),
        ("1", (1,), False, "ok", "is 1: runs are hierarchical"),
        ("1", (4,), False, "warning", "is 1, but there is one node: runs are flat"),
        ("1", (1, 1), False, "warning", "is 1, but there is one worker per node: runs are flat"),
        ("1", (1, 1), True, "ok", "is 1: runs are hierarchical"),
        ("true", (2, 2), False, "failure", "is 'true'; it must be 0 (flat) or 1 (hierarchical), or unset (stock)"),
        ("", (2, 2), False, "failure", "is ''; it must be 0"),
    ],
)
def test_the_variable(value, sizes, nested, level, words):
    finding = launch.judge_variable(value, nodes(*sizes)[0], nested)
    assert (finding.check, finding.level) == ("hierarchy", level)
    assert words in finding.text


CPU = {"mpi": True, "gloo": True, "nccl": False, "cuda": False}
NCCL = {**CPU, "nccl": True, "cuda": True}


@pytest.mark.parametrize(
    ("built", "kind", "gpus", "simulated", "mpi4py", "horovod", "mpi"),
    [
        (CPU, "srun", False, False, True, "process_sets, nccl: not built, torus: not built, han", ""),
        (NCCL, "srun", True, False, True, "process_sets, nccl, torus, han", ""),
        (NCCL, "srun", False, False, True,
         "process_sets, nccl: acts on GPUs only, torus: acts on GPUs only, han", ""),
        (NCCL, "mpirun", True, True, True, "process_sets, nccl: acts on real nodes only, "
         "torus: acts on real nodes only, han: acts on real nodes only", ""),
        (None, "srun", False, False, True,
         "process_sets: no Horovod, nccl: no Horovod, torus: no Horovod, han: no Horovod", ""),
        (CPU, "torchrun", False, False, True, "process_sets, nccl: not built, torus: not built, han: no MPI",
         ": no MPI under torchrun"),
        (CPU, "alone", False, False, False, "process_sets, nccl: not built, torus: not built, han: no MPI",
         ": no mpi4py"),
    ],
)  # fmt: skip
def test_engines_that_can_act(built, kind, gpus, simulated, mpi4py, horovod, mpi):
    finding = launch.judge_engines(built, Launcher(kind), gpus, simulated, mpi4py)
    assert (finding.check, finding.level) == ("engines", "ok")
    assert finding.text == f"horovod {horovod}; ddp hook; mpi two_level{mpi}, leader{mpi}"
