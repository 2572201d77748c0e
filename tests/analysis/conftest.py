"""A small factory of synthetic records: complete, plausible, and with no noise but what a test puts in."""

import copy
import shutil

import numpy as np
import pytest

from analysis.load import load
from hvdkan import record as records


def make(variant="mpi-flat", block=1, step_s=0.004, workers=4, nodes=(2, 2), **changes):
    """One record. ``changes`` replace top-level keys; ``config_<key>`` settings; ``asked``/``ran`` the all-reduce."""
    backend = next((name for name in ("horovod", "ddp", "mpi", "single") if name in variant), "horovod")
    allreduce = next((name for name in ("hierarchical", "flat") if name in variant), "stock")
    transport = "gloo" if backend == "ddp" else "mpi"
    engine = {"horovod": "process_sets", "ddp": "hook", "mpi": "two_level"}.get(backend, "none")
    engine = "builtin" if allreduce == "stock" else engine
    config = {
        "backend": backend, "operator": "spline", "hidden": [32], "grid": 10, "order": 3, "symbolic": True,
        "task": "squares", "samples": 20000, "noise": 0.1, "batch_size": 1000, "global_batch_size": None, "epochs": 2,
        "learning_rate": 0.01, "seed": 0, "device": "cpu", "dtype": "float32", "threads": 1, "allreduce": allreduce,
        "engine": "auto", "simulate_nodes": list(nodes) if nodes else None, "record": f"{variant}.jsonl", "label": [],
    }  # fmt: skip
    config |= {key[7:]: changes.pop(key) for key in list(changes) if key.startswith("config_")}
    per_node = list(nodes or (workers,))
    node_of = [node for node, size in enumerate(per_node) for _ in range(size)]
    steps = 20000 // (1000 * workers) * 2
    asked, ran = changes.pop("asked", config["allreduce"]), changes.pop("ran", config["allreduce"])
    made = {
        "schema": records.SCHEMA, "run_id": f"r-{variant}-{block}", "launch_id": f"s/{block}/{variant}", "study": "s",
        "block": block, "order": 1, "cell": "main", "variant": variant, "attempt": 1, "status": "ok", "error": None,
        "started_at": f"2026-11-30T19:{block % 60:02d}:00Z", "wall_s": 7.0, "config": config,
        "requested": {"allreduce": asked, "engine": "auto", "transport": transport},
        "effective": {"allreduce": ran, "engine": engine, "transport": transport, "reason": None,
                      "evidence": {"steps": ["reduce_scatter", "allreduce", "allgather"]}},
        "placement": f"{workers}G{len(per_node)}N", "ranks_per_host": {"hosta": workers},
        "simulated_nodes": list(nodes) if nodes else None,
        "ranks": [{"rank": rank, "host": "hosta", "node": node_of[rank], "local_rank": 0, "cores": [0, 1],
                   "device": "cpu", "device_id": None} for rank in range(workers)],
        "emulated": False, "simulated_topology": bool(nodes), "oversubscribed": workers > 2, "exclusive": "unknown",
        "step_s": [step_s] * 5, "exchange_s": [step_s / 8] * 5, "wait_s": [step_s / 16] * 5, "rank_summary": [],
        "window_s": 5 * step_s, "window_samples": 5000 * workers, "samples_per_s": 1000 * workers / step_s,
        "exposed": {"with_s": step_s, "without_s": 0.75 * step_s, "fraction": 0.25, "steps": 20},
        "epoch_loss": [0.5, 0.02], "samples_seen": [20000, 20000], "test_loss": 0.011, "test_samples": 1000,
        "steps": steps, "warmup_steps": 3, "global_batch": 1000 * workers, "batch_per_rank": 1000,
        "parameters": {"all": 2726, "trainable": 1440}, "grad_bytes": 5760, "peak_memory_bytes": 4e8,
        "environment": {"torch": "2.13.0", "threads": 1, "cpu": "a CPU"},
    }  # fmt: skip
    return copy.deepcopy(made | changes)


def fail(variant="mpi-flat", block=1, message="rank 1: no space left", **changes):
    """A failed launch: it lacks every measurement."""
    record = make(variant, block, **changes)
    kept = (*records.KEYS, "started_at")
    record = {key: record[key] for key in kept}
    error = {"kind": "OSError", "message": message, "rank": 1, "host": "hosta", "traceback": "..."}
    return record | {"status": "failed", "error": error, "effective": None}


def quick(blocks=3, noise=0.03, seed=0):
    """The records of a study like plans/quick.toml, with noise (the standard deviation of log step times)."""
    generator = np.random.default_rng(seed)
    steps = {"horovod-flat": 0.0052, "horovod-hierarchical": 0.0058, "ddp-flat": 0.0047, "ddp-hierarchical": 0.0055,
             "mpi-flat": 0.0041, "mpi-hierarchical": 0.0042, "mpi-flat-again": 0.0041}  # fmt: skip
    made = []
    for block in range(1, blocks + 1):
        arms = [(name, step, {}) for name, step in steps.items()]
        for backend, step in (("horovod", 0.0034), ("ddp", 0.0031), ("mpi", 0.0029)):
            arms.append((f"{backend}-1g", 0.0028, {"workers": 1, "nodes": None}))
            arms.append((f"{backend}-2g", step, {"workers": 2, "nodes": None}))
        pykan = {"workers": 1, "nodes": None, "config_operator": "pykan"}
        arms.append(("horovod-1g-pykan", 0.034, pykan))
        for name, step, changes in arms:
            factor = np.exp(noise * generator.standard_normal())
            exposed = {"with_s": step, "without_s": 0.0026, "fraction": (step - 0.0026) / step, "steps": 20}
            made.append(make(name, block, step * factor, exposed=exposed, **changes))
    return made


PLAN = """
study = "quick"
blocks = 3
primary = [["horovod-flat", "horovod-hierarchical"], ["ddp-flat", "ddp-hierarchical"], ["mpi-flat", "mpi-hierarchical"]]
aa = [["mpi-flat", "mpi-flat-again"]]
"""


@pytest.fixture(name="make")
def make_fixture():
    return make


@pytest.fixture(name="fail")
def fail_fixture():
    return fail


@pytest.fixture(name="quick")
def quick_fixture():
    return quick


@pytest.fixture
def plan():
    return PLAN


@pytest.fixture
def save(tmp_path):
    """Write each record to a file of its own, with a plan if one is given; returns the study's directory."""

    def saved(made, plan=None):
        shutil.rmtree(tmp_path / "records", ignore_errors=True)
        for number, record in enumerate(made):
            records.write(tmp_path / "records" / f"{number:05d}.jsonl", [record])
        if plan:
            (tmp_path / "plan.toml").write_text(plan)
        return tmp_path

    return saved


@pytest.fixture
def study(save):
    """Records (and a plan) as a loaded study."""
    return lambda made, plan=None: load(save(made, plan))
