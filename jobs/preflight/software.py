"""Which versions are here, where they were imported from, and what Horovod was built with."""

from __future__ import annotations

import configparser
import contextlib
import importlib
import importlib.util
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from jobs.preflight.findings import Finding, failure, ok, warning

ROOT = Path(__file__).resolve().parents[2]
#: Package and the module that is imported of it; pykan's takes seconds, so that it is only found.
PACKAGES = {"numpy": "numpy", "torch": "torch", "horovod": "horovod.torch", "mpi4py": "mpi4py", "pykan": "kan"}
_ONLY_FOUND = ("kan",)
#: Ours, which must come from one checkout; `mpi` is a name that others use too.
OURS = ("hvdkan", "mpi", "jobs")
BUILDS = ("mpi", "gloo", "nccl", "cuda")


@dataclass(frozen=True)
class Package:
    """One installed package: ``error`` says why it does not import; None in all three: it is not there."""

    name: str
    version: str | None = None
    origin: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Wanted:
    """The versions that setup.cfg allows (``>=5.0.8,<6``) and the one that constraints.txt says was tested."""

    allowed: str = ""
    tested: str = ""


# --- look ---


def look() -> list[Package]:
    """Python and the packages, imported in an order that leaves MPI uninitialised."""
    return [Package("python", platform.python_version()), *(_package(name) for name in PACKAGES)]


def _package(name: str) -> Package:
    version = origin = error = None
    with contextlib.suppress(metadata.PackageNotFoundError):
        version = metadata.version(name)
    try:
        if PACKAGES[name] in _ONLY_FOUND:
            found = importlib.util.find_spec(PACKAGES[name])
            origin = found.origin if found else None
        else:
            top = importlib.import_module(PACKAGES[name].partition(".")[0])
            origin, version = top.__file__, getattr(top, "__version__", version)
            importlib.import_module(PACKAGES[name])
    except ModuleNotFoundError as missing:
        if missing.name != PACKAGES[name].partition(".")[0]:
            error = str(missing)
    except Exception as broken:  # whatever a broken installation raises is what is looked for
        error = (str(broken).splitlines() or [type(broken).__name__])[0]
    return Package(name, version, str(Path(origin).parent) if origin else None, error)


def look_ours() -> dict[str, str]:
    """Where each of our own packages would come from."""
    found = {name: importlib.util.find_spec(name) for name in OURS}
    return {name: str(Path(one.origin).parent) for name, one in found.items() if one and one.origin}


def look_horovod() -> dict[str, bool] | None:
    """What Horovod was built with, None without Horovod."""
    horovod = sys.modules.get("horovod.torch")
    return None if horovod is None else {name: bool(getattr(horovod, f"{name}_built")()) for name in BUILDS}


