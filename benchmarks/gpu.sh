#!/usr/bin/env bash
# Runs all GPU benchmarks within ten minutes, the most important first, and writes a JSON file:
#   doctor       what `bert_jax doctor` prints about this machine
#   windows      attention to all tokens and with ModernBERT's windows, for each kernel
#   pretraining  steps and peak memory of BASE at lengths 512 and 128 in bfloat16, with each
#                kernel of attention, and with PyTorch (SDPA, compiled) on the same device
#   embedding    with sentence-transformers
#   finetune     an epoch, with transformers' Trainer
#
# usage: benchmarks/gpu.sh OUTPUT.json [PEER_PYTHON|none]
#
# python3 (or $PYTHON) has jax. PEER_PYTHON (default: the same) has torch, transformers,
# accelerate and sentence-transformers. With none, only bert_jax runs. SECONDS_IN_ALL sets the
# time, CASES="large:32x512,large:128x128" and DROPOUTS=0.1 measure other steps, and KERNELS
# chooses kernels (cudnn has no dropout of attention). OUTPUT.json lists benchmarks without
# results as missing, and benchmarks that failed or were stopped as incomplete.
set -uo pipefail
cd "$(dirname "$0")/.."
output=$(realpath -m "${1:?usage: benchmarks/gpu.sh OUTPUT.json [PEER_PYTHON|none]}")
python=${PYTHON:-python3}
peer=(--peer_python "${2:-$python}")
[[ ${2:-} == none ]] && peer=()
seconds=${SECONDS_IN_ALL:-585}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
touch "$work/failed"
export PYTHONPATH=$PWD HF_HUB_OFFLINE=1
# Otherwise the peak memory would be the reserved memory.
export XLA_PYTHON_CLIENT_PREALLOCATE=false

# limited NAME ARGUMENTS...: runs Python with the arguments in the remaining time.
limited() {
  local name=$1 left=$((seconds - SECONDS))
  shift
  if ((left < 10)); then
    echo "no time left for $name" >&2
    return 1
  fi
  echo "== $name, at $SECONDS s"
  timeout "$left" "$python" "$@" && return
  echo "$name ended with code $?" >&2
  echo "$name" >> "$work/failed"
  return 1
}

# benchmark NAME FLAGS...: runs benchmarks/NAME.py, which writes $work/NAME.json.
benchmark() {
  limited "$1" "benchmarks/$1.py" --output "$work/$1.json" "${@:2}"
}

kernels=${KERNELS:-plain,xla,cudnn}
limited doctor -m bert_jax doctor --workdir "$work/runs" --step_timeout 60 \
  | tee "$work/doctor"
benchmark windows --dtype bfloat16 --kernels "$kernels" --repeats "${STEPS:-20}" \
  --rows "${WINDOW_ROWS:-64}" --length "${WINDOW_LENGTH:-1024}"
benchmark pretraining "${peer[@]}" --dtypes bfloat16 --runs 1 --steps "${STEPS:-10}" \
  --cases "${CASES:-base:64x512,base:256x128}" --dropouts "${DROPOUTS:-0.1/0.0}" \
  --kernels "$kernels" --peer_modes "${PEER_MODES:-compile}" --peer_dtypes autocast
if limited synthetic benchmarks/synthetic.py --output "$work/synthetic" \
  --size "${SIZE:-base}" --rows "${ROWS:-8000}"; then
  benchmark embedding "${peer[@]}" --model "$work/synthetic/model" --runs 1 --batch 128 \
    --count "${COUNT:-4000}"
  benchmark finetune "${peer[@]}" --model "$work/synthetic/model" \
    --data "$work/synthetic" --workdir "$work/finetune" --tasks sst2 --seeds 0 \
    --dtype bfloat16
fi

"$python" - "$work" "$output" <<'PYTHON'
import json
import sys
from pathlib import Path

folder, output = map(Path, sys.argv[1:])
content = {"doctor": (folder / "doctor").read_text().splitlines()}
missing = []
for name in ("windows", "pretraining", "embedding", "finetune"):
    path = folder / f"{name}.json"
    if path.exists():
        content[name] = json.loads(path.read_text())
    else:
        missing.append(name)
failed = (folder / "failed").read_text().split()
content |= {"missing": missing, "incomplete": [n for n in failed if n not in missing]}
output.write_text(json.dumps(content, indent=2) + "\n")
print(f"wrote {output}" + (f"; missing: {', '.join(missing)}" if missing else ""))
PYTHON
