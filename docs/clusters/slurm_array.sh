#!/usr/bin/env bash
# A sweep on SLURM. Each task of the array trains its own part of the runs: jafl reads from SLURM's variables which
# part that is, as if --part=1/8 to --part=8/8 had been passed.
#
#   sbatch docs/clusters/slurm_array.sh sweep "delay.mean=5,30" --algorithm=fedbuff,fedavg --seed=0,1,2 \
#       --output_dir=/shared/sweep
#
# Submit it in the repository, or anywhere with JAFL=jafl where jafl is installed. All arguments are those of run.py.
# Change the lines below for your cluster, or pass options to sbatch. One GPU for each task: sbatch --gpus=1. The ids of
# the array must be a range, not a list: --array=0-31, or --array=0-31%8 for at most 8 tasks at once.
#SBATCH --job-name=jafl
#SBATCH --array=0-7
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --time=04:00:00
#SBATCH --output=jafl-%A_%a.out
# A task whose node fails, or that is preempted, is queued again and appends to its output.
#SBATCH --requeue
#SBATCH --open-mode=append
# Three minutes before the time is over, this script gets SIGUSR1; then the task is queued again.
#SBATCH --signal=B:USR1@180
set -u

if [[ " $* " != *" --output_dir="* ]]; then
    echo "Error: pass --output_dir=DIR, a directory that all nodes share." >&2
    exit 2
fi
read -r -a jafl <<< "${JAFL:-python run.py}"
# Compiled programs stay on the node: nodes of other kinds need others.
export JAX_COMPILATION_CACHE_DIR=${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/jafl-compiled-$(id -un)

# SIGTERM makes jafl stop at its next chunk of server steps, and write a checkpoint.
worker=''
queue_again=no
trap 'queue_again=yes; [[ -z $worker ]] || kill -TERM "$worker"' USR1
trap '[[ -z $worker ]] || kill -TERM "$worker"' TERM INT

"${jafl[@]}" "$@" &
worker=$!
wait "$worker"
while kill -0 "$worker" 2> /dev/null; do # a signal has ended the wait, and the worker still writes its checkpoint
    wait "$worker"
done
wait "$worker"
status=$?

if [[ $queue_again == yes && $status -ne 0 ]]; then
    echo "The time is over: task ${SLURM_ARRAY_TASK_ID:-} is queued again."
    scontrol requeue "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"
fi
exit "$status"
