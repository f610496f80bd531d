// SPDX-License-Identifier: MIT OR Apache-2.0
//! SURVIVAL 11 to 17: numbers and lists at and beyond their edges.

use metrale_scheduler::TokenMask;
use serde_json::{Value, json};

use crate::support::{Server, send};

/// Each value is refused with this code, naming the field, by both endpoints; then the server still answers.
fn refused(field: &str, code: &str, values: &[Value]) {
    let server = Server::saying("x");
    for value in values {
        let fields = json!({field: value});
        for reply in [server.chat(&fields), server.complete(&fields)] {
            let (status, got, param) = reply.error();
            assert_eq!(
                (status, got.as_str()),
                (400, code),
                "{field} = {value}: {}",
                reply.text()
            );
            assert!(param.starts_with(field), "{param}");
        }
    }
    assert!(server.engine.requests().is_empty());
    server.complete(&json!({})).ok();
}

#[test]
fn survival_11_counts_beyond_their_ranges() {
    refused(
        "n",
        "invalid_value",
        &[
            json!(1_u64 << 31),
            json!(0),
            json!(-1),
            json!(129),
            json!(u64::MAX),
        ],
    );
    refused("max_tokens", "invalid_value", &[json!(u64::MAX), json!(-1)]);
    refused(
        "max_tokens",
        "invalid_type",
        &[json!(1.5), json!("7"), json!(1e300)],
    );
    refused("min_tokens", "invalid_value", &[json!(-1), json!(u64::MAX)]);
    refused(
        "top_k",
        "invalid_value",
        &[json!(-2), json!(1_u64 << 40), json!(i64::MIN)],
    );
    refused("seed", "invalid_value", &[json!(u64::MAX)]);
}

#[test]
fn survival_11_lengths_that_no_context_holds() {
    let server = Server::saying("x");
    for most in [257_u64, u64::from(u32::MAX), 1 << 40, i64::MAX as u64] {
        let reply = server.complete(&json!({"max_tokens": most}));
        assert_eq!(reply.error().1, "context_length_exceeded", "{most}");
    }
    let min = server.complete(&json!({"min_tokens": 9, "max_tokens": 8}));
    assert_eq!(
        min.error(),
        (400, "invalid_value".into(), "min_tokens".into())
    );
    let chat = server.chat(&json!({"max_tokens": 0}));
    assert_eq!(
        chat.error(),
        (400, "invalid_value".into(), "max_tokens".into())
    );
    // The product of prompts and answers is bounded, too.
    let prompts = vec!["a"; 1000];
    let many = server.complete(&json!({"prompt": prompts, "n": 2}));
    assert_eq!(many.error(), (400, "invalid_value".into(), "prompt".into()));
}

#[test]
fn survival_13_logit_bias() {
    let many: serde_json::Map<_, _> = (0..100_000).map(|i| (i.to_string(), json!(1))).collect();
    refused(
        "logit_bias",
        "invalid_value",
        &[
            json!({"-1": 1}),
            json!({"260": 1}),
            json!({"4294967296": 1}),
            json!({"+5": 1}),
            json!({"": 1}),
            json!({"hello": 1}),
            json!({"7": 100.5}),
            json!({"7": -1e300}),
            json!({"7": 1, "07": 2}),
            json!(many),
        ],
    );
    refused(
        "logit_bias",
        "invalid_type",
        &[json!({"7": "1"}), json!({"7": null}), json!([1])],
    );
    let server = Server::saying("x");
    // All -100: a shift of every logit, which changes nothing; the engine gets it.
    let all: serde_json::Map<_, _> = (0..260).map(|i| (i.to_string(), json!(-100))).collect();
    server.complete(&json!({"logit_bias": all})).ok();
    assert_eq!(server.engine.request().bias.len(), 260);
    // Infinite: JSON has no such number.
    for number in ["1e400", "Infinity", "-Infinity"] {
        let body = format!("{{\"prompt\": \"a\", \"logit_bias\": {{\"7\": {number}}}}}");
        let reply = post_text(&server, &body);
        assert_eq!(reply.error().1, "invalid_json", "{number}");
    }
}

