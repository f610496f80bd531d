#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Ladders of `met bench` on a GPU machine, in one call, without weights, Rust or a compiler, beside the peer's figures:
#   here:   METRALE_KERNELS=require METRALE_TARGET_HW=hopper cargo build --release -p metrale-server --bin met
#   there:  scripts/device/bench_ladder.sh target/release/met [MODEL ...]   (qwen3-0.6b qwen3-8b, or folders)
# CONCURRENCY, INPUT, OUTPUT, PROMPTS, REPEATS, PREFILL and ONLY choose the rungs; SECONDS_EACH ends a model that takes longer;
# QUANTIZATION=fp8 rounds the weights (reports are called MODEL-fp8 then).
# One report a model goes to $OUT, if set. Run from the root of the repository.
set -uo pipefail

met="${1:?usage: bench_ladder.sh MET [MODEL ...]}"
shift
models=("$@")
[ ${#models[@]} -gt 0 ] || models=(qwen3-0.6b qwen3-8b)
reports="${OUT:-$(mktemp -d)}"
device="${DEVICE:-cuda}"
export METRALE_HOME="$reports/home" METRALE_OFFLINE=1
mkdir -p "$reports"
failed=0

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.draw,memory.used --format=csv,noheader 2>/dev/null
only=()
for name in ${ONLY:-}; do only+=(--only "$name"); done
[ -z "${QUANTIZATION:-}" ] || only+=(--quantization "$QUANTIZATION")
for model in "${models[@]}"; do
    report="$reports/$(basename "$model")${QUANTIZATION:+-$QUANTIZATION}"
    timeout "${SECONDS_EACH:-600}" "$met" bench "$model" --load-format dummy --device "$device" --format json \
        --concurrency "${CONCURRENCY:-1,2,4,8,16,32,64,128,256}" --input "${INPUT:-128}" --output "${OUTPUT:-512}" \
        --prompts "${PROMPTS:-128,2048,8192}" --repeats "${REPEATS:-2}" --max-prefill-tokens "${PREFILL:-8192}" \
        ${only[@]+"${only[@]}"} >"$report.json" 2>"$report.log"
    code=$?
    if [ "$code" = 0 ]; then
        python3 bench/h200/compare.py "$report.json" || failed=1
    else
        failed=1
        echo "$model: FAILED (exit $code)"
        tail -5 "$report.log"
    fi
done
if [ -n "${START:-}" ]; then
    for model in "${models[@]}"; do
        "$met" bench start "$model" --load-format dummy --device "$device" --repeats 3 2>"$reports/$model.start.log" ||
            { failed=1; tail -3 "$reports/$model.start.log"; }
    done
fi
rm -rf "$METRALE_HOME"
exit "$failed"
