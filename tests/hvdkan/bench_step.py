"""Time one training step (forward, backward, Adam) of each operator: ``python -m tests.hvdkan.bench_step``.

One thread, float32, batch 1000. The operators take turns within a round, so that a busy machine hits all of them; the
table shows the median over rounds, and the ratio of each round to pykan's default in the same round, as a median too.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from hvdkan.models import build_model

OPERATORS = {
    "pykan": ("pykan", True),
    "pykan, symbolic off": ("pykan", False),
    "spline": ("spline", True),
    "mlp, equal parameters": ("mlp", True),
}


class Step:
    """One operator's model, optimiser and batch; calling it trains one step and returns its time in seconds."""

    def __init__(self, operator: str, symbolic: bool, hidden: int, batch: int):
        self.model = build_model(operator, [2, hidden, 1], 10, 3, 0, torch.float32, symbolic)
        self.optimiser = torch.optim.Adam([p for p in self.model.parameters() if p.requires_grad], lr=0.01)
        generator = torch.Generator().manual_seed(0)
        self.x = torch.rand(batch, 2, generator=generator) * 2 - 1
        self.y = (self.x**2).sum(dim=1, keepdim=True)

    def __call__(self) -> float:
        start = time.perf_counter()
        self.optimiser.zero_grad()
        torch.nn.functional.mse_loss(self.model(self.x), self.y).backward()
        self.optimiser.step()
        return time.perf_counter() - start

    def warm(self) -> float:
        """The second of two steps: the first finds the caches full of another operator's data."""
        self()
        return self()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, nargs="+", default=[32, 256], help="hidden widths (default: 32 256)")
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'width':>6}  {'operator':<22}{'trained':>9}{'step ms':>10}{'samples/s':>12}{'pykan / this':>14}")
    for hidden in arguments.hidden:
        steps = {name: Step(*which, hidden, arguments.batch_size) for name, which in OPERATORS.items()}
        for step in steps.values():
            step.warm()
        rounds = [{name: step.warm() for name, step in steps.items()} for _ in range(arguments.rounds)]
        for name, step in steps.items():
            seconds = statistics.median(times[name] for times in rounds)
            ratio = statistics.median(times["pykan"] / times[name] for times in rounds)
            trained = step.model.parameter_counts()["trainable"]
            rate = arguments.batch_size / seconds
            print(f"{hidden:>6}  {name:<22}{trained:>9}{seconds * 1e3:>10.2f}{rate:>12.0f}{ratio:>14.1f}")


if __name__ == "__main__":
    main()
