// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logprobs of both endpoints, whole and streamed.

use serde_json::{Value, json};

use crate::support::{Script, Server, config};

#[test]
fn chat_logprobs_hold_token_bytes_and_alternatives() {
    let server = Server::new(config(), Script::Say(vec![0xc3, 0xa9, 66]));
    let answer = server
        .chat(&json!({"logprobs": true, "top_logprobs": 2}))
        .ok();
    let entry = |token: &str, bytes: &[u8], logprob: f64| json!({"token": token, "logprob": logprob, "bytes": bytes});
    let with = |mut own: Value, top: Value| {
        own["top_logprobs"] = top;
        own
    };
    // The script: logprob -(id mod 7)/4 - 1/8, alternatives id, id + 1 one lower each.
    let (a, b) = (
        entry("\u{FFFD}", &[0xc3], -1.625),
        entry("\u{FFFD}", &[0xc4], -2.625),
    );
    let (c, d) = (
        entry("\u{FFFD}", &[0xa9], -0.375),
        entry("\u{FFFD}", &[0xaa], -1.375),
    );
    let (e, f) = (entry("B", &[66], -0.875), entry("C", &[67], -1.875));
    assert_eq!(
        answer["choices"][0]["logprobs"],
        json!({"content": [
            with(a.clone(), json!([a, b])),
            with(c.clone(), json!([c, d])),
            with(e.clone(), json!([e, f])),
        ], "refusal": null})
    );
    assert_eq!(answer["choices"][0]["message"]["content"], "éB");
}

#[test]
fn completion_logprobs_hold_four_lists() {
    let server = Server::new(config(), Script::Say(vec![65, 0xc3, 0xa9, 66]));
    let answer = server.complete(&json!({"logprobs": 1})).ok();
    assert_eq!(
        answer["choices"][0]["logprobs"],
        json!({
            "text_offset": [0, 1, 1, 2],
            "token_logprobs": [-0.625, -1.625, -0.375, -0.875],
            "tokens": ["A", "bytes:\\xc3", "bytes:\\xa9", "B"],
            "top_logprobs": [{"A": -0.625}, {"bytes:\\xc3": -1.625}, {"bytes:\\xa9": -0.375}, {"B": -0.875}],
        })
    );
    // With none asked for beside it, the token itself stands there.
    let none = server
        .complete(&json!({"logprobs": 0, "max_tokens": 1}))
        .ok();
    assert_eq!(
        none["choices"][0]["logprobs"]["top_logprobs"],
        json!([{"A": -0.625}])
    );
}

#[test]
fn echoed_logprobs_cover_the_prompt() {
    let server = Server::saying("!");
    let answer = server
        .complete(&json!({"logprobs": 1, "echo": true, "prompt": "né"}))
        .ok();
    assert_eq!(
        answer["choices"][0]["logprobs"],
        json!({
            "text_offset": [0, 0, 1, 1, 2],
            "token_logprobs": [null, -0.25, -0.25, -0.25, -1.375],
            "tokens": ["<s>", "n", "bytes:\\xc3", "bytes:\\xa9", "!"],
            "top_logprobs": [null, {"n": -0.25}, {"bytes:\\xc3": -0.25}, {"bytes:\\xa9": -0.25}, {"!": -1.375}],
        })
    );
    assert_eq!(answer["choices"][0]["text"], "né!");
    assert_eq!(server.engine.request().prompt_logprobs, Some(1));
    // Scoring alone.
    let score = server
        .complete(&json!({"logprobs": 0, "echo": true, "max_tokens": 0}))
        .ok();
    assert_eq!(
        score["choices"][0]["logprobs"]["tokens"],
        json!(["<s>", "h", "i"])
    );
    assert_eq!(score["usage"]["completion_tokens"], 0);
}

#[test]
fn streamed_logprobs_are_the_whole_ones() {
    let server = Server::new(config(), Script::Say(vec![65, 0xc3, 0xa9, 66, 259, 67, 68]));
    let fields = [
        json!({"logprobs": 2}),
        json!({"logprobs": 2, "stop": "TOPCD"}),
        json!({"logprobs": 2, "stop": "OPX", "max_tokens": 5}),
        json!({"logprobs": 1, "echo": true}),
    ];
    for fields in fields {
        let whole = server.complete(&fields).ok();
        let mut streamed = fields.clone();
        streamed["stream"] = true.into();
        let events = server.complete(&streamed).events();
        for list in ["text_offset", "token_logprobs", "tokens", "top_logprobs"] {
            let parts = events.iter().map(|e| &e["choices"][0]["logprobs"][list]);
            let all: Vec<Value> = parts
                .flat_map(|p| p.as_array().expect("a list").clone())
                .collect();
            let want = &whole["choices"][0]["logprobs"][list];
            assert_eq!(&json!(all), want, "{list} {fields}");
        }
    }
}

#[test]
fn tokens_of_the_stop_text_have_no_entries() {
    let server = Server::saying("ab##c");
    let answer = server.complete(&json!({"logprobs": 0, "stop": "##"})).ok();
    assert_eq!(
        answer["choices"][0]["logprobs"]["tokens"],
        json!(["a", "b"])
    );
}

#[test]
fn survival_12_more_alternatives_than_there_can_be() {
    let server = Server::saying("a");
    for top in [json!(21), json!(1_000_000), json!(-1), json!(u64::MAX)] {
        let chat = server.chat(&json!({"logprobs": true, "top_logprobs": top}));
        assert_eq!(
            chat.error(),
            (400, "invalid_value".into(), "top_logprobs".into())
        );
        let text = server.complete(&json!({"logprobs": top}));
        assert_eq!(
            text.error(),
            (400, "invalid_value".into(), "logprobs".into())
        );
    }
    let alone = server.chat(&json!({"top_logprobs": 2}));
    assert_eq!(
        alone.error(),
        (400, "invalid_value".into(), "top_logprobs".into())
    );
    let typed = server.complete(&json!({"logprobs": true}));
    assert_eq!(
        typed.error(),
        (400, "invalid_type".into(), "logprobs".into())
    );
}
