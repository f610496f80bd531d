#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds the trial: build.sh OUT [FLAG...]. Needs nvcc 13.0 (METRALE_NVCC, or on PATH; see scripts/kernels/cuda-wheels.sh).
set -euo pipefail
root="$(cd "$(dirname "$0")/../../.." && pwd)"
out="${1:?usage: build.sh OUT [FLAG...]}"
shift
"${METRALE_NVCC:-nvcc}" -std=c++17 -O3 -fmad=false -gencode=arch=compute_90a,code=sm_90a -cudart static \
    -I"$root/kernels/hopper/common" -I"$root/kernels/gb10/common" "$@" -o "$out" "$root/bench/h200/fp8/trial.cu"
