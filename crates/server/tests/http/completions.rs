// SPDX-License-Identifier: MIT OR Apache-2.0
//! /v1/completions, unstreamed.

use serde_json::json;

use crate::support::Server;

#[test]
fn a_whole_answer_is_openais_shape() {
    let server = Server::saying(" there");
    assert_eq!(
        server.complete(&json!({"seed": -1})).ok(),
        json!({
            "id": "cmpl-000000000000180000002000",
            "object": "text_completion",
            "created": 1_700_000_000,
            "model": "toy/model",
            "choices": [{"index": 0, "text": " there", "logprobs": null, "finish_reason": "stop"}],
            "usage": {
                "prompt_tokens": 3,
                "completion_tokens": 7,
                "total_tokens": 10,
                "prompt_tokens_details": {"cached_tokens": 3},
            },
            "system_fingerprint": "d1gest",
            "metrale": {"seed": -1},
        })
    );
    let request = server.engine.request();
    assert_eq!(request.prompt.to_vec(), [256, 104, 105]);
    assert_eq!(request.max_tokens, 16);
    assert_eq!(request.stop_tokens.to_vec(), [258]);
}

#[test]
fn a_prompt_is_a_text_or_ids_or_a_list_of_either() {
    let server = Server::saying("x");
    let asked = |prompt| {
        let before = server.engine.requests().len();
        let answer = server.complete(&json!({"prompt": prompt})).ok();
        let prompts: Vec<Vec<u32>> = server.engine.requests()[before..]
            .iter()
            .map(|r| r.prompt.to_vec())
            .collect();
        assert_eq!(
            answer["choices"].as_array().map(Vec::len),
            Some(prompts.len())
        );
        prompts
    };
    assert_eq!(asked(json!("a")), [[256, 97]]);
    assert_eq!(asked(json!([1, 2, 258])), [[1, 2, 258]]);
    assert_eq!(asked(json!(["a", "b"])), [[256, 97], [256, 98]]);
    assert_eq!(asked(json!([[1], [2]])), [[1], [2]]);
    assert_eq!(asked(json!(["a", [2, 3]])), [[256, 97], [2, 3]]);
    // The raw interface: control tokens by name are control tokens.
    assert_eq!(asked(json!("a<|im_end|>")), [[256, 97, 258]]);
}

#[test]
fn several_prompts_have_n_answers_each_in_order() {
    let server = Server::saying("x");
    let answer = server
        .complete(&json!({"prompt": ["a", "bcd"], "n": 2}))
        .ok();
    let indices: Vec<_> = (0..4)
        .map(|i| answer["choices"][i]["index"].clone())
        .collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    let asked: Vec<_> = server
        .engine
        .requests()
        .iter()
        .map(|r| (r.prompt.len(), r.choice))
        .collect();
    assert_eq!(asked, [(2, 0), (2, 1), (4, 0), (4, 1)]);
    assert_eq!(answer["usage"]["prompt_tokens"], 6);
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 6);
    assert_eq!(answer["usage"]["completion_tokens"], 8);
}

#[test]
fn the_prefix_is_left_out_on_request() {
    let server = Server::saying("x");
    server.complete(&json!({"add_special_tokens": false})).ok();
    assert_eq!(server.engine.request().prompt.to_vec(), [104, 105]);
}

#[test]
fn echo_puts_the_prompt_before_the_answer() {
    let server = Server::saying(" there");
    let text = |fields| server.complete(&fields).ok()["choices"][0]["text"].clone();
    assert_eq!(text(json!({"echo": true})), "hi there");
    assert_eq!(
        text(json!({"echo": true, "prompt": [104, 257, 105]})),
        "hi there"
    );
    assert_eq!(text(json!({"echo": true, "prompt": "né"})), "né there");
    assert_eq!(text(json!({"echo": true, "max_tokens": 0})), "hi");
    assert_eq!(text(json!({"max_tokens": 0})), "");
}

#[test]
fn sampling_fields_reach_the_engine() {
    let server = Server::saying("x");
    let fields = json!({
        "temperature": 0.5, "top_p": 0.75, "top_k": 40, "min_p": 0.125, "repetition_penalty": 1.5,
        "presence_penalty": -0.5, "frequency_penalty": 0.25, "seed": 99, "max_tokens": 5,
        "min_tokens": 2, "logit_bias": {"7": -100, "3": 2.5}, "stop_token_ids": [10, 11],
        "ignore_eos": true,
    });
    server.complete(&fields).ok();
    let request = server.engine.request();
    let row = request.sampling.encode(0, 0, None, 0);
    assert_eq!(
        (row.temperature, row.top_p, row.top_k, row.min_p),
        (0.5, 0.75, 40, 0.125)
    );
    assert_eq!(
        (row.repetition, row.presence, row.frequency),
        (1.5, -0.5, 0.25)
    );
    assert_eq!(
        (row.seed, request.max_tokens, request.min_tokens),
        (99, 5, 2)
    );
    assert_eq!(request.bias.to_vec(), [(3, 2.5), (7, -100.0)]);
    assert_eq!(request.stop_tokens.to_vec(), [10, 11]);
    assert!(request.history);
}

#[test]
fn a_prompt_that_does_not_fit_says_so() {
    let server = Server::saying("x");
    let long = server.complete(&json!({"prompt": "a".repeat(256)}));
    assert_eq!(
        long.error(),
        (400, "context_length_exceeded".into(), String::new())
    );
    let both = server.complete(&json!({"prompt": "a".repeat(200), "max_tokens": 56}));
    assert_eq!(both.error().1, "context_length_exceeded");
    assert!(both.text().contains("256 tokens"), "{}", both.text());
    // 201 tokens and the default length fit; so do 201 and 55.
    server.complete(&json!({"prompt": "a".repeat(200)})).ok();
    server
        .complete(&json!({"prompt": "a".repeat(200), "max_tokens": 55}))
        .ok();
    // The default length gives way to the context.
    server.complete(&json!({"prompt": "a".repeat(250)})).ok();
    assert_eq!(server.engine.requests()[2].max_tokens, 5);
    assert_eq!(server.complete(&json!({"prompt": ""})).status, 200);
    let empty = server.complete(&json!({"prompt": "", "add_special_tokens": false}));
    assert_eq!(
        empty.error(),
        (400, "invalid_value".into(), "prompt".into())
    );
}
