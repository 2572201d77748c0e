"""What a person sees while a job runs and when it ends; rank 0 only."""

from __future__ import annotations

import statistics
import sys
from typing import Any

from tqdm import tqdm


class Progress:
    """A bar of steps with the latest loss. Under mpirun standard error is a pipe, so it is drawn there too, seldom."""

    def __init__(self, steps: int, shown: bool):
        interval = 0.2 if sys.stderr.isatty() else 2.0
        self._bar = tqdm(
            total=steps, disable=not shown, unit="step", ncols=78, mininterval=interval, file=sys.stderr, delay=1.0
        )

    def step(self, loss: float) -> None:
        self._bar.set_postfix_str(f"loss {loss:.3g}", refresh=False)
        self._bar.update()

    def close(self) -> None:
        self._bar.close()


def closing_summary(made: dict[str, Any]) -> str:
    """The end of a run in a few lines of at most 79 columns."""
    config, effective, requested = made["config"], made["effective"], made["requested"]
    counts = made["parameters"]
    lines = [
        ("model", f"{config['operator']}, {counts['trainable']:,} trainable of {counts['all']:,} parameters"),
        ("ran on", _where(made)),
        ("loss", f"{made['epoch_loss'][-1]:.4g} in training, {made['test_loss']:.4g} in test"),
        *_in_units(made),
        ("throughput", f"{made['samples_per_s']:,.0f} samples/s"),
        ("step", f"{statistics.median(made['step_s']) * 1e3:.2f} ms (median of {len(made['step_s'])}, slowest rank)"),
        ("exposed", _exposed(made["exposed"])),
        ("all-reduce", _allreduce(effective)),
    ]
    if effective["reason"]:
        lines.append(("", f"NOT the {requested['allreduce']} asked for: {effective['reason']}"))
    if effective["evidence"].get("staged_through_host"):
        lines.append(("", "gradients on the GPU went through host memory"))
    if made["simulated_topology"]:
        lines.append(("", "simulated nodes: these times say nothing about a network"))
    if made["oversubscribed"]:
        lines.append(("", "oversubscribed: more threads than cores, as no real cluster has"))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def _in_units(made: dict[str, Any]) -> list[tuple[str, str]]:
    """The test error of a table in the units of its target; a formula's loss is in units already."""
    if made["data"]["digest"] is None:
        return []
    name = made["data"]["scaling"]["target"]
    name = repr(name if len(name) <= 24 else name[:21] + "...")
    return [("test error", f"{made['test_rmse']:.4g} (root mean square, in units of {name})")]


def _where(made: dict[str, Any]) -> str:
    count = len(made["ranks_per_host"])
    hosts = f"{count} {'emulated ' if made['emulated'] is True else ''}host{'s' if count > 1 else ''}"
    kind = f"simulated nodes on {hosts}" if made["simulated_topology"] else hosts
    return f"{made['placement']} ({kind}), back end {made['config']['backend']}"


def _allreduce(effective: dict[str, Any]) -> str:
    if effective["engine"] == "none":
        return "none"
    return f"{effective['allreduce']} by {effective['engine']} over {effective['transport']}"


def _exposed(exposed: dict[str, Any] | None) -> str:
    if exposed is None:
        return "not measured"
    return (
        f"{exposed['fraction']:.1%} of a step is exchange ({exposed['with_s'] * 1e3:.2f} ms with, "
        f"{exposed['without_s'] * 1e3:.2f} without)"
    )
