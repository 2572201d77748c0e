"""Run under mpirun: the error over test sets that divide unevenly, or have fewer samples than there are ranks."""

import numpy as np
import torch

from hvdkan.backends import make_backend
from hvdkan.config import Config
from hvdkan.launcher import detect
from hvdkan.tasks import Data, Scaling
from hvdkan.train import evaluate


def main():
    backend = make_backend(Config(backend="mpi"), detect())
    backend.start()
    for count in (10, 3):
        inputs, targets = np.zeros((count, 2)), np.zeros((count, 1))
        targets[0] = 1.0
        data = Data(inputs, targets, inputs, targets, Scaling(("x", "y"), (0.0, 0.0), (1.0, 1.0)))
        answers = torch.nn.Linear(2, 1, dtype=torch.float64)
        torch.nn.init.zeros_(answers.bias)
        sums = backend.world.allgather(evaluate(answers, data, backend, torch.float64))
        assert sum(n for _, n in sums) == count
        assert sum(error for error, _ in sums) / count == 1 / count
    backend.stop()
    print("shared", flush=True)


if __name__ == "__main__":
    main()
