"""Versions, where packages come from, Horovod's build, one MPI only, and srun's PMI types."""

import sys
import time

import pytest

from hvdkan.launcher import Launcher
from jobs.preflight import one_mpi, pmi, software
from jobs.preflight.one_mpi import Mpis, Tool
from jobs.preflight.software import Package, Wanted

TORCH = Wanted(">=2.13", "2.13.0")
OMPI5, OMPI4 = "Open MPI v5.0.11, package: Open MPI u@h Distribution, ident: 5.0.11", "Open MPI v4.1.4, package: Debian"
ALONE, SRUN, MPIRUN = Launcher("alone"), Launcher("srun", 0, 4, "SLURM_STEP_NUM_TASKS"), Launcher("mpirun", 0, 4, "S")
ALL = "MPI plugin types are...\n\tpmix\n\tnone\n\tcray_shasta\n\tpmi2\nspecific pmix plugin versions available: pmix_v4"
OLD = "srun: MPI types are...\nsrun: cray_shasta\nsrun: none\nsrun: pmi2\nsrun: pmix_v3\nsrun: pmix\n"
NO_PMIX = "MPI plugin types are...\n\tnone\n\tpmi2"


@pytest.mark.parametrize(
    ("allowed", "version", "within"),
    [
        (">=2.13", "2.13.0+cpu", True),
        (">=2.13", "2.14.1", True),
        (">=2.13", "2.12.9", False),
        (">=2.13", "2.9", False),
        (">=5.0.8,<6", "5.0.8", True),
        (">=5.0.8,<6", "5.0.7", False),
        (">=5.0.8,<6", "6.0.0rc1", False),
        ("==0.28.1", "0.28.1", True),
        ("==0.28.1", "0.28.10", False),
        ("==0.28", "0.28.0", True),
        ("", "1", True),
    ],
)
def test_ranges(allowed, version, within):
    assert software.allows(allowed, version) is within


@pytest.mark.parametrize(
    ("package", "wanted", "level", "text", "remedy"),
    [
        (Package("torch", "2.13.0+cu130", "/e"), TORCH, "ok", "2.13.0+cu130, as tested", ""),
        (Package("torch", "2.14.0", "/e"), TORCH, "ok", "2.14.0 (tested: 2.13.0)", ""),
        (Package("torch", "2.12.0", "/e"), TORCH, "failure", "2.12.0 is not within >=2.13 (setup.cfg)", "make setup"),
        (Package("torch"), TORCH, "failure", "not installed", "make setup"),
        (Package("horovod"), Wanted("==0.28.1"), "failure", "not installed", "--backend ddp and mpi do without it"),
        (
            Package("horovod", "0.28.1", "/e", "libcudart.so.13: cannot open shared object file"),
            Wanted("==0.28.1", "0.28.1"),
            "failure",
            "0.28.1 does not import: libcudart.so.13: cannot open shared object file",
            "modules loaded",
        ),
        (Package("python", "3.10.4"), Wanted(">=3.11"), "failure", "3.10.4 is not within >=3.11", "python3.11 setup"),
        (Package("python", "3.12.1"), Wanted(">=3.11"), "ok", "3.12.1", ""),
    ],
)
def test_versions(package, wanted, level, text, remedy):
    finding = software.judge_package(package, wanted)
    assert (finding.check, finding.level) == (package.name, level)
    assert finding.text.startswith(text)
    assert remedy in finding.remedy


def test_the_checkout_says_what_is_wanted():
    wanted = software.read_wanted()
    assert list(wanted) == ["python", "numpy", "torch", "horovod", "mpi4py", "pykan"]
    assert wanted["torch"] == Wanted(">=2.13", "2.13.0")
    assert wanted["horovod"] == Wanted("==0.28.1", "0.28.1")
    assert wanted["python"].allowed == ">=3.11"
    # Only a checkout has these files.
    assert all(one.allowed for one in wanted.values())


def test_without_a_checkout_nothing_is_wanted(tmp_path):
    assert software.read_wanted(tmp_path) == {}


