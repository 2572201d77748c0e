"""hvdkan.train with an all-reduce that does nothing."""

import sys

from hvdkan import train
from mpi.allreduce import Allreduce

Allreduce.__call__ = lambda self, buffer: buffer
sys.exit(train.main(["--backend", "mpi", "--samples", "200", "--epochs", "1", "--hidden", "3", "--threads", "1"]))
