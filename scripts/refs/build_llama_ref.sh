#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# build_llama_ref.sh DIR: libllama v0.5.0 from npm, its headers from the llama-cpp-python sdist, and llama_ref of this folder.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1/dl" "$1/lib" "$1/include"
cd "$1/dl"
[ -d package ] || { npm pack @node-llama-cpp/linux-x64@3.22.1 >/dev/null 2>&1; tar xzf node-llama-cpp-linux-x64-3.22.1.tgz; }
cp package/bins/linux-x64/*.so ../lib/
[ -f llama_cpp_python-0.3.36.tar.gz ] || python3 -m pip download -q --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36
tar xzf llama_cpp_python-0.3.36.tar.gz --strip-components=1 --wildcards '*/vendor/llama.cpp/include/*.h' '*/vendor/llama.cpp/ggml/include/*.h'
cp vendor/llama.cpp/include/*.h vendor/llama.cpp/ggml/include/*.h ../include/
cd ..
gcc -std=gnu11 -O1 -Wall -Wextra -Iinclude -o llama_ref "$here/llama_ref.c" -Llib -l:libllama.v0.5.0.so -l:libggml.v0.5.0.so -l:libggml-base.so -Wl,-rpath-link,lib
echo "built $1/llama_ref"