OURS = {"hvdkan": "/src/hvdkan", "mpi": "/src/mpi", "jobs": "/src/jobs"}
SITE = "/env/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("packages", "ours", "said"),
    [
        ([Package("torch", "2", f"{SITE}/torch"), Package("numpy")], OURS, None),
        ([Package("torch", "2", "/usr/lib/python3/dist-packages/torch")], OURS, None),
        (
            [Package("torch", "2", "/home/u/.local/lib/torch")],
            OURS,
            "torch from /home/u/.local/lib/torch, not from /env",
        ),
        ([Package("horovod", "0", "/environment/horovod")], OURS, "horovod from /environment/horovod, not from /env"),
        ([], {**OURS, "hvdkan": "/old/hvdkan"}, "hvdkan from /old/hvdkan, not from /src"),
        ([], {**OURS, "mpi": f"{SITE}/mpi"}, f"mpi from {SITE}/mpi, not from /src"),
    ],
)
def test_what_was_imported_from_elsewhere_is_named(packages, ours, said):
    finding = software.judge_origins(packages, ["/env", "/usr"], ours, "/src")
    if said is None:
        assert finding.level == "ok"
        assert finding.text == "packages from /env; hvdkan, mpi, jobs from /src"
    else:
        assert (finding.level, finding.text) == ("warning", said)
        assert "PYTHONPATH" in finding.remedy


@pytest.mark.parametrize(
    ("built", "needs_mpi", "gpus", "level", "words"),
    [
        ("mpi gloo", True, 0, "ok", "mpi: yes, gloo: yes, nccl: no, cuda: no"),
        ("mpi gloo nccl cuda", True, 4, "ok", "nccl: yes, cuda: yes"),
        # Symptom 1: under a launcher each would be rank 0 of 1.
        ("gloo", True, 0, "failure", "without MPI each rank believes to be rank 0 of 1"),
        ("gloo", False, 0, "ok", "mpi: no"),
        ("mpi gloo", True, 4, "failure", "torch sees 4 GPUs, and this Horovod takes no gradients from them"),
        ("", False, 0, "failure", "mpi: no, gloo: no"),
    ],
)
def test_what_horovod_was_built_with(built, needs_mpi, gpus, level, words):
    finding = software.judge_horovod({name: name in built.split() for name in software.BUILDS}, needs_mpi, gpus)
    assert finding.level == level
    assert words in finding.text


def test_without_horovod_its_build_is_not_judged():
    assert software.judge_horovod(None, True, 4) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OMPI5, ("Open MPI", "5.0.11")),
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs", ("Open MPI", "5.0.11")),
        ("MPICH Version:      4.0.2\nMPICH Release date: ...", ("MPICH", "4.0.2")),
        ("HYDRA build details:\n    Version:                                 4.0.2\n", ("MPICH", "4.0.2")),
        ("Intel(R) MPI Library 2021.9 for Linux* OS\n", ("Intel MPI", "2021.9")),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307", ("Intel MPI", "2021.9")),
        ("MPI VERSION    : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)", ("Cray MPICH", "8.1.25.17")),
        ("MVAPICH2 Version      :\t2.3.7", ("MVAPICH", "2.3.7")),
        ("something", None),
        (None, None),
    ],
)
def test_an_mpi_is_known_by_what_it_says_of_itself(text, expected):
    assert one_mpi.identity(text) == expected


ONE = "/env/lib/libmpi.so.40"


@pytest.mark.parametrize(
    ("mpis", "level", "words"),
    [
        (Mpis(OMPI5, ONE, ONE, (ONE,)), "ok", f"Open MPI 5.0.11 for mpi4py and Horovod: {ONE}"),
        (Mpis(OMPI5, ONE, None, (ONE,)), "ok", f"Open MPI 5.0.11 for mpi4py: {ONE}"),
        (
            Mpis(OMPI5, ONE, "/usr/lib/libmpi.so.40", (ONE,)),
            "failure",
            f"mpi4py loads {ONE}, Horovod /usr/lib/libmpi.so.40",
        ),
        (Mpis(OMPI5, ONE, ONE, (ONE, "/opt/libmpich.so.12")), "failure", "and there is /opt/libmpich.so.12"),
        (Mpis(OMPI5, ONE, "libmpi.so.40", (ONE,)), "warning", "Horovod asks for libmpi.so.40, which is not found"),
    ],
)
def test_one_mpi_only(mpis, level, words):
    finding = one_mpi.judge_one(mpis)
    assert (finding.check, finding.level) == ("one MPI", level)
    assert words in finding.text