#[test]
fn allowed_token_ids_that_are_no_list_of_tokens() {
    let many: Vec<u32> = (0..100_000).map(|i| i % 260).collect();
    refused(
        "allowed_token_ids",
        "invalid_value",
        &[
            json!([]),
            json!([-1]),
            json!([5, 260]),
            json!([u64::MAX]),
            json!([7, 8, 7]),
            json!(many),
        ],
    );
    refused(
        "allowed_token_ids",
        "invalid_type",
        &[
            json!(["7"]),
            json!([7.5]),
            json!([null]),
            json!([[7]]),
            json!({"7": 1}),
            json!("7"),
            json!(7),
        ],
    );
    let server = Server::saying("x");
    // Nothing may be drawn but what ends the answer, and that not yet; with ignore_eos it does not end it.
    let end = json!({"allowed_token_ids": [258], "min_tokens": 2, "max_tokens": 4});
    let reply = server.complete(&end);
    assert_eq!(
        reply.error(),
        (400, "invalid_value".into(), "min_tokens".into())
    );
    assert!(reply.text().contains("allowed_token_ids"));
    let mut end = end;
    end["ignore_eos"] = json!(true);
    server.complete(&end).ok();
}

#[test]
fn allowed_token_ids_reach_every_choice_as_one_fixed_mask() {
    let server = Server::saying("x");
    let fields = json!({"allowed_token_ids": [5, 0, 259], "n": 2});
    server.complete(&fields).ok();
    server.chat(&fields).ok();
    let mut masks: Vec<TokenMask> = server
        .engine
        .requests()
        .into_iter()
        .map(|request| {
            // An end token only if it is listed: it stands among those that end, and is not allowed.
            assert!(request.stop_tokens.contains(&258));
            let mut constraint = request.constraint.expect("a constraint");
            assert!(constraint.is_fixed());
            constraint.mask().expect("a mask")
        })
        .collect();
    assert_eq!(masks.len(), 4);
    let allowed: Vec<u32> = (0..300).filter(|t| masks[0].allows(*t)).collect();
    assert_eq!(allowed, [0, 5, 259]);
    let second = masks.remove(1);
    assert!(second.shares(&masks[0]) && masks[1] == masks[0]);
    // Without the field there is no mask.
    let server = Server::saying("x");
    server.complete(&json!({"allowed_token_ids": null})).ok();
    assert!(server.engine.request().constraint.is_none());
}

#[test]
fn bad_words_that_are_no_list_of_texts() {
    let many = vec!["x"; 257];
    refused(
        "bad_words",
        "invalid_value",
        &[
            json!([""]),
            json!(["a", "  \n"]),
            json!(["x".repeat(1025)]),
            json!(many),
        ],
    );
    refused(
        "bad_words",
        "invalid_type",
        &[json!("word"), json!([1]), json!([["a"]]), json!({"a": 1})],
    );
    let server = Server::saying("x");
    let none = server.complete(&json!({"allowed_token_ids": [97], "bad_words": ["a"]}));
    assert_eq!(
        none.error(),
        (400, "invalid_value".into(), "bad_words".into())
    );
    server.complete(&json!({"bad_words": []})).ok();
    assert!(server.engine.request().constraint.is_none());
}

