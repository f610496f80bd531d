#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# All checks of a GPU machine in one call of about a minute: no Rust and no compiler needed there.
#   here:   export METRALE_KERNELS=require METRALE_TARGET_HW=hopper
#           cargo build --release -p metrale-server --bin met
#           cargo test --release -p metrale-server --no-run --test row_hash --test masks --test verify_fixtures --test spill --test device_faults
#           (the tests without their hash into one folder, TESTS)
#   there:  scripts/device/checks.sh MET TESTS [DEVICE]     from the root of the repository
# Bits first (all at once), then a start that is refused, the idle share, and last what loses the device: a trap, a kernel that
# never ends, and the server that starts again. A table at the end; logs go to $OUT, if set.
set -uo pipefail

met="$(realpath "${1:?usage: checks.sh MET TESTS [DEVICE]}")"
tests="$(realpath "${2:?usage: checks.sh MET TESTS [DEVICE]}")"
device="${3:-cuda}"
logs="${OUT:-$(mktemp -d)}"
export METRALE_HOME="$logs/home" METRALE_OFFLINE=1
mkdir -p "$logs"
failed=0
table=""
began=$(date +%s%N)

row() { # WHAT RESULT
    table+="$(printf '%-58s %s' "$1" "$2")"$'\n'
    case "$2" in FAILED*) failed=1 ;; esac
}
seconds() { awk -v a="$began" -v b="$(date +%s%N)" 'BEGIN{printf "%.1f s", (b - a) / 1e9}'; }
used() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null | head -1; }
# All arguments are words of the message; the exit code is not 0.
refused() { # WHAT LOG CODE WORDS...
    local what=$1 log=$2 code=$3 word
    shift 3
    for word in "$@"; do
        grep -qF -- "$word" "$log" || { row "$what" "FAILED: no \"$word\""; tail -3 "$log"; return; }
    done
    if [ "$code" = 0 ]; then row "$what" "FAILED: exit 0"; else row "$what" "refused, exit $code"; fi
}

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,memory.used --format=csv 2>/dev/null
before=$(used)

# Bits.
declare -A running
for test in row_hash masks verify_fixtures spill; do
    for kv in bf16 f32; do
        TEST_DEVICE=cuda TEST_KV=$kv "$tests/$test" --nocapture >"$logs/$test-$kv.log" 2>&1 &
        running["$test-$kv"]=$!
    done
done
for name in "${!running[@]}"; do
    wait "${running[$name]}"
    code=$?
    result=$(sed -n 's/^test result: //p' "$logs/$name.log" | head -1)
    if [ "$code" = 0 ]; then row "$name" "$result"; else row "$name" "FAILED (exit $code): $result"; grep -E 'FAILED|panicked' -A3 "$logs/$name.log" | head -20; fi
done
grep -h '^host ' "$logs"/spill-*.log
row "bits" "$(seconds)"

# A start that is refused.
tiny=tests/fixtures/tiny/llama
start() { # LOG FAULT FLAGS...: sets $code
    local log=$1 fault=$2
    shift 2
    METRALE_FAULT="$fault" timeout 30 "$met" run "$tiny" --device "$device" --max-tokens 4 "$@" The >"$log" 2>&1
    code=$?
}
start "$logs/driver.log" driver=12080
refused "an old driver" "$logs/driver.log" "$code" "supports CUDA 12.8" "install a newer driver"
start "$logs/arch.log" capability=8.0
refused "another architecture" "$logs/arch.log" "$code" "compute capability 8.0" "METRALE_TARGET_HW"
timeout 30 "$met" bench qwen3-8b --load-format dummy --device "$device" --only decode --concurrency 1 --max-num-seqs 256 --max-seq-len 40960 --kv-cache-bytes 900000000000 >"$logs/fits.log" 2>&1
code=$?
refused "a plan that does not fit" "$logs/fits.log" "$code" "has no room for the kv arena" "would fit"
start "$logs/allocation.log" allocation=2
refused "allocation 2 fails" "$logs/allocation.log" "$code" "has no room for the" "CUDA_ERROR_OUT_OF_MEMORY"
row "refusals" "$(seconds)"

