"""hvdkan: Kolmogorov-Arnold networks trained with Horovod, MPI or torch DDP.

Importing the package imports no torch: each back end imports its own library where it is used.
"""

__version__ = "0.1.0"
