// SPDX-License-Identifier: MIT OR Apache-2.0
//! SURVIVAL 44 and 47 as far as HTTP sees them: failures and panics end their own request.

use metrale_scheduler::FaultKind;
use serde_json::{Value, json};

use crate::support::{Script, Server, config};

fn with(script: Script) -> Server {
    Server::new(config(), script)
}

#[test]
fn survival_44_a_failed_row_fails_its_request() {
    let kinds = [
        (FaultKind::NonFinite, 500, "generation_failed"),
        (FaultKind::NoToken, 400, "no_token_left"),
        (FaultKind::Constraint, 500, "generation_failed"),
        (FaultKind::Device, 500, "generation_failed"),
        (FaultKind::Internal, 500, "internal_error"),
        (FaultKind::Deadline, 504, "deadline_exceeded"),
        (FaultKind::Shutdown, 503, "shutting_down"),
    ];
    for (kind, status, code) in kinds {
        let server = with(Script::Fail(vec![], kind));
        let whole = server.complete(&json!({}));
        assert_eq!(whole.error(), (status, code.into(), String::new()));
        // A stream that has not begun still gets its status.
        let stream = server.complete(&json!({"stream": true}));
        assert_eq!(stream.error(), (status, code.into(), String::new()));
        server.engine.follow(Script::say("x"));
        server.complete(&json!({})).ok();
    }
}

#[test]
fn a_stream_that_fails_says_so_and_is_not_done() {
    let server = with(Script::Fail(vec![97], FaultKind::NonFinite));
    for reply in [
        server.complete(&json!({"stream": true})),
        server.chat(&json!({"stream": true})),
    ] {
        let events = reply.all_events();
        let last = events.last().expect("events");
        assert_eq!(last["error"]["code"], "generation_failed");
        assert_eq!(last["error"]["type"], "server_error");
        assert!(!reply.text().contains("[DONE]"));
    }
}

#[test]
fn an_engine_that_goes_away_is_told() {
    let server = with(Script::Vanish(vec![97]));
    assert_eq!(server.complete(&json!({})).error().1, "generation_failed");
    let events = server.complete(&json!({"stream": true})).all_events();
    assert_eq!(
        events.last().expect("events")["error"]["code"],
        "generation_failed"
    );
}

#[test]
fn one_failed_choice_cancels_the_others() {
    let server = with(Script::hold("a"));
    std::thread::scope(|scope| {
        let reply = scope.spawn(|| server.complete(&json!({"n": 3})));
        server.engine.wait_requests(3);
        server.engine.fail_one();
        server.engine.wait_cancelled(2);
        assert_eq!(
            reply.join().expect("a reply").error().1,
            "generation_failed"
        );
    });
}

#[test]
fn survival_47_a_panic_in_any_stage_ends_its_request_alone() {
    let server = with(Script::hold("held"));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| server.complete(&json!({})));
        server.engine.wait_requests(1);
        let user = |text: String| json!({"messages": [{"role": "user", "content": text}]});
        // Long texts are worked on by another thread.
        for padding in [0, 100_000] {
            let text = |what: &str| format!("{what}{}", "a".repeat(padding));
            let prompt = json!({"prompt": text("PANIC IN TOKENIZER")});
            let replies = [
                server.post("/tokenize", &prompt),
                server.post("/tokenize", &user(text("PANIC IN TEMPLATE"))),
                server.post("/tokenize", &user(text("PANIC IN TOKENIZER"))),
            ];
            for reply in replies {
                assert_eq!(reply.error(), (500, "internal_error".into(), String::new()));
            }
        }
        server.engine.follow(Script::Panic);
        assert_eq!(server.complete(&json!({})).error().1, "internal_error");
        let stream: Value = json!({"stream": true});
        assert_eq!(server.complete(&stream).error().1, "internal_error");
        server.engine.release("!");
        let answer = other.join().expect("a reply").ok();
        assert_eq!(answer["choices"][0]["text"], "held!");
    });
    server.engine.follow(Script::say("x"));
    server.complete(&json!({})).ok();
}

#[test]
fn a_full_queue_is_429_and_says_when() {
    let server = with(Script::Busy);
    for reply in [
        server.complete(&json!({})),
        server.chat(&json!({"stream": true})),
    ] {
        assert_eq!(
            reply.error(),
            (429, "rate_limit_exceeded".into(), String::new())
        );
        assert_eq!(reply.header("retry-after"), Some("1"));
    }
}

#[test]
fn a_deadline_reaches_the_engine_and_is_not_to_be_tried_again() {
    let server = Server::saying("x");
    server.complete(&json!({"deadline_ms": 5000})).ok();
    let left = server.engine.request().deadline.expect("a deadline");
    // The time from its arrival to the engine is taken off.
    assert!(
        left.as_millis() <= 5000 && left.as_millis() > 1000,
        "{left:?}"
    );
    for (value, code) in [
        (json!(0), "invalid_value"),
        (json!(86_400_001), "invalid_value"),
        (json!(1.5), "invalid_type"),
        (json!("1"), "invalid_type"),
    ] {
        let error = server.chat(&json!({"deadline_ms": value})).error();
        assert_eq!(error, (400, code.into(), "deadline_ms".into()));
    }
    server
        .engine
        .follow(Script::Fail(vec![97], FaultKind::Deadline));
    let reply = server.complete(&json!({}));
    assert_eq!(reply.error().0, 504);
    assert_eq!(reply.header("x-should-retry"), Some("false"));
    let events = server.complete(&json!({"stream": true})).all_events();
    let last = events.last().expect("events");
    assert_eq!(last["error"]["code"], "deadline_exceeded");
}
