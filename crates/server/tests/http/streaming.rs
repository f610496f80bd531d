// SPDX-License-Identifier: MIT OR Apache-2.0
//! Server-sent events.

use serde_json::{Value, json};

use crate::support::{Script, Server, config};

#[test]
fn a_chat_stream_is_openais_shape() {
    let server = Server::saying("ab");
    let reply = server.chat(&json!({"stream": true, "seed": 1}));
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    let event = |choice: Value| {
        json!({
            "id": "chatcmpl-000000000000180000002000",
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": "toy/model",
            "choices": [choice],
            "system_fingerprint": "d1gest",
        })
    };
    let delta = |delta: Value, finish: Value| {
        event(json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}))
    };
    let mut first = delta(json!({"role": "assistant", "content": ""}), Value::Null);
    first["metrale"] = json!({"seed": 1});
    assert_eq!(
        reply.events(),
        [
            first,
            delta(json!({"content": "a"}), Value::Null),
            delta(json!({"content": "b"}), Value::Null),
            delta(json!({}), "stop".into()),
        ]
    );
}

#[test]
fn a_completion_stream_is_openais_shape() {
    let server = Server::saying("ab");
    let events = server.complete(&json!({"stream": true})).events();
    let choices: Vec<Value> = events.iter().map(|e| e["choices"][0].clone()).collect();
    let choice = |text: &str, finish: Value| json!({"index": 0, "text": text, "logprobs": null, "finish_reason": finish});
    assert_eq!(
        choices,
        [
            choice("a", Value::Null),
            choice("b", Value::Null),
            choice("", "stop".into())
        ]
    );
    assert_eq!(events[0]["object"], "text_completion");
    assert!(events.iter().all(|e| e.get("usage").is_none()));
}

#[test]
fn include_usage_adds_a_last_event_and_nulls_before_it() {
    let server = Server::saying("ab");
    let mut events = server
        .complete(&json!({"stream": true, "stream_options": {"include_usage": true}}))
        .events();
    let last = events.pop().expect("events");
    assert_eq!(last["choices"], json!([]));
    assert_eq!(
        last["usage"],
        json!({
            "prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 3},
        })
    );
    assert!(
        events
            .iter()
            .all(|e| e["usage"].is_null() && e.get("usage").is_some())
    );
}

/// The streamed choices, joined.
fn joined(events: &[Value], choices: usize) -> Vec<(String, Value)> {
    let mut all = vec![(String::new(), Value::Null); choices];
    for choice in events
        .iter()
        .flat_map(|e| e["choices"].as_array().expect("a list"))
    {
        let (text, finish) = &mut all[choice["index"].as_u64().expect("a number") as usize];
        let new = choice["text"]
            .as_str()
            .or_else(|| choice["delta"]["content"].as_str());
        text.push_str(new.unwrap_or(""));
        if !choice["finish_reason"].is_null() {
            *finish = choice["finish_reason"].clone();
        }
    }
    all
}

#[test]
fn streamed_equals_unstreamed() {
    let text = "né😀 STO\u{FFFD}P ende";
    let scripts = [
        Script::say(text),
        Script::Say(vec![0xf0, 0x9f, 65, 259, 0xe2, 0x82]),
        Script::Say(vec![]),
    ];
    let requests = [
        json!({}),
        json!({"n": 2}),
        json!({"stop": ["STOP", "en"]}),
        json!({"stop": "😀", "include_stop_str_in_output": true}),
        json!({"max_tokens": 3}),
        json!({"max_tokens": 4, "echo": true}),
    ];
    for script in scripts {
        let server = Server::new(config(), script.clone());
        for fields in &requests {
            let whole = server.complete(fields).ok();
            let mut streamed = fields.clone();
            streamed["stream"] = true.into();
            let choices = whole["choices"].as_array().expect("a list");
            let events = server.complete(&streamed).events();
            let want: Vec<(String, Value)> = choices
                .iter()
                .map(|c| {
                    (
                        c["text"].as_str().expect("text").into(),
                        c["finish_reason"].clone(),
                    )
                })
                .collect();
            assert_eq!(joined(&events, choices.len()), want, "{script:?} {fields}");
        }
    }
}

#[test]
fn choices_of_a_chat_stream_each_begin_and_end() {
    let server = Server::saying("ab");
    let events = server.chat(&json!({"stream": true, "n": 3})).events();
    assert_eq!(
        joined(&events, 3),
        vec![("ab".to_owned(), json!("stop")); 3]
    );
    let begun = events
        .iter()
        .filter(|e| e["choices"][0]["delta"]["role"] == "assistant");
    assert_eq!(begun.count(), 3);
    assert_eq!(
        events.iter().filter(|e| e.get("metrale").is_some()).count(),
        1
    );
}

#[test]
fn a_quiet_stream_is_kept_open_by_comments() {
    let mut config = config();
    config.limits.keep_alive = std::time::Duration::from_millis(30);
    let server = Server::new(config, Script::hold("a"));
    std::thread::scope(|scope| {
        let reply = scope.spawn(|| server.complete(&json!({"stream": true})));
        server.engine.wait_requests(1);
        std::thread::sleep(std::time::Duration::from_millis(200));
        server.engine.release("b");
        let reply = reply.join().expect("a reply");
        assert!(
            reply.text().contains("\n\n: waiting\n\n"),
            "{}",
            reply.text()
        );
        assert_eq!(
            joined(&reply.events(), 1),
            [("ab".to_owned(), json!("stop"))]
        );
    });
}
