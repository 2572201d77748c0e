import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from jobs import build, environment
from jobs.environment import Mpi, SetupError

HERE = environment.ROOT


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A PATH with nothing on it, to which programs are added."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("HVDKAN_MPI", raising=False)
    (tmp_path / "bin").mkdir()

    def add(name, prints="", folder=tmp_path / "bin"):
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / name
        program.write_text(f"#!/bin/sh\necho '{prints}'\n")
        program.chmod(0o755)

    return add


def test_without_an_mpi_pypis_is_taken(programs, tmp_path):
    assert environment.find_mpi(tmp_path / "venv").kind == "pypi"


def test_a_loaded_mpi_is_taken_and_known_by_version_and_place(programs, tmp_path):
    programs("mpicxx")
    programs("mpirun", "mpirun (Open MPI) 4.1.4")
    found = environment.find_mpi(tmp_path / "venv")
    assert found == Mpi("system", f"mpirun (Open MPI) 4.1.4 in {tmp_path / 'bin'}", tmp_path / "bin")


def test_an_activated_environments_own_mpi_is_not_the_systems(programs, tmp_path, monkeypatch):
    venv = tmp_path / "venv"
    programs("mpicxx", folder=venv / "bin")
    monkeypatch.setenv("PATH", f"{venv / 'bin'}:{tmp_path / 'bin'}")
    assert environment.find_mpi(venv).kind == "pypi"


@pytest.mark.parametrize(("value", "words"), [("system", "mpicxx is not on PATH"), ("mpich", "auto, system, pypi")])
def test_a_wanted_mpi_that_cannot_be_had_is_named(programs, tmp_path, monkeypatch, value, words):
    monkeypatch.setenv("HVDKAN_MPI", value)
    with pytest.raises(SetupError, match=words) as raised:
        environment.find_mpi(tmp_path)
    assert f"'{value}'" in str(raised.value)


@pytest.mark.parametrize("missing", ["g++", "make"])
def test_a_missing_tool_is_named_before_anything_is_built(programs, missing):
    for tool in {"g++", "make"} - {missing}:
        programs(tool)
    with pytest.raises(SetupError, match=f"^{missing.replace('+', '.')} is missing"):
        environment.check_tools()


def test_missing_headers_are_named(programs, monkeypatch, tmp_path):
    programs("g++")
    programs("make")
    monkeypatch.setattr(environment.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(SetupError, match=r"^Python\.h is missing \(Debian and Ubuntu: python3\.\d+-dev\)"):
        environment.check_tools()


def test_the_fingerprint_changes_with_the_mpi_and_gpu_support(monkeypatch):
    monkeypatch.delenv("HOROVOD_GPU_OPERATIONS", raising=False)
    one = environment.fingerprint(Mpi("system", "a", None))
    assert one == environment.fingerprint(Mpi("system", "a", None))
    assert one != environment.fingerprint(Mpi("system", "b", None))
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    assert one != environment.fingerprint(Mpi("system", "a", None))


@pytest.mark.parametrize("change", ["identity", "python", None])
def test_an_environment_of_another_mpi_or_python_is_made_anew(programs, tmp_path, monkeypatch, change):
    venv = tmp_path / "venv"
    programs("python", folder=venv / "bin")
    (venv / "old").touch()
    before = {"key": None, "identity": "Open MPI from PyPI", "python": sys.version}
    environment.stamp(venv, before | ({change: "another"} if change else {}))
    monkeypatch.setenv("HVDKAN_VENV", str(venv))
    monkeypatch.setattr(environment, "check_tools", lambda: None)
    made = []
    monkeypatch.setattr(environment, "run", lambda command, venv: made.append(command[1:4]))
    monkeypatch.setattr(environment, "install", lambda venv, mpi: None)
    assert environment.main() == 0
    assert made == ([["-m", "venv", "--clear"]] if change else [])
    assert json.loads((venv / "hvdkan-setup.json").read_text())["key"] == environment.fingerprint(
        environment.find_mpi(venv)
    )


def test_a_second_set_up_does_nothing(programs, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HVDKAN_VENV", str(tmp_path))
    environment.stamp(tmp_path, {"key": environment.fingerprint(environment.find_mpi(tmp_path))})
    monkeypatch.setattr(environment, "install", lambda venv, mpi: pytest.fail("installed again"))
    assert environment.main() == 0
    assert "up to date" in capsys.readouterr().out


def test_a_refusal_is_one_line_and_status_2(programs, monkeypatch, capsys):
    monkeypatch.setenv("HVDKAN_MPI", "mpich")
    assert environment.main() == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_kernel_is_compiled_once_and_a_failure_ends_nothing(programs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.delenv("CXX", raising=False)
    kernels = tmp_path / "hvdkan" / "kernels"
    kernels.mkdir(parents=True)
    shutil.copy(HERE / "hvdkan" / "kernels" / "compile.py", kernels)
    environment.compile_kernel()
    said = capsys.readouterr().out
    assert said.startswith("setup: the spline operator will run without its compiled kernel, slower: No such file")
    assert said.count("\n") == 1
    compiler = tmp_path / "bin" / "g++"
    compiler.write_text('#!/bin/sh\nfor a; do [ "$last" = -o ] && echo >"$a"; last=$a; done\n')
    compiler.chmod(0o755)
    environment.compile_kernel()
    assert "compiled the spline operator's CPU kernel" in capsys.readouterr().out
    assert list(kernels.glob("build/*/*.so"))
    environment.compile_kernel()
    assert capsys.readouterr().out == ""


# --- the build ---


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("x.cc:3:10: fatal error: mpi.h: No such file or directory\n", "the header mpi.h is missing"),
        ("CMake Error at Find.cmake:230 (message):\n  Could NOT find MPI (missing: C)\n", "CMake could not find MPI"),
        ("-- Could NOT find CUDA\nfatal error: Python.h: No such file\n", "the header Python.h is missing"),
        ("/bin/sh: 1: cmake: not found\n", "the program cmake is missing"),
        ("write failed: No space left on device\nerror: y\nfatal error: z.h: No such file\n", "the disk is full"),
        ("g++: fatal error: Killed signal terminated program cc1plus\n", "the compiler ran out of memory"),
        ("note\nsomething error: odd\n", "something error: odd"),
        ("", "no reason was given"),
    ],
)
def test_a_failed_builds_cause_is_told(log, cause):
    assert build.cause(log) == cause


def test_the_compiler_is_told_cxx20(tmp_path):
    """The wrapper itself, with a compiler that prints what it is given."""
    wrapper = tmp_path / "cxx"
    wrapper.write_text(build.WRAPPER.format(compiler="printf '%s\\n'"))
    wrapper.chmod(0o755)
    words = ["-std=gnu++14", "-O2", "a file.cc", "-std=c++17", "-std=c++23"]
    printed = os.popen(f"{wrapper} " + " ".join(f"'{word}'" for word in words)).read()
    assert printed.splitlines() == ["-std=gnu++20", "-O2", "a file.cc", "-std=gnu++20", "-std=c++23"]


def test_a_build_that_fails_names_the_log(tmp_path):
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 'x.cc:1: fatal error: mpi.h: No such file or directory'\nexit 1\n")
    python.chmod(0o755)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(build.BuildError, match=r"the header mpi\.h is missing \(log: .*horovod-build\.log\)"):
        build.build_wheel(python, "horovod==0", scratch, None, "none", lambda text: None)
    assert "mpi.h" in (Path(python).parent.parent / "horovod-build.log").read_text()
