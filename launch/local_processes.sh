#!/usr/bin/env bash
# Runs one command as several processes on this machine, as on several hosts.
#
#   launch/local_processes.sh --processes 2 --devices 4 -- \
#     --config tiny --workdir runs/two
#
# The arguments after -- go to --command. Each process has --devices CPU devices. On a
# machine with accelerators leave --devices out and set CUDA_VISIBLE_DEVICES for each
# process. Process 0 prints here, the others print to LOGS/process_N.log.
#
#   --command NAME    the command: train (default) or finetune
#   --port P          port of process 0 on 127.0.0.1 (default: a free one)
#   --logs LOGS       folder for the output of the other processes (default: runs/logs)
#   --caches CACHES   a folder with one cache for each process, as separate machines have
#                     (default: all processes share one cache)
#   --restarts N      start again after every exit code except 0 and 2, at most N times
#                     without a newer checkpoint (default: 3)
#   --dry_run         print every command instead of running it
set -euo pipefail

COMMAND=train PROCESSES=2 DEVICES="" PORT="" LOGS="runs/logs" CACHES="" RESTARTS=3 DRY_RUN=0
GRACE=60     # seconds until the others are killed after one failed; JAX ends them after 30
PREEMPTED=75 # exit code of a run that can resume; see bert_jax/errors.py
STOPPED=0    # whether this script received a signal
PYTHON="${PYTHON:-python}"

fail() {
  echo "error: $*" >&2
  exit 2
}

while (($#)); do
  case "$1" in
    --command) COMMAND="$2"; shift 2 ;;
    --processes) PROCESSES="$2"; shift 2 ;;
    --devices) DEVICES="$2"; shift 2 ;;
    --port) PORT="$2"; shift 2 ;;
    --logs) LOGS="$2"; shift 2 ;;
    --caches) CACHES="$2"; shift 2 ;;
    --restarts) RESTARTS="$2"; shift 2 ;;
    --dry_run) DRY_RUN=1; shift ;;
    -h | --help) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//'; exit 0 ;;
    --) shift; break ;;
    *) fail "unknown option $1; see $0 --help" ;;
  esac
done
(($#)) || fail "nothing to run: -- --config tiny"
[[ "$PROCESSES" =~ ^[1-9][0-9]*$ ]] || fail "--processes $PROCESSES, expected at least 1"

if [[ -n "$DEVICES" ]]; then
  export JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES="$DEVICES"
  # Processes that share a few cores compile at different speeds. The first ready process
  # must wait longer than half a minute.
  XLA_FLAGS="--xla_cpu_collective_timeout_seconds=600 ${XLA_FLAGS:-}"
  export XLA_FLAGS="--xla_cpu_collective_call_terminate_timeout_seconds=600 $XLA_FLAGS"
fi

job() {
  local port="$PORT" i pids=() killers=() code=0
  if [[ -z "$port" ]]; then
    port="$("$PYTHON" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')"
  fi
  ((DRY_RUN)) || mkdir -p "$LOGS"
  for ((i = PROCESSES - 1; i >= 0; i--)); do
    local command=("$PYTHON" -m bert_jax "$COMMAND"
      --coordinator_address "127.0.0.1:$port" --num_processes "$PROCESSES"
      --process_id "$i" "$@")
    [[ -z "$CACHES" ]] || command=(env "XDG_CACHE_HOME=$CACHES/$i" "${command[@]}")
    if ((DRY_RUN)); then
      printf '%q ' "${command[@]}"
      echo
    elif ((i > 0)); then
      "${command[@]}" >"$LOGS/process_$i.log" 2>&1 &
      pids+=($!)
    else
      "${command[@]}" &
      pids+=($!)
    fi
  done
  # A SIGTERM to this script goes to each process. The processes save and exit.
  trap 'STOPPED=1; kill -TERM "${pids[@]}" 2>/dev/null || true' TERM INT
  while ((${#pids[@]})); do
    wait -n "${pids[@]}" || true # also returns after a trapped signal
    local one left=()
    for i in "${pids[@]}"; do
      if kill -0 "$i" 2>/dev/null; then
        left+=("$i")
        continue
      fi
      one=0
      wait "$i" || one=$?
      # Code 2 is an error of the user. Code 75 is the cause of the other codes.
      if ((one == 2 || code == 0 || (one == PREEMPTED && code != 2))); then code=$one; fi
    done
    if ((code != 0 && ${#left[@]} && !${#killers[@]})); then
      # The other processes end by themselves, except for a suspended process.
      (sleep "$GRACE" && kill -KILL "${pids[@]}") &>/dev/null </dev/null &
      killers+=($!)
    fi
    pids=("${left[@]}")
  done
  # All processes ended, and other programs may get their process ids.
  ((!${#killers[@]})) || kill "${killers[@]}" 2>/dev/null || true
  trap - TERM INT
  return "$code"
}

WORKDIR=runs
for ((i = 1; i <= $#; i++)); do
  case "${!i}" in
    --workdir=*) WORKDIR="${!i#*=}" ;;
    --workdir) ((++i <= $#)) && WORKDIR="${!i}" ;;
  esac
done

# The numbers of the checkpoints in the workdir, also in the runs of a sweep.
checkpoints() {
  case "$WORKDIR" in
    gs://*) gcloud storage ls "$WORKDIR/**/checkpoints/*/" 2>/dev/null || true ;;
    *) { find "$WORKDIR" -path '*/checkpoints/*' -prune -name '[0-9]*' ! -name '*.*' 2>/dev/null || true; } | sort ;;
  esac
}

for ((attempt = 0; ; attempt++)); do
  before="$(checkpoints)" code=0
  job "$@" || code=$?
  ((code != 0 && code != 2 && !STOPPED)) || exit "$code"
  [[ "$(checkpoints)" == "$before" ]] || attempt=-1
  ((RESTARTS > 0 && attempt < RESTARTS)) || exit "$code"
  echo "ended with code $code; starting again"
done
