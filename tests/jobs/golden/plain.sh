#!/bin/bash
#SBATCH --job-name=quick-b01-3fa9c1
#SBATCH --chdir=/home/u/results/quick/slurm
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --time=02:00:00
#SBATCH --nodes=2
#SBATCH --ntasks=4
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=32
#SBATCH --exclusive
#SBATCH --account=kan
#SBATCH --gres=gpu:a100:2
#SBATCH --hint=nomultithread
#SBATCH --contiguous
#SBATCH --no-requeue
#SBATCH --signal=USR2@90

set -euo pipefail
module load openmpi
# srun does not take this from the job since Slurm 22.05.
export SRUN_CPUS_PER_TASK=32
export NCCL_IB_HCA==mlx5_0:1
cd -- /home/u/hvdkan
exec /home/u/.venv/bin/python -m jobs.batch run-block /home/u/results/quick/plan.toml
