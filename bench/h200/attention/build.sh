#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds the trial: kernels with the flags of the tree, the harness beside them. Usage: build.sh NVCC OUT_DIR
# KERNEL_FLAGS=-DEVERY_LANE_ARRIVES builds attention in the form that racecheck can follow (kernels/hopper/common/attention.cuh).
set -euo pipefail
nvcc="${1:?usage: build.sh NVCC OUT_DIR}" out="${2:?usage: build.sh NVCC OUT_DIR}"
here="$(cd "$(dirname "$0")" && pwd)" kernels="$(cd "$(dirname "$0")/../../../kernels" && pwd)"
arch="-gencode=arch=compute_90a,code=sm_90a"
mkdir -p "$out"
objects=()
for name in norm rope_kv rows attention_split attention_tile sample_split sample; do
    source="$kernels/hopper/common/$name.cu" object="$out/$name.o"
    [ -f "$source" ] || source="$kernels/gb10/common/$name.cu"
    if [ ! "$object" -nt "$source" ] || [ -n "$(find "$kernels" -name '*.cuh' -newer "$object")" ]; then
        "$nvcc" $arch -std=c++17 -O3 -fmad=false --Werror=all-warnings -Xptxas -v ${KERNEL_FLAGS:-} -I "$kernels/hopper/common" \
            -I "$kernels/gb10/common" -c -o "$object" "$source" 2>"$out/$name.log" || { cat "$out/$name.log"; exit 1; }
        grep -E "spill|Used|C75" "$out/$name.log" | grep -v " 0 bytes spill stores, 0 bytes spill loads" || true
    fi
    objects+=("$object")
done
# Files of the tree name functions alike; what the host has of them are empty stubs.
"$nvcc" $arch -std=c++17 -O2 -Xlinker --allow-multiple-definition -Xcompiler -ffp-contract=off ${TRIAL_FLAGS:-} -I "$here" -o "$out/trial" "$here/trial.cu" "${objects[@]}"
