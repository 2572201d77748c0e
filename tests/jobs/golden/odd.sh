#!/bin/bash
#SBATCH --job-name="KAN 2x2 #1 | a$b `id`"
#SBATCH --chdir="/home/josé/it's a \"b\" $c"
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --time=00:01:00
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --comment="# 'no' \"comment\" \\"
#SBATCH --no-requeue
#SBATCH --signal=USR2@90

set -euo pipefail
readonly MINE="prolog"
# srun does not take this from the job since Slurm 22.05.
export SRUN_CPUS_PER_TASK=1
export ODD='$HOME `id` '"'"'é'"'"''
cd -- '/home/josé/it'"'"'s mine'
exec python -c 'print('"'"'$HOME'"'"')' '$(touch pwned)' '`id`' 'a\b' ''
