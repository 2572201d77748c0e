"""Compile the CPU kernel: ``python hvdkan/kernels/compile.py``, which ``make setup`` does. Standard library only.

One library for each set of processor features that torch tells apart, in ``build/`` beside this file, in a folder named
by a hash of source and commands: another version of the source never loads what was built for this one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: No -ffast-math: NaN, infinities and the order of sums are part of the results.
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC", "-fvisibility=hidden")
#: By torch.backends.cpu.get_cpu_capability(), the flags for exactly what torch has checked for then.
VARIANTS = {
    "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"),
    "AVX2": ("-mavx2", "-mfma"),
}


class CompileError(RuntimeError):
    """The kernel could not be compiled; one line with the compiler's reason."""


def variants() -> dict[str, tuple[str, ...]]:
    """What there is to build on this kind of processor."""
    return VARIANTS if platform.machine() in ("x86_64", "AMD64") else {"DEFAULT": ()}


def folder() -> Path:
    """Where the libraries of this source lie, built or not."""
    digest = hashlib.sha256(repr((FLAGS, VARIANTS, platform.machine())).encode())
    for path in sorted(HERE.glob("*.[ch]pp")):
        digest.update(path.read_bytes())
    return HERE / "build" / digest.hexdigest()[:16]


def library(capability: str) -> Path:
    """The library for a processor with torch's ``capability``; on x86 processors without AVX2 there is none."""
    return folder() / f"{capability}.so"


def build() -> list[Path]:
    """Compile what is missing; the libraries built. Raises :class:`CompileError`."""
    missing = [name for name in variants() if not library(name).exists()]
    if not missing:
        return []
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder().parent) as scratch:
            parts = [(name, dtype) for name in missing for dtype in ("float", "double")]
            with ThreadPoolExecutor(min(len(parts), len(os.sched_getaffinity(0)))) as pool:
                objects = list(pool.map(lambda part: _object(Path(scratch), *part), parts))
            return [_link(Path(scratch), name, objects[2 * n : 2 * n + 2]) for n, name in enumerate(missing)]
    except OSError as error:
        raise CompileError(f"{error.strerror}: {error.filename}") from error


def _object(scratch: Path, variant: str, dtype: str) -> Path:
    target = scratch / f"{variant}-{dtype}.o"
    _run([*FLAGS, *variants()[variant], f"-DELEMENT={dtype}", "-c", str(HERE / "spline.cpp"), "-o", str(target)])
    return target


def _link(scratch: Path, variant: str, objects: list[Path]) -> Path:
    target = scratch / f"{variant}.so"
    _run(["-shared", "-fopenmp", *map(str, objects), "-o", str(target)])
    # A rename: a set-up or a job beside this one sees a whole library or none.
    return target.replace(library(variant))


def _run(arguments: list[str]) -> None:
    compiler = os.environ.get("CXX") or "g++"
    done = subprocess.run([compiler, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()[-1:]
        raise CompileError(f"{compiler} failed: {lines[0].strip() if lines else f'status {done.returncode}'}")


if __name__ == "__main__":
    try:
        for path in build():
            print(path)
    except CompileError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
