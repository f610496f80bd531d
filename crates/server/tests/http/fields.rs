// SPDX-License-Identifier: MIT OR Apache-2.0
//! SURVIVAL 10: every field of both endpoints, unknown or of a wrong type.

use std::sync::Arc;

use metrale_server::api::table::{Endpoint, Rule, of};
use serde_json::{Value, json};

use crate::support::{self, Reply, Script, Server};

fn post(server: &Server, endpoint: Endpoint, fields: &Value) -> Reply {
    match endpoint {
        Endpoint::Chat => server.chat(fields),
        Endpoint::Completions => server.complete(fields),
        Endpoint::Tokenize if fields.get("messages").is_some() => server.post("/tokenize", fields),
        Endpoint::Tokenize => server.post("/tokenize", &with(fields, "prompt", "a".into())),
        Endpoint::Detokenize => server.post("/detokenize", &with(fields, "tokens", json!([1]))),
    }
}

/// `fields` and, if they lack it, the one that must be there.
fn with(fields: &Value, name: &str, value: Value) -> Value {
    let mut all = fields.clone();
    let map = all.as_object_mut().expect("an object");
    map.entry(name).or_insert(value);
    all
}

const ALL: [Endpoint; 4] = [
    Endpoint::Chat,
    Endpoint::Completions,
    Endpoint::Tokenize,
    Endpoint::Detokenize,
];

#[test]
fn survival_10_every_field_of_a_wrong_type_is_named() {
    let server = Server::saying("x");
    for endpoint in ALL {
        for field in of(endpoint) {
            // No field takes an object that holds this.
            let reply = post(&server, endpoint, &json!({field.name: {"surely": "wrong"}}));
            let (status, code, param) = reply.error();
            match field.rule {
                Rule::Inert(_) => assert_eq!(status, 200, "{}", reply.text()),
                Rule::Only(..) | Rule::Refused(_) => {
                    assert_eq!((status, code.as_str()), (400, "unsupported_parameter"));
                    assert_eq!(param, field.name);
                }
                // An honoured field that nobody reads would be accepted here.
                Rule::Honoured(_) => {
                    assert_eq!(status, 400, "{endpoint:?} {}", field.name);
                    assert!(
                        param.starts_with(field.name),
                        "{endpoint:?} {}: {param} {code}",
                        field.name
                    );
                }
            }
        }
    }
}

#[test]
fn survival_10_unknown_fields_are_refused_with_the_near_name() {
    let server = Server::saying("x");
    for endpoint in [Endpoint::Chat, Endpoint::Completions] {
        let reply = post(&server, endpoint, &json!({"temprature": 0.5}));
        assert_eq!(
            reply.error(),
            (400, "unknown_parameter".into(), "temprature".into())
        );
        assert!(reply.text().contains("did you mean `temperature`?"));
        let long = "x".repeat(1 << 20);
        let reply = post(&server, endpoint, &json!({long.as_str(): 1}));
        assert_eq!(reply.error().1, "unknown_parameter");
        assert!(reply.body.len() < 1000);
    }
}

