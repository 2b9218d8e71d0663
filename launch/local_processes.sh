#!/usr/bin/env bash
# A job of several processes on this machine, as several hosts would run it.
#
#   launch/local_processes.sh --processes 2 --devices 4 -- \
#     --config experiments/tiny.py --workdir runs/two
#
# What stands behind -- goes to --module, bert_jax.train by default. Each process has its own --devices CPU
# devices; on a machine with accelerators leave --devices out and set what each may see
# (CUDA_VISIBLE_DEVICES). Process 0 prints here, the others to LOGS/process_N.log.
#
#   --module M        the command: bert_jax.train or bert_jax.finetune
#   --port P          of the coordinator on 127.0.0.1 (default: a free one)
#   --logs LOGS       folder of the other processes' output (default: runs/logs)
#   --caches CACHES   a cache folder for each process, as machines of their own have
#                     (default: one for all)
#   --restarts N      start the job again, at most N times, when it was preempted or a
#                     process was killed; it goes on from its last checkpoint (default: 0)
#   --dry_run         print every command instead of running it
set -euo pipefail

MODULE=bert_jax.train PROCESSES=2 DEVICES="" PORT="" LOGS="runs/logs" CACHES="" RESTARTS=0 DRY_RUN=0
GRACE=20     # seconds that the others have when one process ends
PREEMPTED=75 # exit code of a run that is to go on; see bert_jax/errors.py
PYTHON="${PYTHON:-python}"

fail() {
  echo "error: $*" >&2
  exit 2
}

while (($#)); do
  case "$1" in
    --module) MODULE="$2"; shift 2 ;;
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
(($#)) || fail "nothing to run: -- --config experiments/tiny.py"
[[ "$PROCESSES" =~ ^[1-9][0-9]*$ ]] || fail "--processes $PROCESSES, expected at least 1"

if [[ -n "$DEVICES" ]]; then
  export JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES="$DEVICES"
  # Processes that share a few cores compile at different speeds; the first to be ready must
  # not give up on the others after half a minute.
  XLA_FLAGS="--xla_cpu_collective_timeout_seconds=600 ${XLA_FLAGS:-}"
  export XLA_FLAGS="--xla_cpu_collective_call_terminate_timeout_seconds=600 $XLA_FLAGS"
fi

job() {
  local port="$PORT" i pids=() code=0
  if [[ -z "$port" ]]; then
    port="$("$PYTHON" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')"
  fi
  ((DRY_RUN)) || mkdir -p "$LOGS"
  for ((i = PROCESSES - 1; i >= 0; i--)); do
    local command=("$PYTHON" -m "$MODULE"
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
  # SIGTERM to this script is one to each process, which saves and exits.
  trap 'kill -TERM "${pids[@]}" 2>/dev/null || true' TERM INT
  while ((${#pids[@]})); do
    local ended="" one=0 left=()
    wait -n -p ended "${pids[@]}" || one=$?
    [[ -n "${ended:-}" ]] || continue # a trapped signal, not an end
    for i in "${pids[@]}"; do [[ "$i" == "$ended" ]] || left+=("$i"); done
    pids=("${left[@]}")
    if ((one != 0 && (code == 0 || one == PREEMPTED))); then code=$one; fi
    if ((one != 0 && ${#pids[@]})); then
      # The others notice by themselves, and say so; one that hangs or is stopped does not.
      (sleep "$GRACE" && kill -KILL "${pids[@]}") &>/dev/null </dev/null &
      disown
    fi
  done
  trap - TERM INT
  return "$code"
}

for ((attempt = 0; ; attempt++)); do
  code=0
  job "$@" || code=$?
  ((attempt < RESTARTS && (code == PREEMPTED || code > 128))) || exit "$code"
  echo "ended with code $code; starting again"
done
