// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server on a port of its own, and what the tests need around it.

mod client;
mod engine;
mod model;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use metrale_server::api::limits::Limits;
use metrale_server::engine_face::{ModelCard, SamplingDefaults, ServedModel, Setting};
use metrale_server::http::{Ambient, App, Ended, HttpConfig, Signals, serve};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) use client::{Reply, raw, send};
pub(crate) use engine::{Script, ScriptedEngine};
pub(crate) use model::{PairTemplate, ToyModel};
use serde_json::Value;

/// A clock that stands still and numbers that count up.
struct Still(std::sync::atomic::AtomicU64);

impl Ambient for Still {
    fn unix_seconds(&self) -> u64 {
        1_700_000_000
    }
    fn random(&self) -> u64 {
        self.0
            .fetch_add(1 << 11, std::sync::atomic::Ordering::Relaxed)
    }
}

/// A running server.
pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    pub(crate) app: Arc<App>,
    pub(crate) engine: Arc<ScriptedEngine>,
    drain: Option<oneshot::Sender<()>>,
    stop: Option<oneshot::Sender<()>>,
    leave: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<std::io::Result<Ended>>>,
    runtime: Runtime,
}

/// The name the toy model is served under.
pub(crate) const MODEL: &str = "toy/model";
/// Its context length.
pub(crate) const CONTEXT: u32 = 256;

/// Limits small enough that a test sees them.
pub(crate) fn limits() -> Limits {
    Limits {
        body_bytes: 16 << 20,
        header_timeout: Duration::from_millis(400),
        body_idle: Duration::from_millis(400),
        body_timeout: Duration::from_secs(2),
        write_stall: Duration::from_millis(400),
        drain: Duration::from_secs(5),
        ..Limits::default()
    }
}

/// The usual configuration.
pub(crate) fn config() -> HttpConfig {
    HttpConfig {
        served_names: vec![MODEL.to_owned(), "alias".to_owned()],
        limits: limits(),
        ..HttpConfig::default()
    }
}

/// The toy model with `engine`.
pub(crate) fn served(engine: Arc<ScriptedEngine>) -> ServedModel {
    ServedModel {
        engine,
        text: Arc::new(ToyModel::new()),
        template: Some(Arc::new(PairTemplate)),
        card: ModelCard {
            max_model_len: CONTEXT,
            pool_bound: false,
            digest: "d1gest".to_owned(),
            created: 1_600_000_000,
            defaults: SamplingDefaults::default(),
            by_priority: false,
            settings: vec![Setting {
                name: "max-num-seqs".to_owned(),
                value: 32.into(),
                source: "default".to_owned(),
            }],
        },
    }
}

impl Server {
    /// A server whose engine answers `text` to everything.
    pub(crate) fn saying(text: &str) -> Server {
        Server::new(config(), Script::say(text))
    }

    /// A server whose engine follows `script`.
    pub(crate) fn new(config: HttpConfig, script: Script) -> Server {
        let server = Server::loading(config, script);
        server.app.slot.ready(served(Arc::clone(&server.engine)));
        server
    }

    /// A server whose model is not loaded yet.
    pub(crate) fn loading(config: HttpConfig, script: Script) -> Server {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("runtime");
        let app = App::new(config, Box::new(Still(0.into())));
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
            .expect("bind");
        let addr = listener.local_addr().expect("address");
        let (drain, drained) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let (leave, left) = oneshot::channel();
        let wait = |r: oneshot::Receiver<()>| async move {
            if r.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let signals = Signals {
            drain: Box::pin(wait(drained)),
            stop: Box::pin(wait(stopped)),
            leave: Box::pin(wait(left)),
        };
        let task = runtime.spawn(serve(listener, Arc::clone(&app), signals));
        Server {
            addr,
            app,
            engine: Arc::new(ScriptedEngine::new(script)),
            drain: Some(drain),
            stop: Some(stop),
            leave: Some(leave),
            task: Some(task),
            runtime,
        }
    }

    /// The first signal.
    pub(crate) fn signal_drain(&mut self) {
        let sender = self.drain.take().expect("one drain");
        sender.send(()).expect("the server runs");
    }

    /// The second signal.
    pub(crate) fn signal_stop(&mut self) {
        let sender = self.stop.take().expect("one stop");
        sender.send(()).expect("the server runs");
    }

    /// Another server is to go on with the socket.
    pub(crate) fn signal_leave(&mut self) {
        let sender = self.leave.take().expect("one leave");
        sender.send(()).expect("the server runs");
    }

    /// How the server ended.
    pub(crate) fn ended(&mut self) -> Ended {
        let task = self.task.take().expect("one end");
        let ended = self.runtime.block_on(task);
        ended.expect("no panic").expect("no error")
    }

    /// POST of a JSON body.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        let body = body.to_string();
        send(
            self.addr,
            "POST",
            path,
            &[("content-type", "application/json")],
            body.as_bytes(),
        )
    }

    /// GET.
    pub(crate) fn get(&self, path: &str) -> Reply {
        send(self.addr, "GET", path, &[], b"")
    }

    /// A chat with `fields` beside one user message.
    pub(crate) fn chat(&self, fields: &Value) -> Reply {
        let mut body = serde_json::json!({"messages": [{"role": "user", "content": "hi"}]});
        merge(&mut body, fields);
        self.post("/v1/chat/completions", &body)
    }

    /// A completion of `hi` with `fields`.
    pub(crate) fn complete(&self, fields: &Value) -> Reply {
        let mut body = serde_json::json!({"prompt": "hi"});
        merge(&mut body, fields);
        self.post("/v1/completions", &body)
    }
}

fn merge(body: &mut Value, fields: &Value) {
    let fields = fields.as_object().expect("an object");
    for (name, value) in fields {
        body[name] = value.clone();
    }
}
