"""Build Horovod's last release, unpatched, against a torch whose headers need C++20. Standard library only."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

#: Horovod fixes C++14 and CMake strips -std= from CXXFLAGS, so that only the compiler itself can be told otherwise.
WRAPPER = """#!/bin/sh
for argument do
  shift
  case $argument in
    -std=gnu++11|-std=c++11|-std=gnu++14|-std=c++14|-std=gnu++17|-std=c++17) argument=-std=gnu++20 ;;
  esac
  set -- "$@" "$argument"
done
exec {compiler} "$@"
"""

#: What a failed build says, and what that means to a person. The first in the log is told: others follow from it.
_CAUSES = (
    (r"fatal error: (\S+): No such file", "the header {0} is missing"),
    # Optional parts are looked for too: only what comes with an error was needed.
    (r"CMake Error[^\n]*\n\s*Could NOT find (\w+)", "CMake could not find {0}"),
    (r"\bsh: (?:line )?\d+: ([\w+./-]+): (?:command )?not found", "the program {0} is missing"),
    (r"No CMAKE_CXX_COMPILER could be found", "no C++ compiler was found"),
    (
        r"unrecognized command[- ]line option '?-std=gnu\+\+20",
        "the C++ compiler is too old for C++20 (g++ 11 or later)",
    ),
    (r"(No space left on device)", "the disk is full"),
    (r"(Killed signal terminated program|internal compiler error: Killed)", "the compiler ran out of memory"),
)


class BuildError(RuntimeError):
    """A build that failed; one line with the cause and the log."""


def build_wheel(
    python: Path, requirement: str, scratch: Path, mpi_bin: Path | None, gpu: str, say: Callable[[str], None]
) -> Path:
    """Build ``requirement`` in ``scratch`` and return the wheel. ``gpu`` is none or NCCL. Raises BuildError."""
    wrapper = scratch / "cxx"
    wrapper.write_text(WRAPPER.format(compiler=os.environ.get("CXX") or "g++"))
    wrapper.chmod(0o755)
    log = python.parent.parent / "horovod-build.log"
    command = [str(python), "-m", "pip", "wheel", "-v", "--no-build-isolation", "--no-deps", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--wheel-dir", str(scratch), requirement]
    with log.open("w") as stream:
        status = _follow(command, _environment(python, wrapper, mpi_bin, gpu), stream, say)
    wheels = sorted(scratch.glob("*.whl"))
    if status != 0 or not wheels:
        raise BuildError(f"building {requirement} failed: {cause(log.read_text(errors='replace'))} (log: {log})")
    return wheels[0]


def cause(log: str) -> str:
    """What a build's log says was missing, in one line."""
    found = [
        (match.start(), meaning.format(*match.groups()))
        for pattern, meaning in _CAUSES
        if (match := re.search(pattern, log))
    ]
    if found:
        return min(found)[1]
    errors = [line.strip() for line in log.splitlines() if "error" in line.lower()]
    return errors[0][:200] if errors else "no reason was given"


def _environment(python: Path, wrapper: Path, mpi_bin: Path | None, gpu: str) -> dict[str, str]:
    first = [str(python.parent), *([str(mpi_bin)] if mpi_bin else [])]
    made = {
        **os.environ,
        "PATH": os.pathsep.join([*first, os.environ.get("PATH", "")]),
        "CXX": str(wrapper),
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # CMake 4 refuses what Horovod asks for
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        # A login node has many cores and other users; each compiler takes up to 2 GB.
        "MAKEFLAGS": f"-j{min(len(os.sched_getaffinity(0)), 8)}",
    }
    if gpu == "none":
        made.pop("HOROVOD_GPU_OPERATIONS", None)
    return made


def _follow(command: list[str], environment: dict[str, str], log, say: Callable[[str], None]) -> int:
    """Run ``command``, keep its output, and pass on how far the compiler is, in steps of a fifth."""
    shown = 0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    ) as process:
        try:
            for line in process.stdout:
                log.write(line)
                found = re.search(r"\[\s*(\d+)%\]", line)
                if found and int(found[1]) >= shown + 20:
                    shown = int(found[1]) // 20 * 20
                    say(f"  Horovod {shown}%")
        except BaseException:
            process.terminate()
            raise
    return process.returncode
