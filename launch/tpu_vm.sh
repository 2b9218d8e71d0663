#!/usr/bin/env bash
# The old way: runs a config on Cloud TPU v2 to v6e, from creating the machines to deleting them.
#
# The script uses Cloud TPU's API. Google only fixes bugs in this API, and the API has no TPU7x.
# New users should use GKE (launch/gke.yaml) or, without a cluster, SkyPilot (launch/sky.yaml).
#
#   launch/tpu_vm.sh --name bert --zone us-central2-b --type v4-32 \
#     --workdir gs://BUCKET/bert -- --config base
#
# The arguments after -- go to bert_jax train on every worker. The steps are: create (a queued
# resource, or use the existing one of that name), install (copy this checkout and create its
# environment), run (start all workers and print their output), delete. --step runs one step.
# After every exit code except 0 and 2 the run starts again and resumes from its last
# checkpoint, at most three times without a newer checkpoint. A preempted slice is created
# again first, so --workdir must be a gs:// path, which outlives the machines.
#
#   --spot            cheaper machines that can be preempted
#   --num_slices N    slices joined by the data-center network (see multislice.sh)
#   --runtime V       software version of the machines (default: depends on --type)
#   --project P       Google Cloud project (default: gcloud's)
#   --keep            leave the machines when the run ends
#   --dry_run         print every command instead of running it
set -euo pipefail

NAME="" ZONE="" TYPE="" WORKDIR="" RUNTIME="" PROJECT="" STEP="all"
SLICES=1 SPOT=0 KEEP=0 DRY_RUN=0
PREEMPTED=75 # exit code of a run that can resume; see bert_jax/errors.py
RESTARTS=3   # without a newer checkpoint
REPO="$(cd "$(dirname "$0")/.." && pwd)"

fail() {
  echo "error: $*" >&2
  exit 2
}

while (($#)); do
  case "$1" in
    --name) NAME="$2"; shift 2 ;;
    --zone) ZONE="$2"; shift 2 ;;
    --type) TYPE="$2"; shift 2 ;;
    --workdir) WORKDIR="$2"; shift 2 ;;
    --runtime) RUNTIME="$2"; shift 2 ;;
    --project) PROJECT="$2"; shift 2 ;;
    --step) STEP="$2"; shift 2 ;;
    --num_slices) SLICES="$2"; shift 2 ;;
    --spot) SPOT=1; shift ;;
    --keep) KEEP=1; shift ;;
    --dry_run) DRY_RUN=1; shift ;;
    -h | --help) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//'; exit 0 ;;
    --) shift; break ;;
    *) fail "unknown option $1; see $0 --help" ;;
  esac
done
TRAIN=("$@")

[[ -n "$NAME" ]] || fail "--name is missing: what to call the machines"
[[ -n "$ZONE" ]] || fail "--zone is missing: the TPU zone, such as us-central2-b"
[[ -n "$TYPE" ]] || fail "--type is missing: the TPU type, such as v4-32 (16 chips) or v5litepod-16"
[[ "$STEP" =~ ^(all|create|install|run|delete)$ ]] ||
  fail "--step $STEP, expected all, create, install, run or delete"
if [[ "$STEP" == all || "$STEP" == run ]]; then
  ((${#TRAIN[@]})) || fail "nothing to run: -- --config base"
  [[ "$WORKDIR" == gs://* ]] ||
    fail "--workdir ${WORKDIR:-(none)}, expected gs://...: the machines' own disks go with them"
fi
if [[ -z "$RUNTIME" ]]; then
  case "$TYPE" in
    v2-* | v3-* | v4-*) RUNTIME=tpu-ubuntu2204-base ;;
    v5litepod-*) RUNTIME=v2-alpha-tpuv5-lite ;;
    v5p-*) RUNTIME=v2-alpha-tpuv5 ;;
    v6e-*) RUNTIME=v2-alpha-tpuv6e ;;
    tpu7x* | v7x*) fail "--type $TYPE: Cloud TPU's API has no TPU7x; use launch/gke.yaml" ;;
    *) fail "no runtime known for --type $TYPE; give --runtime" ;;
  esac
fi

WHERE=(--zone "$ZONE")
[[ -z "$PROJECT" ]] || WHERE+=(--project "$PROJECT")

# Prints a command in shell syntax, and runs it without --dry_run.
do_it() {
  if ((DRY_RUN)); then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}

