// SPDX-License-Identifier: MIT OR Apache-2.0
//! /tokenize and /detokenize.

use serde_json::json;

use crate::support::Server;

#[test]
fn tokenize_gives_what_a_request_would_run_on() {
    let server = Server::saying("x");
    let ask = |body| server.post("/tokenize", &body).ok();
    assert_eq!(
        ask(json!({"prompt": "a<s>é", "return_token_strs": true})),
        json!({
            "count": 5, "max_model_len": 256, "tokens": [256, 97, 256, 195, 169],
            "token_strs": ["<s>", "a", "<s>", "bytes:\\xc3", "bytes:\\xa9"],
        })
    );
    let plain = ask(json!({"prompt": "a", "add_special_tokens": false}));
    assert_eq!(plain["tokens"], json!([97]));
    assert_eq!(plain["token_strs"], json!(null));
    let messages = json!([{"role": "user", "content": "hi"}]);
    let tokens = ask(json!({"messages": messages}))["tokens"].clone();
    server.chat(&json!({"messages": messages})).ok();
    assert_eq!(tokens, json!(server.engine.request().prompt.to_vec()));
    let closed = ask(json!({"messages": messages, "add_generation_prompt": false}));
    assert_eq!(
        closed["count"].as_u64().map(|n| n + 11),
        tokens.as_array().map(|t| t.len() as u64)
    );
}

#[test]
fn tokenize_wants_one_of_prompt_and_messages() {
    let server = Server::saying("x");
    let code = |body| server.post("/tokenize", &body).error();
    assert_eq!(
        code(json!({})),
        (400, "missing_required_parameter".into(), "prompt".into())
    );
    let both = json!({"prompt": "a", "messages": [{"role": "user", "content": "a"}]});
    assert_eq!(code(both), (400, "invalid_value".into(), "prompt".into()));
    let opened = json!({"prompt": "a", "add_generation_prompt": true});
    assert_eq!(
        code(opened),
        (400, "invalid_value".into(), "add_generation_prompt".into())
    );
    assert_eq!(
        code(json!({"prompt": "a", "model": "b"})).1,
        "model_not_found"
    );
}

#[test]
fn survival_08_a_long_text_far_beyond_the_context_is_not_tokenized() {
    let server = Server::saying("x");
    let ask = |bytes: usize| server.post("/tokenize", &json!({"prompt": "a".repeat(bytes)}));
    assert_eq!(ask(256 << 10).ok()["count"], json!((256 << 10) + 1));
    let (status, code, _) = ask((256 << 10) + 1).error();
    assert_eq!((status, code.as_str()), (400, "context_length_exceeded"));
    let messages = json!([{"role": "user", "content": "a".repeat(300_000)}]);
    let chat = server.post("/tokenize", &json!({"messages": messages}));
    assert_eq!(chat.error().1, "context_length_exceeded");
    server
        .chat(&json!({"messages": [{"role": "user", "content": "a"}]}))
        .ok();
}

#[test]
fn detokenize_gives_the_text() {
    let server = Server::saying("x");
    let ask = |tokens| server.post("/detokenize", &json!({"tokens": tokens}));
    assert_eq!(
        ask(json!([97, 195, 169, 258])).ok(),
        json!({"prompt": "aé<|im_end|>"})
    );
    assert_eq!(ask(json!([195])).ok(), json!({"prompt": "\u{FFFD}"}));
    assert_eq!(ask(json!([])).ok(), json!({"prompt": ""}));
    assert_eq!(
        ask(json!([260])).error(),
        (400, "invalid_value".into(), "tokens[0]".into())
    );
    assert_eq!(
        ask(json!("a")).error(),
        (400, "invalid_type".into(), "tokens".into())
    );
}
