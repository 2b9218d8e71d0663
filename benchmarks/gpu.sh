#!/usr/bin/env bash
# Runs all GPU benchmarks within ten minutes and writes one JSON file: embedding, an epoch
# of fine-tuning, and pretraining steps (BASE and LARGE, lengths 128 and 512, with and
# without dropout in attention). PyTorch runs beside ours on the same device.
#
# usage: benchmarks/gpu.sh OUTPUT.json [PEER_PYTHON|none]
#
# python3 (or $PYTHON) has jax. PEER_PYTHON (default: the same) has torch, transformers,
# accelerate and sentence-transformers. With none, only ours runs. OUTPUT.json names the
# benchmarks for which the time was too short as missing.
set -uo pipefail
cd "$(dirname "$0")/.."
output=$(realpath -m "${1:?usage: benchmarks/gpu.sh OUTPUT.json [PEER_PYTHON|none]}")
python=${PYTHON:-python3}
peer=(--peer_python "${2:-$python}")
[[ ${2:-} == none ]] && peer=()
seconds=${SECONDS_IN_ALL:-570}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONPATH=$PWD HF_HUB_OFFLINE=1
# Without it the peak memory would be the reserved memory.
export XLA_PYTHON_CLIENT_PREALLOCATE=false

# benchmark NAME FLAGS...: runs benchmarks/NAME.py, which writes $work/NAME.json.
benchmark() {
  local name=$1 left=$((seconds - SECONDS))
  shift
  if ((left < 10)); then
    echo "no time left for $name" >&2
    return
  fi
  echo "== $name, at $SECONDS s"
  timeout "$left" "$python" "benchmarks/$name.py" "${peer[@]}" \
    --output "$work/$name.json" "$@" || echo "$name ended with code $?" >&2
}

"$python" benchmarks/synthetic.py --output "$work/synthetic" --size "${SIZE:-base}" \
  --rows "${ROWS:-8000}" || exit 1
benchmark embedding --model "$work/synthetic/model" --runs 1 --batch 128 \
  --count "${COUNT:-4000}"
benchmark finetune --model "$work/synthetic/model" --data "$work/synthetic" \
  --workdir "$work/finetune" --tasks sst2 --seeds 0 --dtype bfloat16
benchmark pretraining --dtypes bfloat16 --runs 1 --steps "${STEPS:-10}" \
  --cases "${CASES:-base:64x512,large:32x512,base:256x128,large:128x128}" \
  --dropouts "${DROPOUTS:-0.1/0.0,0.1}" \
  --peer_modes "${PEER_MODES:-compile}" --peer_dtypes autocast

"$python" - "$work" "$output" <<'PYTHON'
import json
import sys
from pathlib import Path

folder, output = map(Path, sys.argv[1:])
parts = {n: folder / f"{n}.json" for n in ("pretraining", "finetune", "embedding")}
missing = [name for name, path in parts.items() if not path.exists()]
content = {n: json.loads(p.read_text()) for n, p in parts.items() if p.exists()}
output.write_text(json.dumps(content | {"missing": missing}, indent=2) + "\n")
print(f"wrote {output}" + (f"; missing: {', '.join(missing)}" if missing else ""))
PYTHON