# Idle between programs.
bench() { # NAME MODEL CONCURRENCY FLAGS...
    local name=$1 model=$2 at=$3 result
    shift 3
    timeout 100 "$met" bench "$model" --load-format dummy --device "$device" --only decode --concurrency "$at" --max-prefill-tokens 8192 --output 128 --repeats 1 --format json "$@" >"$logs/$name.json" 2>"$logs/$name.log"
    result=$(python3 -c "
import json, sys
for d in json.load(open(sys.argv[1]))['decode']:
    i = d['idle_share']
    print('%d at once: %.0f tok/s, step %.3f ms, idle %s' % (d['concurrency'], d['tokens_per_second'], d['step_ms'], '%.2f %%' % (100 * i['value']) if i['value'] is not None else i['reason']))" "$logs/$name.json" 2>&1 | paste -sd';')
    case "$result" in *"at once"*) row "bench $model $*" "$result" ;; *) row "bench $model" "FAILED: $(tail -1 "$logs/$name.log")" ;; esac
}
bench idle-8b qwen3-8b 256 --idle-share
bench plain-8b qwen3-8b 256
bench idle-06b qwen3-0.6b 1,256 --idle-share
bench plain-06b qwen3-0.6b 1,256
row "idle share" "$(seconds)"

# What a device can do to us: one process each, for some of them lose it.
for test in a_healthy_backend_under_the_same_test_finishes \
    survival_43_a_plan_that_does_not_fit_names_the_arena_and_keeps_nothing \
    survival_43_out_of_memory_at_every_allocation_names_it_and_keeps_nothing \
    survival_43_a_sticky_device_error_fails_what_runs_and_turns_health_red \
    survival_42_a_launch_that_never_ends_while_weights_are_packed_is_an_error \
    survival_42_a_step_that_never_ends_fails_what_runs_and_turns_health_red; do
    TEST_DEVICE=cuda timeout 40 "$tests/device_faults" --exact "$test" --nocapture >"$logs/$test.log" 2>&1
    code=$?
    if [ "$code" = 0 ] && grep -q '1 passed' "$logs/$test.log"; then row "${test:0:56}" "passed"; else row "${test:0:56}" "FAILED (exit $code)"; grep -E 'panicked' -A3 "$logs/$test.log" | head -8; fi
done
row "faults" "$(seconds)"

# The server starts again with its socket kept.
again() { # FAULT
    local log="$logs/again-${1%%=*}.log" url="" server stream code begin text
    METRALE_FAULT=$1 "$met" serve "$tiny" --device "$device" --port 0 --step-timeout 1 --log-level info 2>"$log" &
    server=$!
    for _ in $(seq 2000); do
        [ -n "$url" ] || url=$(sed -n 's/.* at \(http:[^ ]*\)\/v1$/\1/p' "$log" | head -1)
        [ -n "$url" ] && [ "$(curl -s -o /dev/null -w '%{http_code}' "$url/ready")" = 200 ] && break
        kill -0 "$server" 2>/dev/null || break
        sleep 0.01
    done
    begin=$(date +%s%N)
    stream=$(curl -sN --max-time 30 -H 'content-type: application/json' "$url/v1/completions" -d '{"model":"llama","prompt":"The","max_tokens":400,"temperature":0,"ignore_eos":true,"stream":true}' | tail -2)
    case "$stream" in *server_error*) text="failed typed" ;; *) row "$1" "FAILED: the stream ended with ${stream:0:200}"; tail -5 "$log"; kill -9 "$server"; return ;; esac
    for _ in $(seq 3000); do
        grep -q 'starting again' "$log" && [ "$(curl -s --max-time 5 -o /dev/null -w '%{http_code}' "$url/ready")" = 200 ] && break
        sleep 0.01
    done
    text+=", ready again after $(awk -v a="$begin" -v b="$(date +%s%N)" 'BEGIN{printf "%.1f", (b - a) / 1e9}') s"
    code=$(curl -s --max-time 20 -o /dev/null -w '%{http_code}' -H 'content-type: application/json' "$url/v1/completions" -d '{"model":"llama","prompt":"The","max_tokens":4}')
    text+=", then $code; free bytes at the starts: $(sed 's/\x1b\[[0-9;]*m//g' "$log" | sed -n 's/.* memory=\([0-9]*\).*/\1/p' | paste -sd' ')"
    kill -TERM "$server"
    wait "$server" || code="exit $?"
    [ "$code" = 200 ] || text="FAILED: $text, $code"
    row "$1: socket kept" "$text"
}
again lose=200
again hang=200
row "device memory used, MiB" "$before before, $(used) after"
row "all" "$(seconds)"

echo
printf '%s' "$table"
[ "$failed" = 0 ] && echo "passed" || echo "FAILED"
exit "$failed"
