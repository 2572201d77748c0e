"""A rehearsal cluster: a real Slurm over emulated nodes on one machine, to find a typo before anyone queues.

    python -m jobs.rehearsal up --nodes 4 --gpus-per-node 2 --cross-rate 1gbit
    eval "$(python -m jobs.rehearsal env)"
    srun -N4 --gpus-per-node=2 hostname
    python -m jobs.rehearsal down

Every node is a network namespace with its own host name, hosts file, /dev/shm and link to a bridge; on it runs a real
slurmd. slurmctld has such a namespace too. Nothing of the machine's own Slurm, munge or hosts file is used or touched.
"""