def test_without_mpi4py_there_is_none_to_compare():
    assert one_mpi.judge_one(Mpis()) is None
    assert one_mpi.judge_mpirun(None, Mpis(), ALONE) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\tlibc.so.6 => /lib/libc.so.6 (0x1)\n\tlibmpi.so.40 => /nowhere/libmpi.so.40 (0x2)", "/nowhere/libmpi.so.40"),
        ("\tlibmpi.so.12 => not found\n", "libmpi.so.12"),
        ("\tlibmpi_cxx.so.40 => /lib/libmpi_cxx.so.40 (0x2)\n", None),
        ("\tlibmpi_gnu_91.so.12 => /opt/cray/libmpi_gnu_91.so.12 (0x2)", "/opt/cray/libmpi_gnu_91.so.12"),
        ("", None),
    ],
)
def test_the_mpi_that_an_extension_asks_for(text, expected):
    assert one_mpi.needed(text) == expected


@pytest.mark.parametrize(
    ("said", "launcher", "level", "words"),
    [
        ("mpirun (Open MPI) 5.0.11", ALONE, "ok", "/bin/mpirun is Open MPI 5.0.11 too"),
        ("mpirun (Open MPI) 4.1.4", ALONE, "warning", "is Open MPI 4.1.4, the ranks load Open MPI 5.0.11"),
        (
            "HYDRA build details:\n Version: 4.0.2",
            ALONE,
            "failure",
            "MPICH 4.0.2, the ranks load Open MPI 5.0.11: each",
        ),
        ("mpirun of mine", ALONE, "warning", "of an unknown MPI"),
        (None, ALONE, "warning", "none on PATH for Open MPI 5.0.11"),
        (None, SRUN, "ok", "none on PATH, and srun needs none"),
    ],
)
def test_mpirun_belongs_to_the_same_mpi(said, launcher, level, words):
    tool = None if said is None else Tool("/bin/mpirun", said, 0)
    finding = one_mpi.judge_mpirun(tool, Mpis(OMPI5, ONE, ONE, (ONE,)), launcher)
    assert (finding.check, finding.level) == ("mpirun", level)
    assert words in finding.text


def test_an_mpirun_that_fails_is_told_with_its_words():
    finding = one_mpi.judge_mpirun(Tool("/bin/mpirun", "\nno libprrte\nmore", 127), Mpis(OMPI5, ONE), ALONE)
    assert (finding.level, finding.text) == ("warning", "/bin/mpirun does not tell its version: no libprrte")


