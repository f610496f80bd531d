#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Puts the CUDA 13.0 compiler (nvcc, ptxas, headers) from Python wheels into a folder and prints nvcc's path. pip knows its
# index and mirrors; nothing is named here. Does nothing if the folder is complete. About 104 MB once.
# Needs python3 with pip, and g++. Usage: cuda-wheels.sh DIR
set -euo pipefail

dir="${1:?usage: cuda-wheels.sh DIR}"
release=13.0.88
root="$dir/nvidia/cu13"

if [ ! -f "$dir/.complete-$release" ]; then
    for tool in python3 g++; do
        command -v "$tool" >/dev/null || { echo "$tool is needed to install the CUDA compiler" >&2; exit 1; }
    done
    mkdir -p "$(dirname "$dir")"
    part="$(mktemp -d "$dir.XXXXXX")"
    trap 'rm -rf "$part"' EXIT
    # --no-deps: the wheels ask for the newest of each other, which would mix releases.
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-compile \
        --only-binary=:all: --target "$part" \
        "nvidia-cuda-nvcc==$release" "nvidia-nvvm==$release" "nvidia-cuda-crt==$release" \
        nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 >&2
    ln -s lib "$part/nvidia/cu13/lib64" # where nvcc.profile looks
    touch "$part/.complete-$release"
    rm -rf "$dir"
    mv "$part" "$dir"
    trap - EXIT
fi
echo "$root/bin/nvcc"
