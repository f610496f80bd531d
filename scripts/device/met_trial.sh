#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# `met` on a GPU machine, in one call: no Rust and no compiler needed there.
#   here:   METRALE_KERNELS=require METRALE_TARGET_HW=hopper cargo build --release -p metrale-server --bin met
#   there:  scripts/device/met_trial.sh target/release/met [DEVICE]
# Doctor, verify on every tiny float fixture, then a server: start, answers alone and in a crowd, streams, the same
# answers from the processor, drain. A table last; logs go to $OUT, if set. Run from the root of the repository.
set -uo pipefail

met="${1:?usage: met_trial.sh MET [DEVICE]}"
device="${2:-cuda}"
logs="${OUT:-$(mktemp -d)}"
tiny=tests/fixtures/tiny
export METRALE_HOME="$logs/home" METRALE_OFFLINE=1
mkdir -p "$logs"
failed=0
table=""

row() { # WHAT RESULT
    table+="$(printf '%-44s %s' "$1" "$2")"$'\n'
    case "$2" in FAILED*) failed=1 ;; esac
}
milliseconds() { echo $(($(date +%s%N) / 1000000)); }

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,memory.used --format=csv 2>/dev/null
"$met" doctor --port 18000 >"$logs/doctor.log"
grep -E ' (gpu|kernels|processor|cores|memory) ' "$logs/doctor.log"
row "doctor: kernels" "$(sed -n 's/^ok   kernels *//p' "$logs/doctor.log")"

