// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who may ask: keys, hosts, origins, content types (SURVIVAL 7).

use metrale_server::http::HttpConfig;

use crate::support::{Reply, Script, Server, config, send};

const BODY: &[u8] = b"{\"prompt\": \"hi\"}";
const JSON: (&str, &str) = ("content-type", "application/json");

fn post(server: &Server, headers: &[(&str, &str)]) -> Reply {
    send(server.addr, "POST", "/v1/completions", headers, BODY)
}

#[test]
fn survival_07_every_path_wants_the_key() {
    let config = HttpConfig {
        api_keys: vec!["first-key".to_owned(), "second".to_owned()],
        ..config()
    };
    let server = Server::new(config, Script::say("x"));
    let paths = [
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/toy/model"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("GET", "/metrics"),
        ("GET", "/serve-config"),
        ("GET", "/nowhere"),
        ("DELETE", "/v1/models"),
        ("OPTIONS", "/v1/models"),
        ("GET", "//health"),
        ("GET", "/health/"),
    ];
    for (method, path) in paths {
        let reply = send(server.addr, method, path, &[JSON], BODY);
        assert_eq!(reply.error().0, 401, "{method} {path}");
        assert_eq!(reply.error().1, "invalid_api_key");
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
    }
    for path in ["/health", "/health/live", "/ready"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    let with = |value: &str| post(&server, &[JSON, ("authorization", value)]).status;
    for good in ["Bearer first-key", "bearer second", "BEARER second "] {
        assert_eq!(with(good), 200, "{good}");
    }
    for bad in [
        "Bearer first-ke",
        "Bearer first-key2",
        "Bearer",
        "Bearer ",
        "first-key",
        "Basic first-key",
        "Bearer first-key,second",
    ] {
        assert_eq!(with(bad), 401, "{bad}");
    }
    assert_eq!(post(&server, &[JSON, ("x-api-key", "second")]).status, 200);
    assert_eq!(server.engine.requests().len(), 4);
}

#[test]
fn a_web_page_cannot_drive_a_local_server() {
    let server = Server::saying("x");
    // A form or a no-cors fetch: no JSON content type.
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/jsonx",
        "",
    ] {
        let reply = post(&server, &[("content-type", kind)]);
        assert_eq!(
            reply.error(),
            (415, "unsupported_media_type".into(), String::new()),
            "{kind}"
        );
    }
    assert_eq!(post(&server, &[]).status, 415);
    // A name of the page's owner that points here.
    for host in ["evil.example", "evil.example:8000", "10.0.0.1", ""] {
        let reply = post(&server, &[JSON, ("host", host)]);
        assert_eq!(
            reply.error(),
            (403, "host_not_allowed".into(), String::new()),
            "{host}"
        );
    }
    let two = [JSON, ("host", "localhost"), ("host", "evil.example")];
    assert!(matches!(post(&server, &two).status, 400 | 403));
    // A page of another origin.
    for origin in ["http://evil.example", "null", "http://localhost:1"] {
        let reply = post(&server, &[JSON, ("origin", origin)]);
        assert_eq!(
            reply.error(),
            (403, "origin_not_allowed".into(), String::new()),
            "{origin}"
        );
        assert_eq!(reply.header("access-control-allow-origin"), None);
    }
    assert!(server.engine.requests().is_empty());
    let own = format!("http://{}", server.addr);
    assert_eq!(post(&server, &[JSON, ("origin", &own)]).status, 200);
    assert_eq!(
        post(
            &server,
            &[("content-type", "Application/JSON; charset=utf-8")]
        )
        .status,
        200
    );
    assert_eq!(post(&server, &[JSON, ("host", "localhost:9")]).status, 200);
}

#[test]
fn allowed_hosts_and_origins_are_let_in() {
    let config = HttpConfig {
        allowed_hosts: vec!["llm.example".to_owned()],
        allowed_origins: vec!["https://app.example".to_owned()],
        ..config()
    };
    let server = Server::new(config, Script::say("x"));
    let headers = [
        JSON,
        ("host", "LLM.example:80"),
        ("origin", "https://app.example"),
    ];
    let reply = post(&server, &headers);
    assert_eq!(reply.status, 200);
    assert_eq!(
        reply.header("access-control-allow-origin"),
        Some("https://app.example")
    );
    let ask = send(
        server.addr,
        "OPTIONS",
        "/v1/completions",
        &headers[1..],
        b"",
    );
    assert_eq!(ask.status, 204);
    assert!(
        ask.header("access-control-allow-headers")
            .is_some_and(|h| h.contains("authorization"))
    );
    assert_eq!(
        post(&server, &[JSON, ("origin", "https://other.example")]).status,
        403
    );
}

#[test]
fn every_response_has_a_request_id() {
    let server = Server::saying("x");
    let first = server.get("/health");
    let second = server.get("/nowhere");
    assert!(
        first
            .header("x-request-id")
            .is_some_and(|id| id.starts_with("req-"))
    );
    assert_ne!(first.header("x-request-id"), second.header("x-request-id"));
}

#[test]
fn wrong_paths_and_methods_are_told() {
    let server = Server::saying("x");
    assert_eq!(
        server.get("/v1/embeddings").error(),
        (404, "not_found".into(), String::new())
    );
    assert_eq!(
        server.get("/v1/completions").error(),
        (405, "method_not_allowed".into(), String::new())
    );
    let post = server.post("/v1/models", &serde_json::json!({}));
    assert_eq!(post.error().0, 405);
}
