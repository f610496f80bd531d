// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who may ask at all: the Host, the Origin and the API key of every request.
//!
//! A web page can make a browser send requests to a server on the same machine, and a name of the page's owner can be
//! pointed at 127.0.0.1 so that it even reads the answers. So only names this server knows, and addresses where it
//! listens beyond loopback, are answered; and of pages, only those of this server or of allowed origins. (JSON bodies
//! need their content type, which a page of another origin cannot set without asking first.)

use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::app::{App, HttpConfig};
use super::panics::Guarded;
use crate::api::error::ApiError;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Paths that need no key, so that an orchestrator can probe them. They say nothing of requests.
const OPEN: [&str; 3] = ["/health", "/health/live", "/ready"];

/// Stands before every route, and around it: a panic inside becomes a 500 of this request.
pub(super) async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let id = app.fresh_id("req");
    let origin = request.headers().get(header::ORIGIN).cloned();
    let preflight = request.method() == Method::OPTIONS && origin.is_some();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = match check(&app.config, &request, preflight) {
        Err(refused) => refused.into_response(),
        Ok(()) if preflight => StatusCode::NO_CONTENT.into_response(),
        Ok(()) => match Guarded::new(next.run(request)).await {
            Ok(response) => response,
            Err(panicked) => panicked.into_response(),
        },
    };
    let status = response.status();
    if status != StatusCode::FORBIDDEN {
        allow(origin, preflight, response.headers_mut());
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let milliseconds = start.elapsed().as_millis() as u64;
    // A path is the client's text: only its beginning is worth a line.
    let path: String = path.chars().take(128).collect();
    tracing::debug!(%id, %method, ?path, status = status.as_u16(), milliseconds, "answered");
    response
}

fn check(config: &HttpConfig, request: &Request, preflight: bool) -> Result<(), ApiError> {
    let headers = request.headers();
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().map_or(Ok(""), HeaderValue::to_str);
    let host = host.map_err(|_| ApiError::Host("(not text)".to_owned()))?;
    if hosts.next().is_some() {
        return Err(ApiError::Host("(given twice)".to_owned()));
    }
    check_host(config, host)?;
    if let Some(authority) = request.uri().authority() {
        check_host(config, authority.as_str())?;
    }
    for origin in headers.get_all(header::ORIGIN) {
        check_origin(config, origin, host)?;
    }
    // A preflight cannot carry the key.
    if preflight || OPEN.contains(&request.uri().path()) {
        return Ok(());
    }
    check_key(config, headers)
}

fn check_host(config: &HttpConfig, host: &str) -> Result<(), ApiError> {
    let name = host_name(host);
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let known = match address.parse::<IpAddr>() {
        Ok(ip) => config.beyond_loopback || ip.is_loopback() || ip.is_unspecified(),
        Err(_) => name == "localhost" || name.ends_with(".localhost"),
    };
    let allowed = |a: &String| a == "*" || host_name(a) == name;
    if !name.is_empty() && (known || config.allowed_hosts.iter().any(allowed)) {
        return Ok(());
    }
    Err(ApiError::Host(host.chars().take(128).collect()))
}

/// The name without port and final dot, in lower case.
fn host_name(host: &str) -> String {
    let name = match host.rfind(':') {
        Some(at) if !host[at..].contains(']') => &host[..at],
        _ => host,
    };
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn check_origin(config: &HttpConfig, origin: &HeaderValue, host: &str) -> Result<(), ApiError> {
    let origin = String::from_utf8_lossy(origin.as_bytes()).into_owned();
    let own = ["http://", "https://"].iter().any(|scheme| {
        origin
            .strip_prefix(scheme)
            .is_some_and(|o| o.eq_ignore_ascii_case(host))
    });
    let allowed = |a: &String| a == "*" || a.trim_end_matches('/').eq_ignore_ascii_case(&origin);
    if own || config.allowed_origins.iter().any(allowed) {
        return Ok(());
    }
    Err(ApiError::Origin(origin.chars().take(128).collect()))
}

/// The API key that a request carries.
pub(super) fn given_key(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let value = value.as_bytes();
        let (scheme, key) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
    });
    let given = bearer.or_else(|| headers.get(API_KEY).map(HeaderValue::as_bytes));
    given.map(<[u8]>::trim_ascii)
}

fn check_key(config: &HttpConfig, headers: &HeaderMap) -> Result<(), ApiError> {
    if config.api_keys.is_empty() {
        return Ok(());
    }
    let Some(given) = given_key(headers) else {
        return Err(ApiError::ApiKey(false));
    };
    // Every key is compared, whichever fits.
    let fits = config
        .api_keys
        .iter()
        .fold(false, |fits, key| fits | equal(given, key.as_bytes()));
    if fits {
        Ok(())
    } else {
        Err(ApiError::ApiKey(true))
    }
}

/// Equality whose time depends on the lengths alone: every byte is looked at.
fn equal(given: &[u8], key: &[u8]) -> bool {
    let mut differences = u8::from(given.len() != key.len());
    for (i, byte) in given.iter().enumerate() {
        let other = key.get(i % key.len().max(1)).copied().unwrap_or_default();
        differences = black_box(differences | (byte ^ other));
    }
    black_box(differences) == 0
}

/// What a browser wants to hear for a page of an allowed origin.
fn allow(origin: Option<HeaderValue>, preflight: bool, headers: &mut HeaderMap) {
    let Some(origin) = origin else { return };
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::VARY, HeaderValue::from_static("origin"));
    if preflight {
        let methods = HeaderValue::from_static("GET, POST");
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        let allowed = HeaderValue::from_static(
            "authorization, content-type, x-api-key, x-request-timeout-ms",
        );
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_we_know_or_addresses_we_listen_at() {
        let near = HttpConfig {
            allowed_hosts: vec!["box.lan".to_owned()],
            ..HttpConfig::default()
        };
        let far = HttpConfig {
            beyond_loopback: true,
            ..near.clone()
        };
        let fine = |config, host| check_host(config, host).is_ok();
        for host in [
            "localhost",
            "LOCALHOST:8000",
            "127.0.0.1:1",
            "127.9.9.9",
            "[::1]:80",
            "box.lan.",
            "a.localhost",
        ] {
            assert!(fine(&near, host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "192.168.1.5",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "[::2]",
            ":80",
            "x@127.0.0.1",
        ] {
            assert!(!fine(&near, host), "{host}");
        }
        assert!(fine(&far, "192.168.1.5:8000") && fine(&far, "[fe80::1]"));
        assert!(!fine(&far, "evil.example"));
    }

    #[test]
    fn keys_are_equal_only_to_themselves() {
        assert!(equal(b"secret", b"secret"));
        for other in ["", "secre", "secrets", "Secret", "secretsecret"] {
            assert!(!equal(other.as_bytes(), b"secret"), "{other}");
        }
        assert!(!equal(b"a", b""));
    }
}