def test_the_right_mpirun_is_shown(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mpirun").touch()
    mpis = Mpis(OMPI5, str(tmp_path / "lib/libmpi.so.40"))
    finding = one_mpi.judge_mpirun(Tool("/usr/bin/mpirun", "mpirun (Open MPI) 4.1.4", 0), mpis, ALONE)
    assert finding.remedy == f"put the mpirun of Open MPI 5.0.11 first on PATH: {tmp_path / 'bin'}"


@pytest.mark.parametrize(
    ("text", "types"),
    [
        (ALL, ["pmix", "none", "cray_shasta", "pmi2", "pmix_v4"]),
        (OLD, ["cray_shasta", "none", "pmi2", "pmix_v3", "pmix"]),
        (NO_PMIX, ["none", "pmi2"]),
        ("", []),
    ],
)
def test_pmi_types_as_srun_lists_them(text, types):
    assert pmi.types_of(text) == types


@pytest.mark.parametrize(
    ("mpi", "types", "fits"),
    [
        (("Open MPI", "5.0.11"), ["none", "pmi2", "pmix"], "pmix"),
        (("Open MPI", "5.0.11"), ["none", "pmix_v3", "pmix_v4"], "pmix_v4"),
        (("Open MPI", "5.0.11"), ["none", "pmi2"], None),
        (("Open MPI", "4.1.4"), ["none", "pmi2"], "pmi2"),
        (("Open MPI", "4.1.4"), ["none", "pmi2", "pmix"], "pmix"),
        (("MPICH", "4.0.2"), ["pmix", "pmi2"], "pmi2"),
        (("Cray MPICH", "8.1"), ["pmi2", "cray_shasta"], "cray_shasta"),
        (("Intel MPI", "2021.9"), ["none"], None),
    ],
)
def test_the_type_that_fits(mpi, types, fits):
    assert pmi.fitting(mpi, types) == fits


@pytest.mark.parametrize(
    ("listed", "library", "launcher", "environment", "level", "text", "remedy"),
    [
        # Symptom 2: before the job, and inside srun.
        (ALL, OMPI5, ALONE, {}, "ok", "; for Open MPI 5.0.11 use --mpi=pmix", ""),
        (
            NO_PMIX,
            OMPI5,
            ALONE,
            {},
            "warning",
            "srun --mpi offers none, pmi2; none fits Open MPI 5.0.11",
            "mpirun inside",
        ),
        (ALL, OMPI5, SRUN, {}, "failure", "started without a PMI that Open MPI 5.0.11 can use", "srun --mpi=pmix ..."),
        (ALL, OMPI5, SRUN, {"PMI_RANK": "0"}, "failure", "without a PMI that Open MPI 5.0.11", "srun --mpi=pmix ..."),
        (NO_PMIX, OMPI5, SRUN, {}, "failure", "srun --mpi offers none, pmi2", "mpirun inside salloc"),
        (None, OMPI5, SRUN, {}, "failure", "srun --mpi=list does not answer", "srun --mpi=pmix ..."),
        (ALL, OMPI4, SRUN, {}, "failure", "without a PMI that Open MPI 4.1.4 can use", "srun --mpi=pmix ..."),
        (ALL, OMPI4, SRUN, {"PMI_RANK": "0"}, "ok", "pmi2 serves Open MPI 4.1.4", ""),
        (ALL, OMPI5, SRUN, {"PMIX_RANK": "0"}, "ok", "pmix serves Open MPI 5.0.11; srun --mpi offers pmix, none", ""),
        (ALL, "MPICH Version: 4.0.2", SRUN, {}, "ok", "srun --mpi offers pmix", ""),
        (ALL, None, ALONE, {}, "ok", "srun --mpi offers pmix, none", ""),
    ],
)
def test_which_pmi_srun_offers_and_which_fits(listed, library, launcher, environment, level, text, remedy):
    tool = None if listed is None else Tool("/bin/srun", listed, 0)
    finding = pmi.judge_srun(tool, library, launcher, environment)
    assert (finding.check, finding.level) == ("srun", level)
    assert text in finding.text
    assert remedy in finding.remedy


def test_without_srun_nothing_is_said_and_a_mute_one_is_told():
    assert pmi.judge_srun(None, OMPI5, ALONE, {}) is None
    finding = pmi.judge_srun(Tool("/bin/srun", "srun: error: no config\nmore", 1), OMPI5, ALONE, {})
    assert (finding.level, finding.text) == (
        "warning",
        "/bin/srun does not list its PMI types: srun: error: no config",
    )


def test_tools_are_asked_outside_of_the_launch_and_not_for_ever(monkeypatch):
    monkeypatch.setenv("SLURM_CONF", "/etc/it's")
    for name in ("SLURM_JOB_ID", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_FD"):
        monkeypatch.setenv(name, "1")
    code = "import os; print(sorted(n for n in os.environ if n.startswith(('SLURM', 'PMI', 'OMPI_COMM'))))"
    assert one_mpi.ask([sys.executable, "-S", "-c", code]) == Tool(sys.executable, "['SLURM_CONF']", 0)
    monkeypatch.setattr(one_mpi, "_TIMEOUT_S", 0.1)
    started = time.monotonic()
    assert one_mpi.ask(["sleep", "20"]).status == -1
    assert time.monotonic() - started < 3
    assert one_mpi.ask(["/no/such/tool"]).status == -1