def read_wanted(root: Path = ROOT) -> dict[str, Wanted]:
    """What setup.cfg and constraints.txt of the checkout say; nothing where there is no checkout."""
    config = configparser.ConfigParser()
    config.read(root / "setup.cfg")
    if "options" not in config:
        return {}
    options, extras = config["options"], config["options.extras_require"]
    allowed = {"python": options["python_requires"].strip()}
    for line in (options["install_requires"] + "\n" + extras["horovod"]).splitlines():
        match = re.fullmatch(r"([A-Za-z0-9_.-]+?)\s*([<>=!].*)", line.strip())
        if match:
            allowed[match[1]] = match[2]
    lines = (root / "constraints.txt").read_text().splitlines()
    tested = dict(line.strip().split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {name: Wanted(allowed.get(name, ""), tested.get(name, "")) for name in ("python", *PACKAGES)}


# --- judge ---


def judge_package(package: Package, wanted: Wanted) -> Finding:
    name, version = package.name, package.version
    again = "set up again with the modules loaded that the job will load (make setup)"
    if package.error is not None:
        return failure(name, f"{version or 'some version'} does not import: {package.error}", again)
    if version is None:
        without = "; --backend ddp and mpi do without it" if name == "horovod" else ""
        return failure(name, "not installed", again + without)
    if not allows(wanted.allowed, version):
        remedy = f"make PYTHON=python{tried(wanted.allowed)} setup" if name == "python" else again
        return failure(name, f"{version} is not within {wanted.allowed} (setup.cfg)", remedy)
    if wanted.tested and numbers(version) == numbers(wanted.tested):
        return ok(name, f"{version}, as tested")
    return ok(name, version + (f" (tested: {wanted.tested})" if wanted.tested else ""))


def judge_origins(packages: Sequence[Package], prefixes: Sequence[str], ours: Mapping[str, str], root: str) -> Finding:
    """Packages come from this Python's own directories, ours from one checkout."""
    foreign = [
        f"{one.name} from {one.origin}"
        for one in packages
        if one.origin is not None and not any(Path(one.origin).is_relative_to(prefix) for prefix in prefixes)
    ]
    strangers = [f"{name} from {place}" for name, place in ours.items() if Path(place) != Path(root, name)]
    if foreign or strangers:
        return warning(
            "imports",
            f"{', '.join(strangers + foreign)}, not from {root if strangers else prefixes[0]}",
            "take it off PYTHONPATH, and unset what puts ~/.local before the environment (PYTHONNOUSERSITE=1); "
            "leave it where a module means it",
        )
    return ok("imports", f"packages from {prefixes[0]}; {', '.join(ours)} from {root}")


def judge_horovod(built: Mapping[str, bool] | None, needs_mpi: bool, gpus: int) -> Finding | None:
    """``needs_mpi``: mpirun or srun starts the ranks; ``gpus``: how many torch sees."""
    if built is None:
        return None
    check, text = "horovod build", ", ".join(f"{name}: {'yes' if built[name] else 'no'}" for name in BUILDS)
    if needs_mpi and not built["mpi"]:
        return failure(
            check,
            f"{text}; without MPI each rank believes to be rank 0 of 1",
            "set up again with an MPI loaded (make setup), or train with --transport gloo",
        )
    if gpus and not (built["nccl"] or built["cuda"]):
        return failure(
            check,
            f"{text}; torch sees {gpus} GPU{'' if gpus == 1 else 's'}, and this Horovod takes no gradients from them",
            "HOROVOD_GPU_OPERATIONS=NCCL make setup, with CUDA and NCCL loaded; or train with --device cpu",
        )
    if not (built["mpi"] or built["gloo"]):
        return failure(check, text, "set up again (make setup): Horovod needs MPI or Gloo")
    return ok(check, text)


def allows(allowed: str, version: str) -> bool:
    """Whether ``version`` is within a range such as ``>=5.0.8,<6``; local and pre-release parts are left out."""
    compare = {
        ">=": lambda a, b: a >= b, "<=": lambda a, b: a <= b, "==": lambda a, b: a == b,
        "!=": lambda a, b: a != b, ">": lambda a, b: a > b, "<": lambda a, b: a < b,
    }  # fmt: skip
    for part in filter(None, (part.strip() for part in allowed.split(","))):
        match = re.fullmatch(r"(>=|<=|==|!=|>|<)\s*([\d.]+)", part)
        if match and not compare[match[1]](numbers(version), numbers(match[2])):
            return False
    return True


def numbers(version: str) -> tuple[int, ...]:
    """The release of a version without zeros at its end: 2.13.0+cu130 is (2, 13)."""
    found = [int(part) for part in re.match(r"[\d.]*", version)[0].split(".") if part]
    while found and found[-1] == 0:
        found.pop()
    return tuple(found)


def tried(allowed: str) -> str:
    """The first version that a range names."""
    match = re.search(r"\d+(\.\d+)*", allowed)
    return match[0] if match else ""


def own_prefixes() -> list[str]:
    """Where this Python's packages live: the environment, and what it was made from."""
    return list(dict.fromkeys(str(Path(prefix).absolute()) for prefix in (sys.prefix, sys.base_prefix)))
