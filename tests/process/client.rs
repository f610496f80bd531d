// SPDX-License-Identifier: MIT OR Apache-2.0
//! An HTTP client of a running `met`.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use serde_json::{Value, json};
use ureq::{Agent, Body, BodyReader};

use crate::met::{Met, until};

/// A whole response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<String>,
    pub(crate) text: String,
}

impl Reply {
    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    /// The body of a success as JSON.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json()
    }

    /// Status and `code` of an error.
    pub(crate) fn error(&self) -> (u16, String) {
        let code = self.json()["error"]["code"].as_str().map(str::to_owned);
        (self.status, code.unwrap_or_default())
    }
}

/// One request a connection, no proxy, statuses as they are.
fn agent() -> Agent {
    Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None)
        .max_idle_connections(0)
        .timeout_global(Some(Duration::from_secs(60)))
        .build()
        .into()
}

impl Met {
    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// GET.
    pub(crate) fn get(&self, path: &str) -> Reply {
        reply(agent().get(self.url(path)).call().unwrap())
    }

    /// POST.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        reply(self.send(path, body))
    }

    /// POST; the response is read as it comes.
    pub(crate) fn stream(&self, path: &str, body: &Value) -> Stream {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let response = self.send(path, &body);
        assert_eq!(response.status(), 200);
        Stream(BufReader::new(response.into_body().into_reader()))
    }

    fn send(&self, path: &str, body: &Value) -> ureq::http::Response<Body> {
        agent()
            .post(self.url(path))
            .content_type("application/json")
            .send(body.to_string())
            .unwrap()
    }

    /// A number of the metrics page; `name` without its labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").text;
        let line = page.lines().find(|l| l.split('{').next() == Some(name));
        let value = line.and_then(|l| l.rsplit(' ').next());
        value
            .unwrap_or_else(|| panic!("no {name} in {page}"))
            .parse()
            .unwrap()
    }

    /// Waits until so many sequences run.
    pub(crate) fn wait_running(&self, count: usize) {
        self.wait_metric("vllm:num_requests_running", count as f64);
    }

    /// Waits until a metric has this value: an answer can be there before the turn that counts its end.
    pub(crate) fn wait_metric(&self, name: &str, value: f64) {
        until(name, || (self.metric(name) == value).then_some(()));
    }
}

fn reply(mut response: ureq::http::Response<Body>) -> Reply {
    let header = response.headers().get("retry-after");
    Reply {
        status: response.status().as_u16(),
        retry_after: header.map(|v| v.to_str().unwrap().to_owned()),
        text: response.body_mut().read_to_string().unwrap(),
    }
}

/// A stream of events; dropped, its connection is closed.
pub(crate) struct Stream(BufReader<BodyReader<'static>>);

impl Stream {
    /// The next event's data; `None`: the connection ended, well or not.
    pub(crate) fn next(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            match self.0.read_line(&mut line) {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return Some(data.trim_end().to_owned());
            }
        }
    }

    /// All events to come. `[DONE]` must be the last.
    pub(crate) fn finish(mut self) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let data = self
                .next()
                .unwrap_or_else(|| panic!("cut after {events:?}"));
            if data == "[DONE]" {
                assert_eq!(self.next(), None);
                return events;
            }
            events.push(serde_json::from_str(&data).unwrap());
        }
    }
}

/// The text of the events of one choice.
pub(crate) fn text(events: &[Value]) -> String {
    let choices = events.iter().filter_map(|e| e["choices"].get(0));
    let parts = choices.filter_map(|c| c["text"].as_str().or(c["delta"]["content"].as_str()));
    parts.collect()
}
