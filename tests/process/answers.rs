// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers over a real socket, alone and in a crowd.

use serde_json::{Value, json};

use crate::checkpoints::{deep, fixture};
use crate::client::{Stream, text};
use crate::met::Met;

fn chat(temperature: f64, seed: u64, max_tokens: u32) -> Value {
    json!({
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": temperature, "seed": seed, "max_tokens": max_tokens, "ignore_eos": true,
    })
}

#[test]
fn chat_and_completion_answer_whole_and_streamed() {
    for (model, name) in [("llama", "llama"), ("llama-gguf/model.gguf", "model")] {
        let met = Met::ready(&fixture(model), &["--kv-cache-bytes", "2000000"]);
        let digest = met.get("/serve-config").ok()["system_fingerprint"].clone();
        assert_eq!(digest.as_str().map(str::len), Some(16));
        let completion =
            json!({"prompt": "The capital", "max_tokens": 12, "temperature": 0.7, "seed": 3});
        for (path, body) in [
            ("/v1/chat/completions", chat(0.7, 3, 12)),
            ("/v1/completions", completion),
        ] {
            let whole = met.post(path, &body).ok();
            assert_eq!(whole["system_fingerprint"], digest, "{path}");
            assert_eq!(whole["model"], name, "{path}");
            let choice = &whole["choices"][0];
            let said = choice["text"]
                .as_str()
                .or(choice["message"]["content"].as_str());
            let events = met.stream(path, &body).finish();
            assert_eq!(Some(text(&events).as_str()), said, "{path}");
            assert!(events.iter().all(|e| e["system_fingerprint"] == digest));
            let finish = |c: &Value| c["finish_reason"].clone();
            assert_eq!(
                finish(&events.last().unwrap()["choices"][0]),
                finish(choice)
            );
        }
    }
}

#[test]
fn survival_17_an_equal_seed_gives_an_equal_answer_in_a_crowd() {
    let met = Met::ready(deep(), &["--kv-cache-bytes", "160000000"]);
    let path = "/v1/chat/completions";
    let body = chat(1.2, 7, 40);
    let alone = met.post(path, &body).ok();
    let said = |answer: &Value| answer["choices"][0]["message"]["content"].clone();
    assert_ne!(said(&alone), said(&met.post(path, &chat(1.2, 8, 40)).ok()));
    // Eight others, each of its own length, that run before and after.
    let crowd: Vec<Stream> = (0..8)
        .map(|i| {
            let prompt = "Beside. ".repeat(i + 1);
            let other =
                json!({"prompt": prompt, "max_tokens": 400, "temperature": 1, "ignore_eos": true});
            let mut stream = met.stream("/v1/completions", &other);
            stream.next().expect("a first event");
            stream
        })
        .collect();
    met.wait_running(8);
    let crowded = met.post(path, &body).ok();
    // The crowd is still there; the answer's own request is counted until its last step is taken off.
    met.wait_running(8);
    drop(crowd);
    assert_eq!(said(&crowded), said(&alone));
    assert_eq!(crowded["system_fingerprint"], alone["system_fingerprint"]);
    // Nor do threads or the room for others matter.
    let args = [
        "--kv-cache-bytes",
        "20000000",
        "--threads",
        "1",
        "--max-prefill-tokens",
        "5",
    ];
    let other = Met::ready(deep(), &args);
    assert_eq!(said(&other.post(path, &body).ok()), said(&alone));
}

/// A request that says how long it is worth while ends then, waiting or running, and leaves nothing behind.
#[test]
fn a_deadline_ends_a_request_that_runs_or_waits() {
    let arguments = ["--kv-cache-bytes", "20000000", "--max-num-seqs", "1"];
    let met = Met::ready(deep(), &arguments);
    let path = "/v1/completions";
    let ask = |deadline: u64| json!({"prompt": "Once", "max_tokens": 400, "ignore_eos": true, "deadline_ms": deadline});
    let late = (504, "deadline_exceeded".to_owned());
    assert_eq!(met.post(path, &ask(100)).error(), late, "running");
    met.wait_running(0);
    met.wait_metric("vllm:kv_cache_usage_perc", 0.0);
    // Behind one that takes longer than it may wait, and is not touched by its end.
    let mut first = met.stream(path, &ask(600_000));
    first.next().expect("a first event");
    let waits = met.post(path, &ask(100));
    assert_eq!(waits.error(), late, "waiting");
    met.wait_metric("vllm:num_requests_waiting", 0.0);
    first.next().expect("it goes on");
    drop(first);
    met.wait_running(0);
    met.wait_metric("vllm:kv_cache_usage_perc", 0.0);
}

#[test]
fn as_many_answers_as_the_queue_holds_are_given_and_more_are_never_told_to_wait() {
    let arguments = ["--kv-cache-bytes", "2000000", "--queue-len", "6"];
    let met = Met::ready(&fixture("llama"), &arguments);
    let ask = |prompts: usize, n: usize| {
        let body = json!({"prompt": vec!["a"; prompts], "n": n, "max_tokens": 2, "seed": 1});
        met.post("/v1/completions", &body)
    };
    assert_eq!(ask(3, 2).ok()["choices"].as_array().map(Vec::len), Some(6));
    for (prompts, n) in [(7, 1), (1, 7)] {
        assert_eq!(ask(prompts, n).error(), (400, "invalid_value".into()));
    }
}

#[test]
fn stop_tokens_are_not_drawn_before_min_tokens() {
    let met = Met::ready(&fixture("llama"), &["--kv-cache-bytes", "2000000"]);
    let all: Vec<u32> = (0..256).collect();
    for temperature in [0.0, 0.9] {
        let body = json!({
            "prompt": "a", "temperature": temperature, "seed": 5,
            "max_tokens": 20, "min_tokens": 9, "stop_token_ids": all,
        });
        let used = met.post("/v1/completions", &body).ok()["usage"]["completion_tokens"].clone();
        assert!(used.as_u64() >= Some(9), "{temperature}: {used}");
    }
}
