"""Run under a launcher: one step of y = 3 w x on shards of three samples and one, on every engine of a back end."""

import sys

import numpy as np
import torch

from hvdkan.backends import make_backend
from hvdkan.config import Config
from hvdkan.launcher import detect
from hvdkan.train import train_step


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return 3 * self.w * x


def main(backend_name, allreduce):
    backend = make_backend(Config(backend=backend_name, allreduce=allreduce), detect())
    backend.start()
    model = Scale()
    wrapped = backend.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0))
    inputs = torch.tensor([[1.0], [2.0], [3.0], [10.0]])
    mine = np.array([0, 1, 2]) if backend.world.rank == 0 else np.array([3])
    train_step(wrapped, inputs, torch.zeros(4, 1), mine, batch=4, size=2)
    gradient = 1.0 - model.w.item()
    assert gradient == 513.0, gradient  # the mean of the ranks' means would be 942
    backend.stop()
    print("gradient 513", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
