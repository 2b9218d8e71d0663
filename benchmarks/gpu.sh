#!/usr/bin/env bash
# Everything that a GPU has to show, within ten minutes, into one JSON: pretraining steps
# (BASE and LARGE, 128 and 512, dropout as in the paper and none in attention), an epoch of
# fine-tuning, embedding; each beside PyTorch on the same device.
#
# usage: benchmarks/gpu.sh OUTPUT.json [PEER_PYTHON|none]
#
# python3 (PYTHON) has jax; PEER_PYTHON, by default the same, has torch, transformers,
# accelerate and sentence-transformers; with none, ours runs alone. What time did not
# suffice for is missing in the JSON, and said.
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
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$work/xla}
# Peak memory is then what was used, not what was reserved.
export XLA_PYTHON_CLIENT_PREALLOCATE=false

# benchmark NAME COMMAND...: COMMAND writes $work/NAME.json as it goes on.
benchmark() {
  local name=$1 left=$((seconds - SECONDS))
  shift
  if ((left < 10)); then
    echo "no time left for $name" >&2
    return
  fi
  echo "== $name, at $SECONDS s"
  timeout "$left" "$@" || echo "$name ended with code $?" >&2
}

size=${SIZE:-base}
"$python" benchmarks/synthetic.py --output "$work/synthetic" --size "$size" \
  --rows "${ROWS:-8000}" || exit 1
benchmark embedding "$python" benchmarks/embedding.py --model "$work/synthetic/model" \
  "${peer[@]}" --runs 1 --batch 128 --count "${COUNT:-4000}" \
  --output "$work/embedding.json"
benchmark finetuning "$python" benchmarks/finetune.py --model "$work/synthetic/model" \
  --data "$work/synthetic" --output "$work/finetuning" "${peer[@]}" \
  --tasks sst2 --seeds 0 --dtype bfloat16 --report "$work/finetuning.json"
benchmark pretraining "$python" benchmarks/pretraining.py "${peer[@]}" \
  --cases "${CASES:-base:64x512,large:32x512,base:256x128,large:128x128}" \
  --dropouts "${DROPOUTS:-0.1/0.0,0.1}" --dtypes bfloat16 --attention auto \
  --peer_modes "${PEER_MODES:-compile}" --peer_dtypes autocast \
  --runs 1 --steps "${STEPS:-10}" --repeats 3 --output "$work/pretraining.json"

"$python" - "$work" "$output" <<'PYTHON'
import json
import sys
from pathlib import Path

folder, output = map(Path, sys.argv[1:])
names = ("pretraining", "finetuning", "embedding")
parts = {name: folder / f"{name}.json" for name in names}
missing = [name for name, path in parts.items() if not path.exists()]
content = {n: json.loads(p.read_text()) for n, p in parts.items() if p.exists()}
output.write_text(json.dumps(content | {"missing": missing}, indent=2) + "\n")
print(f"wrote {output}" + (f"; missing: {', '.join(missing)}" if missing else ""))
PYTHON
