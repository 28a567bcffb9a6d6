#!/usr/bin/env bash
# A sweep on a plain list of hosts, by ssh. Each line of the list gets its own part of the runs (--part=1/3, 2/3, 3/3 of
# three lines); when all have ended, this script writes the report. A host that fails leaves its part: the same command
# goes on with it, also with another list of hosts.
#
#   docs/clusters/hosts.sh hosts.txt sweep "delay.mean=5,30" --algorithm=fedbuff,fedavg --seed=0,1,2 \
#       --output_dir=/shared/sweep
#
# hosts.txt has a host in each line, and behind it the GPU to use, if any:
#
#   node1 0
#   node1 1
#   node2
#
# Call it in the repository, which all hosts see under the same path, or with JAFL=jafl where jafl is installed. ssh must
# need no password. The output of a host is in jafl-NUMBER-HOST.log. Ctrl-C stops all hosts, each with a checkpoint.
set -u

if [[ $# -lt 1 || ! -r $1 ]]; then
    echo "Error: the first argument must be a file with a host in each line." >&2
    exit 2
fi
hosts=$1
shift
output_dir=''
for argument in "$@"; do
    [[ $argument == --output_dir=* ]] && output_dir=${argument#--output_dir=}
done
if [[ -z $output_dir ]]; then
    echo "Error: pass --output_dir=DIR, a directory that all hosts share." >&2
    exit 2
fi
read -r -a jafl <<< "${JAFL:-python run.py}"

# While this file exists, each ssh has an open input. When that ends, its worker is asked to stop.
alive=$(mktemp)
stopped=no
trap 'rm -f "$alive"' EXIT
trap 'stopped=yes; rm -f "$alive"; echo "Stopping all workers ..." >&2' INT TERM
hold() { while [[ -e $alive ]]; do sleep 1; done; }

# What a host runs: the worker, and beside it a wait for the end of the input.
on_host() {
    local gpu=$1 command
    printf -v command '%q ' "${jafl[@]}" "${@:2}"
    echo "cd $(printf %q "$PWD") || exit 2"
    [[ -z $gpu ]] || echo "export CUDA_VISIBLE_DEVICES=$(printf %q "$gpu")"
    [[ -z ${JAX_COMPILATION_CACHE_DIR:-} ]] ||
        echo "export JAX_COMPILATION_CACHE_DIR=$(printf %q "$JAX_COMPILATION_CACHE_DIR")"
    # shellcheck disable=SC2016  # the host is to expand these
    printf '%s\n' 'exec 3<&0' "$command"'< /dev/null &' 'worker=$!' \
        '{ cat <&3; kill -TERM $worker; } > /dev/null 2>&1 &' 'watcher=$!' \
        'wait $worker; status=$?' 'kill $watcher 2> /dev/null' 'exit $status'
}

parts=$(grep -cE '^[[:space:]]*[^#[:space:]]' "$hosts")
workers=()
names=()
while read -r host gpu _ <&4 || [[ -n $host ]]; do # the last line may have no end
    [[ -z $host || $host == \#* ]] && continue
    part=$((${#workers[@]} + 1))/$parts
    log=jafl-${#workers[@]}-$host.log
    script=$(on_host "$gpu" "$@" "--part=$part")
    ssh -o BatchMode=yes "$host" "bash -c $(printf %q "$script")" < <(trap '' INT; hold) > "$log" 2>&1 &
    workers+=($!)
    names+=("$host${gpu:+, GPU $gpu}: $log, part $part")
    echo "Started on $host${gpu:+, GPU $gpu}: $log, part $part"
done 4< "$hosts"
if [[ ${#workers[@]} -eq 0 ]]; then
    echo "Error: $hosts names no host." >&2
    exit 2
fi

worst=0
for number in "${!workers[@]}"; do
    wait "${workers[$number]}"
    while kill -0 "${workers[$number]}" 2> /dev/null; do # Ctrl-C has ended the wait
        wait "${workers[$number]}"
    done
    wait "${workers[$number]}"
    status=$?
    [[ $status -eq 0 ]] || echo "Ended with status $status: ${names[$number]}" >&2
    [[ $status -gt $worst ]] && worst=$status
done
[[ $stopped == yes ]] && exit 130
"${jafl[@]}" report "$output_dir" || exit
exit "$worst"
