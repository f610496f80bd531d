#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# The first trial of a GPU machine, in one call: no Rust and no compiler needed there.
#   here:   METRALE_KERNELS=require METRALE_TARGET_HW=hopper cargo build --release -p metrale-gpu-runtime --example seam_trial
#   there:  scripts/device/seam_trial.sh target/release/examples/seam_trial
# Checks first, then the memory and race checkers on a small set, then times; a short summary last. Logs go to $OUT, if set.
set -uo pipefail

binary="${1:?usage: seam_trial.sh BINARY}"
logs="${OUT:-$(mktemp -d)}"
failed=0

step() { # NAME COMMAND...: runs it with its log, remembers a failure
    local name=$1
    shift
    if "$@" >"$logs/$name.log" 2>&1; then result=passed; else result="FAILED ($?)"; failed=1; fi
    summary+="$name: $result"$'\n'
}

summary=""
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,memory.used --format=csv || true
step checks "$binary" --break
cat "$logs/checks.log"
if command -v compute-sanitizer >/dev/null; then
    step memcheck timeout 150 compute-sanitizer --tool memcheck --error-exitcode 9 "$binary" --quick
    tail -15 "$logs/memcheck.log"
    step racecheck timeout 150 compute-sanitizer --tool racecheck --error-exitcode 9 "$binary" --quick
    tail -15 "$logs/racecheck.log"
fi
echo
grep -A40 '^== times' "$logs/checks.log" || true
printf '%s' "$summary"
exit "$failed"
