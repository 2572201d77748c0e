"""Horovod's own timeline of a few steps, split into waiting for other ranks, copying and exchanging."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from pathlib import Path

#: The value of HOROVOD_TIMELINE with which a timeline can be started later; read when Horovod starts. Only whoever asks
#: for it gets it: its writer's thread then spins on a core of rank 0 from the start to the end, also while nothing is
#: written, and every time that is measured holds that.
VARIABLE, ON_DEMAND = "HOROVOD_TIMELINE", "DYNAMIC"
#: Seconds that Horovod's writer may take to end the file.
_PATIENCE_S = 2.0


def recorded(hvd, steps) -> list[dict]:
    """The events of ``steps()``, on the rank that writes them, which is rank 0. Not while anything is timed."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "timeline.json"
        hvd.start_timeline(str(path))
        try:
            steps()
        finally:
            hvd.stop_timeline()
        end = time.monotonic() + _PATIENCE_S
        while not _ended(path) and time.monotonic() < end:
            time.sleep(0.02)
        return read(path.read_text()) if path.exists() else []


def _ended(path: Path) -> bool:
    return path.exists() and path.read_text().rstrip().endswith("]")


def read(text: str) -> list[dict]:
    """Events of a timeline, also of one that was not ended. Raises ValueError where it is none."""
    text = text.strip().removesuffix("]").rstrip().removesuffix(",")
    return json.loads(text + "]") if text else []


def split(events: list[dict]) -> dict[str, float | int] | None:
    """Seconds a step of waiting, copying and exchanging, and the steps seen; None where there was no exchange.

    Tensors that are fused wait and go together: what several do at one time counts once. Waiting is from the first
    rank's readiness, as rank 0 hears of it, to the last one's; the time until Horovod's next cycle is not in it.
    """
    spans: dict[str, list[tuple[float, float]]] = {"waiting": [], "copying": [], "exchanging": []}
    negotiated: Counter[int] = Counter()
    open_of: dict[int, list[dict]] = {}
    for event in events:
        stack = open_of.setdefault(event.get("pid", 0), [])
        if event.get("ph") == "B":
            stack.append(event)
        elif event.get("ph") == "E" and stack:
            began = stack.pop()
            kind = _kind(began["name"], within=bool(stack))
            if kind is not None:
                spans[kind].append((began["ts"] / 1e6, event["ts"] / 1e6))
            negotiated[event["pid"]] += began["name"].startswith("NEGOTIATE_")
    if not spans["exchanging"] or not negotiated:
        return None
    steps = max(1, max(negotiated.values()))
    return {f"{kind}_s": _covered(found) / steps for kind, found in spans.items()} | {"steps": steps}


def _kind(name: str, within: bool) -> str | None:
    if name.startswith(("NEGOTIATE_", "WAIT_FOR_", "QUEUE")):
        return "waiting"
    if name.startswith("MEMCPY_"):
        return "copying"
    # What lies directly in the line of a tensor is the operation as a whole.
    return "exchanging" if within and not name.startswith(("INIT_", "ALLOCATE_")) else None


def _covered(spans: list[tuple[float, float]]) -> float:
    """The length of the union."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