#[test]
fn survival_10_inner_objects_are_checked_too() {
    let server = Server::saying("x");
    let stream = |options: Value| {
        server
            .complete(&json!({"stream": true, "stream_options": options}))
            .error()
    };
    let error = |code: &str, param: &str| (400, code.to_owned(), param.to_owned());
    assert_eq!(
        stream(json!({"include_usages": true})),
        error("unknown_parameter", "stream_options.include_usages")
    );
    assert_eq!(
        stream(json!({"include_usage": 1})),
        error("invalid_type", "stream_options.include_usage")
    );
    assert_eq!(
        stream(json!({"include_obfuscation": true})),
        error(
            "unsupported_parameter",
            "stream_options.include_obfuscation"
        )
    );
    assert_eq!(stream(json!([])), error("invalid_type", "stream_options"));
    let alone = server.complete(&json!({"stream_options": {"include_usage": true}}));
    assert_eq!(alone.error(), error("invalid_value", "stream_options"));
    let chat = |message: Value| server.chat(&json!({"messages": [message]})).error();
    assert_eq!(
        chat(json!({"role": "user"})),
        error("missing_required_parameter", "messages[0].content")
    );
    assert_eq!(
        chat(json!({"content": "a"})),
        error("missing_required_parameter", "messages[0].role")
    );
    assert_eq!(
        chat(json!({"role": "robot", "content": "a"})),
        error("invalid_value", "messages[0].role")
    );
    assert_eq!(
        chat(json!({"role": 1, "content": "a"})),
        error("invalid_type", "messages[0].role")
    );
    assert_eq!(
        chat(json!({"role": "user", "content": 1})),
        error("invalid_type", "messages[0].content")
    );
    assert_eq!(
        chat(json!({"role": "user", "content": "a", "nmae": "b"})),
        error("unknown_parameter", "messages[0].nmae")
    );
    assert_eq!(
        chat(json!({"role": "tool", "content": "a"})),
        error("unsupported_parameter", "messages[0].role")
    );
    assert_eq!(
        chat(json!({"role": "assistant", "content": "a", "tool_calls": [{}]})),
        error("unsupported_parameter", "messages[0].tool_calls")
    );
    assert_eq!(chat(json!("hi")), error("invalid_type", "messages[0]"));
    let image = json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]});
    assert_eq!(
        chat(image),
        error("unsupported_parameter", "messages[0].content[0].type")
    );
    assert_eq!(
        chat(json!({"role": "user", "content": [{"type": "text"}]})),
        error("missing_required_parameter", "messages[0].content[0].text")
    );
    assert_eq!(
        server.chat(&json!({"messages": []})).error(),
        error("invalid_value", "messages")
    );
    assert_eq!(
        server.post("/v1/chat/completions", &json!({})).error(),
        error("missing_required_parameter", "messages")
    );
    assert_eq!(
        server.post("/v1/completions", &json!({})).error(),
        error("missing_required_parameter", "prompt")
    );
}

#[test]
fn fields_that_cannot_change_an_answer_do_not() {
    let server = Server::saying("x");
    let plain = server.chat(&json!({"seed": 1})).ok();
    let noted = json!({
        "seed": 1, "user": "u", "metadata": {"a": "b"}, "store": true, "safety_identifier": "s",
        "service_tier": "flex", "response_format": {"type": "text"}, "tool_choice": "none",
        "modalities": ["text"], "tools": null, "best_of": null, "logit_bias": null,
    });
    let mut noted = noted;
    noted.as_object_mut().expect("an object").remove("best_of");
    let with = server.chat(&noted).ok();
    assert_eq!(plain["choices"], with["choices"]);
    let requests = server.engine.requests();
    assert_eq!(format!("{:?}", requests[0]), format!("{:?}", requests[1]));
}

#[test]
fn refusals_by_name_say_why() {
    let server = Server::saying("x");
    for (field, value) in [("best_of", json!(2)), ("suffix", json!("end"))] {
        let reply = server.complete(&json!({field: value}));
        assert_eq!(
            reply.error(),
            (400, "unsupported_parameter".into(), field.into())
        );
    }
    for field in [
        "tools",
        "functions",
        "response_format",
        "chat_template",
        "chat_template_kwargs",
    ] {
        let reply = server.chat(&json!({field: {"type": "json_schema"}}));
        assert_eq!(
            reply.error(),
            (400, "unsupported_parameter".into(), field.into())
        );
    }
}

#[test]
fn priority_is_honoured_or_refused_by_name_and_a_salt_divides_the_cache() {
    let plain = Server::saying("b");
    let refused = plain.complete(&json!({"priority": 1}));
    let (status, code, param) = refused.error();
    assert_eq!(
        (status, code.as_str(), param.as_str()),
        (400, "unsupported_parameter", "priority")
    );
    assert!(refused.text().contains("--policy priority"));
    plain
        .complete(&json!({"priority": 0, "cache_salt": "mine"}))
        .ok();
    assert_ne!(plain.engine.request().namespace, 0);
    assert_eq!(plain.complete(&json!({"cache_salt": ""})).error().0, 400);

    let sorted = Server::loading(support::config(), Script::say("b"));
    let mut model = support::served(Arc::clone(&sorted.engine));
    model.card.by_priority = true;
    sorted.app.slot.ready(model);
    sorted.complete(&json!({"priority": -7})).ok();
    let request = sorted.engine.request();
    assert_eq!((request.priority, request.namespace), (-7, 0));
}
