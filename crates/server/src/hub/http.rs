// SPDX-License-Identifier: MIT OR Apache-2.0
//! HTTP for the hub: redirects followed by hand, so that the token goes to the hub's own origin and nowhere else.

use std::time::Duration;

use ureq::http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use super::FetchError;

/// Redirects in a row. The hub uses one or two.
const REDIRECTS: usize = 8;

/// A client bound to one hub.
#[derive(Debug)]
pub(super) struct Client {
    agent: Agent,
    endpoint: Uri,
    token: Option<String>,
}

/// Which redirects to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Follow {
    /// All, without the token where they leave the hub.
    All,
    /// Those within the hub; one that leaves it is the answer.
    Hub,
}

impl Client {
    /// `certificates` is a PEM file's content that replaces the built-in roots.
    pub(super) fn new(
        endpoint: &str,
        token: Option<String>,
        certificates: Option<&[u8]>,
    ) -> Result<Self, FetchError> {
        let endpoint = endpoint.trim_end_matches('/');
        let uri: Uri = endpoint.parse().map_err(|_| bad_endpoint(endpoint))?;
        if !matches!(uri.scheme_str(), Some("http" | "https"))
            || uri.host().is_none_or(str::is_empty)
        {
            return Err(bad_endpoint(endpoint));
        }
        let mut tls = TlsConfig::builder();
        if let Some(pem) = certificates {
            let roots: Vec<Certificate<'static>> = parse_pem(pem)
                .filter_map(|item| match item {
                    Ok(PemItem::Certificate(c)) => Some(c),
                    _ => None,
                })
                .collect();
            if !roots.is_empty() {
                tls = tls.root_certs(RootCerts::new_with_certs(&roots));
            }
        }
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(Duration::from_secs(15)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .timeout_per_read(Some(Duration::from_secs(60)))
            .user_agent(concat!("metrale/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls.build())
            .build()
            .new_agent();
        Ok(Self {
            agent,
            endpoint: uri,
            token,
        })
    }

    /// The hub's host, for messages.
    pub(super) fn host(&self) -> &str {
        self.endpoint.authority().map_or("", |a| a.as_str())
    }

    /// The URL of a path (which begins with `/`) on the hub.
    pub(super) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.endpoint.to_string().trim_end_matches('/'))
    }

    /// Sends a request. The headers of every answer within the hub are shown to `seen`, redirects included.
    pub(super) fn send(
        &self,
        method: Method,
        url: &str,
        from: u64,
        follow: Follow,
        mut seen: impl FnMut(StatusCode, &HeaderMap),
    ) -> Result<Response<Body>, FetchError> {
        let mut uri: Uri = url.parse().map_err(|_| protocol(url, "not a URL"))?;
        for _ in 0..REDIRECTS {
            let at_home = same_origin(&uri, &self.endpoint);
            let mut request = Request::builder().method(method.clone()).uri(&uri);
            if let (true, Some(token)) = (at_home, &self.token) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            // Bytes as they are: a transfer that the server compresses could be neither resumed nor hashed.
            request = request.header(header::ACCEPT_ENCODING, "identity");
            if from > 0 {
                request = request.header(header::RANGE, format!("bytes={from}-"));
            }
            let shown = without_query(&uri);
            let request = request
                .body(())
                .map_err(|e| protocol(&shown, e.to_string()))?;
            let response = self.agent.run(request).map_err(|e| network(&shown, &e))?;
            if at_home {
                seen(response.status(), response.headers());
            }
            if !response.status().is_redirection() {
                return Ok(response);
            }
            let location = response
                .headers()
                .get(header::LOCATION)
                .and_then(|v| v.to_str().ok());
            let next = join(
                &uri,
                location.ok_or_else(|| protocol(&shown, "a redirect to nowhere"))?,
            )
            .ok_or_else(|| protocol(&shown, "a redirect to something that is not a URL"))?;
            if uri.scheme_str() == Some("https") && next.scheme_str() != Some("https") {
                return Err(protocol(
                    &shown,
                    "a redirect from https to an unprotected address",
                ));
            }
            if follow == Follow::Hub && !same_origin(&next, &self.endpoint) {
                return Ok(response);
            }
            uri = next;
        }
        Err(protocol(url, format!("more than {REDIRECTS} redirects")))
    }
}

/// The target of a redirect: absolute, or relative to the hub's own root.
fn join(base: &Uri, location: &str) -> Option<Uri> {
    if location.starts_with("http://") || location.starts_with("https://") {
        return location.parse().ok();
    }
    let scheme = base.scheme_str()?;
    if let Some(rest) = location.strip_prefix("//") {
        return format!("{scheme}://{rest}").parse().ok();
    }
    if !location.starts_with('/') {
        return None;
    }
    format!("{scheme}://{}{location}", base.authority()?)
        .parse()
        .ok()
}

fn same_origin(a: &Uri, b: &Uri) -> bool {
    let port = |u: &Uri| {
        u.port_u16().or(if u.scheme_str() == Some("https") {
            Some(443)
        } else {
            Some(80)
        })
    };
    let host = |u: &Uri| u.host().map(str::to_ascii_lowercase);
    a.scheme_str() == b.scheme_str() && host(a) == host(b) && port(a) == port(b)
}

/// A signed URL carries its secret in the query: it never enters a message.
fn without_query(uri: &Uri) -> String {
    let text = uri.to_string();
    text.split('?').next().unwrap_or_default().to_owned()
}

fn bad_endpoint(endpoint: &str) -> FetchError {
    FetchError::Name {
        name: endpoint.to_owned(),
        what: "hub address (HF_ENDPOINT: http:// or https:// and a host)",
    }
}

pub(super) fn protocol(url: &str, what: impl Into<String>) -> FetchError {
    FetchError::Protocol {
        url: url.split('?').next().unwrap_or_default().to_owned(),
        what: what.into(),
    }
}

fn network(url: &str, e: &ureq::Error) -> FetchError {
    match e {
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) => FetchError::Network {
            url: url.to_owned(),
            what: format!("{e} (behind a proxy with its own certificate, set SSL_CERT_FILE)"),
        },
        _ => FetchError::Network {
            url: url.to_owned(),
            what: e.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(s: &str) -> Uri {
        s.parse().unwrap()
    }

    #[test]
    fn origins() {
        assert!(same_origin(
            &uri("https://hub.example/a"),
            &uri("https://HUB.example:443/b")
        ));
        for other in [
            "http://hub.example",
            "https://hub.example:8443",
            "https://cdn.hub.example",
            "https://hub.example.evil",
        ] {
            assert!(
                !same_origin(&uri("https://hub.example"), &uri(other)),
                "{other}"
            );
        }
    }

    #[test]
    fn targets_of_redirects() {
        let base = uri("https://hub.example/a/b?c");
        assert_eq!(join(&base, "/x?y").unwrap(), uri("https://hub.example/x?y"));
        assert_eq!(
            join(&base, "//cdn.example/x").unwrap(),
            uri("https://cdn.example/x")
        );
        assert_eq!(
            join(&base, "https://cdn.example/x").unwrap(),
            uri("https://cdn.example/x")
        );
        assert!(join(&base, "file:///etc/passwd").is_none());
        assert!(join(&base, "x").is_none());
        assert_eq!(without_query(&base), "https://hub.example/a/b");
    }

    #[test]
    fn an_endpoint_is_a_web_address() {
        for bad in ["", "hub.example", "file:///x", "https://"] {
            assert!(Client::new(bad, None, None).is_err(), "{bad}");
        }
        let c = Client::new("https://hub.example/mirror/", None, None).unwrap();
        assert_eq!(c.url("/a"), "https://hub.example/mirror/a");
    }
}