verified() { # REFERENCE KV
    local folder name model begin code took result
    folder=$(dirname "$1")
    name=$(basename "$folder")
    model=$folder
    [ -f "$folder/model.gguf" ] && model=$folder/model.gguf
    [ "$device" = cpu ] && case "$name" in *-q8_* | *-q4_*) return ;; esac # arithmetic in integers: another bound
    begin=$(milliseconds)
    "$met" verify "$model" --reference "$1" --device "$device" --kv-cache-dtype "$2" >"$logs/verify.log" 2>&1
    code=$?
    took=$(($(milliseconds) - begin))
    if [ "$code" = 0 ]; then
        result="$(tail -1 "$logs/verify.log"), largest $(awk '/e-/{if($(NF-2)+0>m+0)m=$(NF-2)}END{print m}' "$logs/verify.log"), $took ms"
    elif [ "$code" = 3 ] && grep -q 'choose --device cpu' "$logs/verify.log"; then
        result="refused by name: $(sed -n 's/.*has no point of \([a-z_0-9]*\) .*/no \1/p' "$logs/verify.log" | head -1)"
    else
        result="FAILED (exit $code)"
    fi
    # The plain fixtures of the first two families are served on every class.
    case "$name:$result" in llama:refused* | qwen3:refused*) result="FAILED ($result)" ;; esac
    case "$result" in FAILED*) cat "$logs/verify.log" ;; esac
    row "verify $name, KV $2" "$result"
}
for reference in "$tiny"/*/ref.safetensors; do
    for kv in f32 bf16; do verified "$reference" "$kv"; done
done

start() { # DEVICE LOG: sets $server and $url; waits until it is ready
    local begin
    begin=$(milliseconds)
    "$met" serve "$tiny/llama" --device "$1" --port 0 --log-level info 2>"$logs/$2.log" &
    server=$!
    url=""
    for _ in $(seq 3000); do
        [ -n "$url" ] || url=$(sed -n 's/.* at \(http:[^ ]*\)\/v1$/\1/p' "$logs/$2.log")
        [ -n "$url" ] && [ "$(curl -s -o /dev/null -w '%{http_code}' "$url/ready")" = 200 ] && break
        kill -0 "$server" 2>/dev/null || break
        sleep 0.01
    done
    if kill -0 "$server" 2>/dev/null; then row "serve --device $1: start to ready" "$(($(milliseconds) - begin)) ms"; else
        row "serve --device $1" "FAILED to start"
        cat "$logs/$2.log"
    fi
}
post() { curl -sN --max-time 60 -H 'content-type: application/json' "$url/v1/$1" -d "$2"; }
python() { python3 -c "import json, sys
$1"; }
answer() { # text (as JSON) and reason of an answer
    python "c = json.load(sys.stdin)['choices'][0]; print(json.dumps(c.get('text') or c['message']['content'])); print(c['finish_reason'])"
}
streamed() { # the same of a stream, which must end with [DONE]
    python "
lines = [l[6:].strip() for l in sys.stdin if l.startswith('data: ')]
assert lines.pop() == '[DONE]'
choices = [c for l in lines for c in json.loads(l)['choices']]
print(json.dumps(''.join(c['delta'].get('content') or '' for c in choices))); print(choices[-1]['finish_reason'])"
}
config() { # what /serve-config says of the device
    curl -s "$url/serve-config" | python "
c = json.load(sys.stdin); s = c['settings']
print(c['system_fingerprint'], *(s[k]['value'] for k in ('device', 'hardware-class', 'kv-cache-dtype', 'kv-cache-tokens')))"
}
hot() { # SEED PROMPT
    post completions "{\"model\":\"llama\",\"prompt\":\"$2\",\"max_tokens\":48,\"temperature\":1.5,\"seed\":$1}" | answer
}
chat='{"model":"llama","messages":[{"role":"user","content":"The capital of France"}],"max_tokens":24,"temperature":1,"seed":11'
all() { # DIRECTORY: the same requests on whichever server runs
    mkdir -p "$1"
    hot 7 "The capital of France is" >"$1/hot"
    post completions '{"model":"llama","prompt":"The capital of France is","max_tokens":48,"temperature":0,"ignore_eos":true}' | answer >"$1/greedy"
    post chat/completions "$chat}" | answer >"$1/chat"
    post chat/completions "$chat,\"stream\":true}" | streamed >"$1/stream"
}
same() { # WHAT A B
    if [ -s "$2" ] && cmp -s "$2" "$3" && ! grep -q '^null$' "$2"; then row "$1" "equal ($(wc -c <"$2") bytes)"; else row "$1" "FAILED: differ"; head -c 400 "$2" "$3"; fi
}

start "$device" serve-gpu
grep -hE 'computes|memory plan' "$logs/serve-gpu.log"
row "serve-config" "$(config)"
fingerprint=$(config | cut -d' ' -f1)
all "$logs/gpu"
same "chat: stream = whole answer" "$logs/gpu/chat" "$logs/gpu/stream"

clients=()
for i in $(seq 16); do
    (for round in 1 2 3; do hot "$((100 * round + i))" "Client $i of the crowd, round $round, says that the" >"$logs/crowd.$i"; done) &
    clients+=($!)
done
mkdir -p "$logs/crowd"
for i in 1 2 3; do hot 7 "The capital of France is" >"$logs/crowd/hot$i"; done
post chat/completions "$chat}" | answer >"$logs/crowd/chat"
wait "${clients[@]}"
for i in 1 2 3; do same "seeded answer $i: alone = beside 16 clients" "$logs/gpu/hot" "$logs/crowd/hot$i"; done
same "seeded chat: alone = beside 16 clients" "$logs/gpu/chat" "$logs/crowd/chat"
answered=$(cat "$logs"/crowd.[0-9]* | grep -cE '^(stop|length)$')
if [ "$answered" = 16 ]; then row "crowd: clients answered" "16 of 16"; else row "crowd: clients answered" "FAILED: $answered of 16"; fi
bad=$(curl -s -o /dev/null -w '%{http_code}' -H 'content-type: application/json' "$url/v1/completions" -d '{')
if [ "$bad" = 400 ]; then row "broken JSON" "400"; else row "broken JSON" "FAILED: $bad"; fi

# Drain: a long answer runs while SIGTERM comes.
curl -sN --max-time 60 -H 'content-type: application/json' "$url/v1/completions" -d '{"model":"llama","prompt":"The","max_tokens":400,"temperature":0,"ignore_eos":true,"stream":true}' >"$logs/drain.txt" &
client=$!
for _ in $(seq 500); do [ -s "$logs/drain.txt" ] && break; sleep 0.01; done
begin=$(milliseconds)
kill -TERM "$server"
wait "$server"
code=$?
took=$(($(milliseconds) - begin))
wait "$client"
chunks=$(grep -c '^data: {' "$logs/drain.txt")
if [ "$code" = 0 ] && grep -q 'data: \[DONE\]' "$logs/drain.txt"; then row "SIGTERM: running answer ends, exit 0" "$chunks events, $took ms"; else row "SIGTERM" "FAILED: exit $code, $chunks events"; fi

start cpu serve-cpu
row "serve-config" "$(config)"
all "$logs/cpu"
# Classes of one digest give one answer; a GPU whose kernels have bits of their own is only shown beside the processor.
for what in hot greedy chat; do
    if [ "$fingerprint" = "$(config | cut -d' ' -f1)" ]; then same "$what answer: $device = cpu" "$logs/gpu/$what" "$logs/cpu/$what"; elif
        cmp -s "$logs/gpu/$what" "$logs/cpu/$what"; then row "$what answer: $device, cpu" "equal, of two digests"; else row "$what answer: $device, cpu" "differ, of two digests"; fi
done
kill -TERM "$server"
wait "$server"

echo
printf '%s' "$table"
[ "$failed" = 0 ] && echo "passed" || echo "FAILED"
exit "$failed"