nodes() {
  if ((SLICES == 1)); then
    echo "$NAME"
  else
    for ((i = 0; i < SLICES; i++)); do echo "$NAME-$i"; done
  fi
}

# state: state of the queued resource, or MISSING.
state() {
  if ((DRY_RUN)); then
    echo ACTIVE
    return
  fi
  gcloud compute tpus queued-resources describe "$NAME" "${WHERE[@]}" \
    --format='value(state.state)' 2>/dev/null || echo MISSING
}

create() {
  local now
  now="$(state)"
  if ((!DRY_RUN)) && [[ "$now" == SUSPENDED || "$now" == FAILED ]]; then
    delete
    now=MISSING
  fi
  if ((DRY_RUN)) || [[ "$now" == MISSING ]]; then
    local what=(--node-id "$NAME")
    ((SLICES == 1)) || what=(--node-count "$SLICES" --node-prefix "$NAME")
    ((!SPOT)) || what+=(--spot)
    do_it gcloud compute tpus queued-resources create "$NAME" "${WHERE[@]}" \
      --accelerator-type "$TYPE" --runtime-version "$RUNTIME" "${what[@]}"
  fi
  until now="$(state)" && [[ "$now" == ACTIVE ]]; do
    [[ "$now" != FAILED && "$now" != SUSPENDED ]] ||
      fail "$NAME is $now; see gcloud compute tpus queued-resources describe $NAME"
    echo "$NAME is $now"
    sleep 30
  done
}

# Runs a command on all workers of all slices at once. Fails if it fails on a worker.
everywhere() {
  local node pids=() code=0
  for node in $(nodes); do
    if ((DRY_RUN)); then
      do_it gcloud compute tpus tpu-vm ssh "$node" "${WHERE[@]}" --worker=all --command "$1"
    else
      gcloud compute tpus tpu-vm ssh "$node" "${WHERE[@]}" --worker=all --command "$1" &
      pids+=($!)
    fi
  done
  for pid in "${pids[@]}"; do
    local one=0
    wait "$pid" || one=$?
    # Code 2 is an error of the user. Code 75 is the cause of the other codes.
    if ((one == 2 || code == 0 || (one == PREEMPTED && code != 2))); then code=$one; fi
  done
  return "$code"
}

install() {
  local node archive
  ((DRY_RUN)) || [[ -z "$(git -C "$REPO" status --porcelain)" ]] ||
    fail "the checkout has changes that are not committed, but only commits are copied; commit them"
  archive="$(mktemp -d)/bert_jax.tar.gz"
  do_it git -C "$REPO" archive --format=tar.gz --prefix=bert_jax/ -o "$archive" HEAD
  for node in $(nodes); do
    do_it gcloud compute tpus tpu-vm scp "$archive" "$node:bert_jax.tar.gz" \
      "${WHERE[@]}" --worker=all
  done
  everywhere 'set -e
tar xzf bert_jax.tar.gz
sudo apt-get -qq update && sudo apt-get -qq install -y python3.11-venv
cd bert_jax
test -d .venv || python3.11 -m venv .venv
.venv/bin/pip install --quiet -c constraints.txt -e ".[tpu,gcs]"'
}

checkpoints() {
  ((DRY_RUN)) || gcloud storage ls "$WORKDIR/checkpoints/" 2>/dev/null || true
}

run() {
  local command code before attempt
  command="cd bert_jax && .venv/bin/bert_jax train --distributed --workdir"
  command+="$(printf ' %q' "$WORKDIR" "${TRAIN[@]}")"
  for ((attempt = 0; ; attempt++)); do
    before="$(checkpoints)" code=0
    everywhere "$command" || code=$?
    ((code != 0)) || return 0
    ((code != 2)) || fail "the run ended with code 2; correct the setting that its line names"
    [[ "$(checkpoints)" == "$before" ]] || attempt=-1 # this run counts as progress
    ((attempt < RESTARTS)) ||
      fail "the run ended with code $code and without a new checkpoint $((RESTARTS + 1)) times; the machines are still there: --step run resumes, --step delete removes them"
    echo "ended with code $code; starting again"
    if [[ "$(state)" != ACTIVE ]]; then
      create
      install
    fi
  done
}

delete() {
  do_it gcloud compute tpus queued-resources delete "$NAME" "${WHERE[@]}" --force --quiet
}

case "$STEP" in
  all)
    create
    install
    run
    if ((!KEEP)); then delete; fi
    ;;
  *) "$STEP" ;;
esac
