// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stop texts and stop tokens.

use serde_json::json;

use crate::support::{Script, Server, config};

#[test]
fn a_stop_text_across_tokens_ends_the_answer_and_the_request() {
    let server = Server::new(config(), Script::hold("One. Two. STO"));
    std::thread::scope(|scope| {
        let reply = scope.spawn(|| server.complete(&json!({"stop": [" Two.", "STOP"]})));
        // The engine would go on: the server cancels it.
        server.engine.wait_cancelled(1);
        let answer = reply.join().expect("a reply").ok();
        assert_eq!(answer["choices"][0]["text"], "One.");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        // Tokens up to the one that completed the stop text.
        assert_eq!(answer["usage"]["completion_tokens"], 9);
    });
}

#[test]
fn survival_16_stop_lists() {
    let server = Server::saying("aaab");
    let stop = |stop| {
        let reply = server.complete(&json!({"stop": stop}));
        match reply.status {
            200 => Ok(reply.json()["choices"][0]["text"]
                .as_str()
                .expect("text")
                .to_owned()),
            _ => Err(reply.error()),
        }
    };
    // 10^5 texts, an empty one, a long one, wrong types.
    let many: Vec<String> = (0..100_000).map(|i| i.to_string()).collect();
    let error = |param: &str, code: &str| Err((400, code.to_owned(), param.to_owned()));
    assert_eq!(stop(json!(many)), error("stop", "invalid_value"));
    assert_eq!(stop(json!("")), error("stop[0]", "invalid_value"));
    assert_eq!(stop(json!(["a", ""])), error("stop[1]", "invalid_value"));
    assert_eq!(
        stop(json!("x".repeat(1025))),
        error("stop[0]", "invalid_value")
    );
    assert_eq!(stop(json!([1])), error("stop[0]", "invalid_type"));
    assert_eq!(stop(json!({"a": 1})), error("stop", "invalid_type"));
    // A prefix of itself, and one text that is a prefix of another.
    assert_eq!(stop(json!("aab")), Ok("a".to_owned()));
    assert_eq!(stop(json!(["aaabX", "ab"])), Ok("aa".to_owned()));
    assert_eq!(stop(json!([])), Ok("aaab".to_owned()));
    assert_eq!(stop(json!(null)), Ok("aaab".to_owned()));
}

#[test]
fn a_stop_text_inside_one_token() {
    // 259 is the token `STOP`.
    let server = Server::new(config(), Script::Say(vec![65, 259, 66]));
    let text = |stop| server.complete(&json!({"stop": stop})).ok()["choices"][0]["text"].clone();
    assert_eq!(text("TO"), "AS");
    assert_eq!(text("OPB"), "AST");
    assert_eq!(text("PB!"), "ASTOPB");
}

#[test]
fn stop_tokens_are_handed_to_the_engine() {
    let server = Server::saying("x");
    server
        .complete(&json!({"stop_token_ids": [65, 258, 65]}))
        .ok();
    assert_eq!(server.engine.request().stop_tokens.to_vec(), [65, 258]);
    let unknown = server.complete(&json!({"stop_token_ids": [260]}));
    assert_eq!(
        unknown.error(),
        (400, "invalid_value".into(), "stop_token_ids[0]".into())
    );
}