/// The tokens of the toy model are bytes, so " cat" ends as "cat" does: one sequence.
#[test]
fn bad_words_are_kept_out_by_their_last_token() {
    let server = Server::saying("x");
    let fields = json!({"bad_words": [" cat", "z", "<|im_end|>"], "allowed_token_ids": [99, 97, 116, 122, 258]});
    server.chat(&fields).ok();
    let mut constraint = server.engine.request().constraint.expect("a constraint");
    assert!(!constraint.is_fixed());
    let mut allowed = Vec::new();
    for byte in "ccat".bytes().map(u32::from) {
        let mask = constraint.mask().expect("a mask");
        allowed.push((0..260).filter(|t| mask.allows(*t)).collect::<Vec<u32>>());
        constraint.accept(byte).expect("taken");
    }
    let all = vec![97, 99, 116];
    assert_eq!(allowed, [all.clone(), all.clone(), all, vec![97, 99]]);
}

fn post_text(server: &Server, body: &str) -> crate::support::Reply {
    let headers = [("content-type", "application/json")];
    send(
        server.addr,
        "POST",
        "/v1/completions",
        &headers,
        body.as_bytes(),
    )
}

#[test]
fn survival_14_sampling_numbers_at_the_edges() {
    refused(
        "temperature",
        "invalid_value",
        &[json!(-0.1), json!(1e30), json!(-1e-300)],
    );
    refused(
        "temperature",
        "invalid_type",
        &[json!("hot"), json!([1]), json!(true)],
    );
    refused("min_p", "invalid_value", &[json!(1.01), json!(-0.5)]);
    refused(
        "top_p",
        "invalid_value",
        &[json!(0), json!(1.0001), json!(-1)],
    );
    refused(
        "repetition_penalty",
        "invalid_value",
        &[json!(0), json!(-1), json!(1e-5)],
    );
    refused(
        "presence_penalty",
        "invalid_value",
        &[json!(2.1), json!(-2.1)],
    );
    refused(
        "frequency_penalty",
        "invalid_value",
        &[json!(2.1), json!(-2.1)],
    );
    let server = Server::saying("x");
    // Denormal and tiny temperatures are greedy.
    for (i, t) in [0.0, 5e-324, 1e-30].into_iter().enumerate() {
        server.complete(&json!({"temperature": t})).ok();
        let row = server.engine.requests()[i].sampling.encode(0, 0, None, 0);
        assert_eq!(row.temperature, 0.0);
    }
    for text in ["NaN", "nan", "-NaN"] {
        let body = format!("{{\"prompt\": \"a\", \"temperature\": {text}}}");
        assert_eq!(post_text(&server, &body).error().1, "invalid_json");
    }
    assert_eq!(
        post_text(&server, "{\"prompt\": \"a\", \"temperature\": -0}").status,
        200
    );
}

#[test]
fn survival_15_truncation_is_refused_by_name() {
    let sizes = [json!(-1), json!(5), json!(u64::MAX), json!(i64::MIN)];
    refused("truncate_prompt_tokens", "unsupported_parameter", &sizes);
}

#[test]
fn survival_11_prompt_ids_outside_the_vocabulary() {
    let server = Server::saying("x");
    let code = |prompt: Value| server.complete(&json!({"prompt": prompt})).error();
    let error = |code: &str, param: &str| (400, code.to_owned(), param.to_owned());
    assert_eq!(code(json!([1, 260])), error("invalid_value", "prompt[1]"));
    assert_eq!(code(json!([-1])), error("invalid_value", "prompt[0]"));
    assert_eq!(code(json!([u64::MAX])), error("invalid_value", "prompt[0]"));
    assert_eq!(code(json!([1.5])), error("invalid_type", "prompt[0]"));
    assert_eq!(code(json!([1, "a"])), error("invalid_type", "prompt[1]"));
    assert_eq!(
        code(json!([[1], [300]])),
        error("invalid_value", "prompt[1][0]")
    );
    assert_eq!(code(json!(["a", 1])), error("invalid_type", "prompt[1]"));
    assert_eq!(code(json!([])), error("invalid_value", "prompt"));
    assert_eq!(code(json!([[]])), error("invalid_value", "prompt"));
    assert_eq!(code(json!({"a": 1})), error("invalid_type", "prompt"));
}
