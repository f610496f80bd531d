// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reference page `docs/http.md`, from the table of fields, the limits and the errors.

use std::fmt::Write;
use std::time::Duration;

use super::error::{ApiError as E, Room};
use super::limits::Limits;
use super::table::{Endpoint, Rule, of};

const INTRO: &str = "\
<!-- Made from the code's tables by `UPDATE_DOCS=1 cargo test -p metrale-server --test http_page`; a test holds it. -->

# HTTP API of `met serve`

The API is OpenAI's. A field of a request is honoured, refused by name, or in the table of fields that cannot change an
answer; a name that is none of these is refused, with the near one. `null` counts as absent. What a request leaves out
is settled by flag, then the checkpoint's generation_config, then OpenAI's default; `GET /serve-config` shows the result
and where each value came from.

| Path | Gives |
|---|---|
| `POST /v1/chat/completions` | an answer to a chat; with `stream`, server-sent events |
| `POST /v1/completions` | a completion of each prompt |
| `GET /v1/events` | what the server does, as server-sent events: requests as they start and end, the engine's counts each second; no prompts, no answers |
| `GET /v1/models`, `/v1/models/{id}` | the served model, with `max_model_len` |
| `POST /tokenize`, `/detokenize` | text to ids as a request would run on them, and back; a text of more than 256 KiB must not be far beyond the context |
| `GET /health`, `/ready` | 200 only if a request sent now would be taken; else 503 with `loading`, `draining` or `failed` and why |
| `GET /health/live` | 200 as long as the process answers |
| `GET /metrics` | Prometheus text, under vLLM's names |
| `GET /serve-config` | defaults with their sources, limits, the tables below, the numerics digest |

`system_fingerprint` is the numerics digest. `metrale.seed` in an answer (in a stream: in its first event) is the seed
that was used; the same request with that seed under the same digest gives the same answer.

The answer ends before the stop text that is complete first; of several complete at the same byte, the longest.
`finish_reason` is `stop` or `length`. A stream that fails after it began ends with an event `{\"error\": ...}` and
without `[DONE]`. Messages are rendered by the checkpoint's template; control tokens in their text are text. In a plain
prompt they are control tokens.

A request may say how long it is worth while: `deadline_ms`, or the header `X-Request-Timeout-Ms` for whoever cannot change
bodies; the sooner counts, from the arrival of the request's header fields. When it has passed, waiting or running, the
request fails with `deadline_exceeded` (status 504 with `x-should-retry: false`, or the last event of its stream), and what
it held is free within a step. A client that closes its connection ends its request likewise.

With an API key, every path but `/health`, `/health/live` and `/ready` wants `Authorization: Bearer KEY`. Bodies need the
content type `application/json`. The Host must be a loopback name or address, or allowed by `--allowed-host`; where the
server listens beyond loopback, any address will do. Requests of web pages of other origins are refused unless allowed by
`--allowed-origin`.
";

/// The page.
#[must_use]
pub fn reference() -> String {
    let mut out = String::from(INTRO);
    let endpoints = [
        ("/v1/chat/completions", Endpoint::Chat),
        ("/v1/completions", Endpoint::Completions),
        ("/tokenize", Endpoint::Tokenize),
        ("/detokenize", Endpoint::Detokenize),
    ];
    for (path, endpoint) in endpoints {
        fields(&mut out, path, endpoint);
    }
    limits(&mut out);
    errors(&mut out);
    out
}

// Writing to a string cannot fail.
macro_rules! put {
    ($out:expr, $($rest:tt)*) => {{ let _ = writeln!($out, $($rest)*); }};
}

fn fields(out: &mut String, path: &str, endpoint: Endpoint) {
    put!(
        out,
        "\n## Fields of `POST {path}`\n\n| Field | |\n|---|---|"
    );
    for f in of(endpoint) {
        let rule = match f.rule {
            Rule::Honoured(what) => what.to_owned(),
            Rule::Inert(why) => format!("cannot change an answer: {why}"),
            Rule::Only(value, why) => format!("only `{value}`: {why}"),
            Rule::Refused(why) => format!("refused: {why}"),
        };
        put!(out, "| `{}` | {rule} |", f.name);
    }
}

fn limits(out: &mut String) {
    put!(
        out,
        "\n## Limits\n\nTimes in seconds.\n\n| Limit | Default |\n|---|---|"
    );
    let shown = Limits::default().describe();
    for (name, value) in shown.as_object().into_iter().flatten() {
        put!(out, "| `{name}` | {value} |");
    }
}

fn errors(out: &mut String) {
    put!(
        out,
        "\n## Errors\n\n`{{\"error\": {{\"message\", \"type\", \"param\", \"code\"}}}}`; `param` names the field, with its \
         path.\n\n| Code | Status | Type |\n|---|---|---|"
    );
    for e in examples() {
        put!(out, "| `{}` | {} | `{}` |", e.code(), e.status(), e.kind());
    }
}

/// One error of each code.
fn examples() -> Vec<E> {
    let text = String::new;
    let path = text;
    vec![
        E::InvalidJson(text()),
        E::DuplicateKey(text()),
        E::TooDeep(0),
        E::TooManyValues(0),
        E::Missing {
            path: path(),
            why: text(),
        },
        E::WrongType {
            path: path(),
            expected: text(),
            got: text(),
        },
        E::InvalidValue {
            path: path(),
            why: text(),
        },
        E::Unknown {
            path: path(),
            near: None,
        },
        E::Unsupported {
            path: path(),
            why: text(),
        },
        E::ContextLength {
            room: Room {
                tokens: 0,
                pool: false,
            },
            prompt: 0,
            answer: 0,
        },
        E::Template(text()),
        E::NoToken(text()),
        E::ApiKey(false),
        E::Host(text()),
        E::Origin(text()),
        E::NotFound(text()),
        E::ModelNotFound {
            asked: text(),
            served: text(),
        },
        E::Method {
            path: path(),
            method: text(),
        },
        E::BodyTimeout(Duration::ZERO),
        E::BodyTooLarge(0),
        E::ContentType(text()),
        E::ContentEncoding(text()),
        E::Busy {
            what: text(),
            retry_after: Duration::ZERO,
        },
        E::Generation(text()),
        E::Checkpoint(text()),
        E::Internal(text()),
        E::Loading,
        E::Draining,
        E::EngineFailed(text()),
        E::Deadline(text()),
    ]
}
