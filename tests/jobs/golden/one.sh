#!/bin/bash
#SBATCH --job-name=one-node
#SBATCH --chdir=/r/slurm
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --time=1-01:01:01
#SBATCH --nodes=1
#SBATCH --ntasks=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --no-requeue
#SBATCH --signal=USR2@90

# srun does not take this from the job since Slurm 22.05.
export SRUN_CPUS_PER_TASK=1
cd -- /w
exec python -m analysis.report /r
