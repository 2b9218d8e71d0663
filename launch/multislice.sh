#!/usr/bin/env bash
# The old way: tpu_vm.sh on several slices. Batches are split over the slices, and only
# gradients cross the data-center network. In launch/gke.yaml set the number of slices instead.
#
#   launch/multislice.sh --num_slices 2 --name bert --zone us-west4-a --type v5litepod-16 \
#     --workdir gs://BUCKET/bert -- --config base
#
# All options of tpu_vm.sh are accepted.
set -euo pipefail

SLICES=2
OPTIONS=()
while (($#)); do
  case "$1" in
    --num_slices) SLICES="$2"; shift 2 ;;
    --) break ;;
    *) OPTIONS+=("$1"); shift ;;
  esac
done
# The mesh axis replica connects the slices.
if (($#)); then set -- "$@" "--mesh.replica=$SLICES"; fi
exec "$(dirname "$0")/tpu_vm.sh" --num_slices "$SLICES" "${OPTIONS[@]}" "$@"
