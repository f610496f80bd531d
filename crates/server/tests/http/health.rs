// SPDX-License-Identifier: MIT OR Apache-2.0
//! Readiness, metrics and /serve-config.

use metrale_server::engine_face::EngineState;
use serde_json::json;

use crate::support::{MODEL, Script, Server, config, served};

#[test]
fn health_is_true_from_listening_to_ready() {
    let server = Server::loading(config(), Script::say("x"));
    for path in ["/health", "/ready"] {
        let reply = server.get(path);
        assert_eq!(
            (reply.status, reply.json()["status"].clone()),
            (503, json!("loading"))
        );
    }
    assert_eq!(server.get("/health/live").status, 200);
    let early = server.complete(&json!({}));
    assert_eq!(early.error(), (503, "model_loading".into(), String::new()));
    assert_eq!(early.header("retry-after"), Some("1"));
    assert_eq!(server.get("/v1/models").error().1, "model_loading");
    server.app.slot.ready(served(server.engine.clone()));
    assert_eq!(server.get("/health").ok(), json!({"status": "ready"}));
    server.complete(&json!({})).ok();
}

#[test]
fn a_load_that_failed_is_told() {
    let server = Server::loading(config(), Script::say("x"));
    server.app.slot.failed("model.safetensors: cut short");
    let reply = server.get("/health");
    assert_eq!(reply.status, 503);
    assert_eq!(
        reply.json(),
        json!({"status": "failed", "reason": "model.safetensors: cut short"})
    );
    assert_eq!(
        server.complete(&json!({})).error(),
        (503, "engine_failed".into(), String::new())
    );
}

#[test]
fn an_engine_that_fails_turns_health_red() {
    let server = Server::saying("x");
    *server.engine.state.lock().expect("lock") = EngineState::Failed("device lost".to_owned());
    assert_eq!(server.get("/ready").json()["status"], "failed");
    assert_eq!(server.get("/health/live").status, 200);
    assert!(server.chat(&json!({})).text().contains("device lost"));
}

/// The value of the sample that starts so.
fn sample(page: &str, start: &str) -> f64 {
    let line = page.lines().find(|l| l.starts_with(start));
    let line = line.unwrap_or_else(|| panic!("no {start} in\n{page}"));
    line.rsplit(' ')
        .next()
        .expect("a value")
        .parse()
        .expect("a number")
}

#[test]
fn metrics_have_the_names_that_are_scraped() {
    let server = Server::saying("abc");
    server.complete(&json!({"n": 2})).ok();
    server
        .chat(&json!({"stream": true, "max_tokens": 2}))
        .events();
    let reply = server.get("/metrics");
    assert!(
        reply
            .header("content-type")
            .is_some_and(|t| t.starts_with("text/plain; version=0.0.4"))
    );
    let page = reply.text();
    let label = format!("{{model_name=\"{MODEL}\"");
    let value = |name: &str| sample(page, &format!("{name}{label}"));
    assert_eq!(value("vllm:num_requests_running"), 2.0);
    assert_eq!(value("vllm:num_requests_waiting"), 5.0);
    assert_eq!(value("vllm:kv_cache_usage_perc"), 0.25);
    assert_eq!(value("vllm:gpu_cache_usage_perc"), 0.25);
    assert_eq!(value("vllm:prefix_cache_queries_total"), 40.0);
    assert_eq!(value("vllm:prefix_cache_hits_total"), 30.0);
    assert_eq!(value("vllm:num_preemptions_total"), 1.0);
    assert_eq!(value("vllm:spec_decode_num_draft_tokens_total"), 9.0);
    assert_eq!(value("vllm:spec_decode_num_accepted_tokens_total"), 4.0);
    // `<s>hi`; and three control tokens with `user\nhi`, `\n`, `assistant\n` between them.
    assert_eq!(
        value("vllm:prompt_tokens_total"),
        3.0 + 3.0 + 7.0 + 1.0 + 10.0
    );
    assert_eq!(value("vllm:generation_tokens_total"), 10.0);
    assert_eq!(value("vllm:time_to_first_token_seconds_count"), 3.0);
    assert_eq!(value("vllm:time_per_output_token_seconds_count"), 5.0);
    assert_eq!(value("vllm:e2e_request_latency_seconds_count"), 2.0);
    let reason = |name: &str| {
        let start = format!("vllm:request_success_total{label},finished_reason=\"{name}\"}}");
        sample(page, &start)
    };
    assert_eq!((reason("stop"), reason("length")), (2.0, 1.0));
}

#[test]
fn serve_config_shows_defaults_with_their_sources() {
    let server = Server::saying("x");
    let shown = server.get("/serve-config").ok();
    assert_eq!(shown["models"], json!([MODEL, "alias"]));
    assert_eq!(shown["system_fingerprint"], "d1gest");
    assert_eq!(shown["max_model_len"], 256);
    assert_eq!(
        shown["defaults"]["temperature"],
        json!({"value": 1.0, "source": "openai"})
    );
    assert_eq!(
        shown["settings"]["max-num-seqs"],
        json!({"value": 32, "source": "default"})
    );
    assert_eq!(shown["limits"]["n"], 128);
    let fields = &shown["fields"]["/v1/chat/completions"];
    assert_eq!(
        fields["cannot_change_an_answer"]["user"],
        "names the end user"
    );
    assert!(fields["honoured"]["temperature"].is_string());
    assert!(fields["refused"]["tools"].is_string());
}
