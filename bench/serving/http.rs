// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a streamed token and a short request cost. Targets: 10 us and 300 us of user time.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use metrale_cache::{CacheOptions, KvCache};
use metrale_model_engine::adapters::CacheAccounts;
use metrale_model_engine::engine::MonotonicClock;
use metrale_model_weights::Checkpoint;
use metrale_sampling::Sampling;
use metrale_scheduler::{
    Delivery, DeviceRouter, Driver, Event, Fault, Handle, Lookahead, NoDrafts, NoSpill,
    PlannerLimits, Progress, Refusal, Routers, RowOutcome, StepOutcome, StepPlan,
};
use metrale_server::assembly::text_of;
use metrale_server::engine_face::{
    Engine, EngineState, EngineStats, EventStream, ModelCard, Request, SamplingDefaults,
    ServedModel,
};
use metrale_server::http::{App, HttpConfig, Signals, SystemAmbient, serve};
use tokio::sync::mpsc;

const CLIENTS: usize = 16;
const STREAMS: usize = 20;
const TOKENS: usize = 256;
const SHORT: usize = 200;

/// A device that takes no time.
#[derive(Default)]
struct Instantly(StepOutcome);

impl DeviceRouter for Instantly {
    type Sampling = Sampling;

    fn submit(&mut self, plan: &StepPlan<Sampling>) -> Result<(), Fault> {
        self.0.clear();
        for row in &plan.logits {
            self.0
                .push(RowOutcome::new(300 + row.position % 1000, -1.0), []);
        }
        Ok(())
    }

    fn wait(&mut self, _timeout: Duration, outcome: &mut StepOutcome) -> Result<Progress, Fault> {
        std::mem::swap(outcome, &mut self.0);
        Ok(Progress::Done)
    }

    fn lookahead(&self) -> Lookahead {
        Lookahead::Late
    }

    fn recover(&mut self, _fault: &Fault) -> Result<(), Fault> {
        Ok(())
    }
}

/// The engine face over it, as the server's own is.
struct Scripted(Handle<Sampling>);

impl Engine for Scripted {
    fn generate(&self, mut request: Request) -> Result<EventStream, Refusal> {
        request.id = self.0.fresh_id();
        let id = request.id;
        let (sender, receiver) = mpsc::unbounded_channel();
        let sink = move |event: Event| match sender.send(event) {
            Ok(()) => Delivery::Taken,
            Err(_) => Delivery::Gone,
        };
        self.0.submit(request, Box::new(sink))?;
        let handle = self.0.clone();
        Ok(EventStream::new(receiver, move || handle.cancel(id)))
    }

    fn shut_down(&self) {
        self.0.shutdown();
    }

    fn state(&self) -> EngineState {
        EngineState::Ready
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }
}

/// Serves on a scripted device and lets client processes ask.
pub(crate) fn costs(model: &Path) {
    let limits = PlannerLimits {
        max_num_seqs: CLIENTS as u32,
        ..PlannerLimits::default()
    };
    let blocks = CLIENTS as u32 * limits.max_seq_len / 16;
    let cache = KvCache::new(CacheOptions {
        blocks,
        slots: limits.max_num_seqs,
        ..CacheOptions::default()
    });
    let accounts = CacheAccounts::new(cache, Arc::new(AtomicU32::new(blocks)));
    let routers = Routers {
        device: Instantly::default(),
        clock: MonotonicClock::default(),
        spill: NoSpill,
        drafts: NoDrafts,
    };
    let driver = Driver::new(limits, routers, accounts).unwrap();
    let engine = Arc::new(Scripted(driver.handle()));
    driver.spawn("engine").unwrap();
    let (text, template) = text_of(&Checkpoint::open(model).unwrap()).unwrap();
    let app = App::new(
        HttpConfig {
            served_names: vec!["m".to_owned()],
            ..HttpConfig::default()
        },
        Box::new(SystemAmbient),
    );
    app.slot.ready(ServedModel {
        engine,
        text,
        template,
        card: ModelCard {
            max_model_len: 4096,
            pool_bound: false,
            digest: "bench".to_owned(),
            created: 0,
            defaults: SamplingDefaults::default(),
            by_priority: false,
            settings: Vec::new(),
        },
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let listener = runtime
        .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
        .unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = runtime.spawn(serve(listener, app, Signals::never()));
    load(&address, "stream", 2); // warm
    let streams = load(&address, "stream", STREAMS);
    report(
        "streamed token",
        streams,
        (CLIENTS * STREAMS * TOKENS) as f64,
    );
    let short = load(&address, "short", SHORT);
    report("short request", short, (CLIENTS * SHORT) as f64);
    server.abort();
}

/// User and system seconds of this process, and seconds on the wall, while the clients ask.
fn load(address: &str, kind: &str, count: usize) -> (f64, f64, f64) {
    let program = std::env::current_exe().unwrap();
    let (user, system) = processor();
    let start = Instant::now();
    let clients: Vec<Child> = (0..CLIENTS)
        .map(|_| {
            Command::new(&program)
                .args(["client", address, kind, &count.to_string()])
                .spawn()
                .unwrap()
        })
        .collect();
    for mut client in clients {
        assert!(client.wait().unwrap().success());
    }
    let after = processor();
    (
        after.0 - user,
        after.1 - system,
        start.elapsed().as_secs_f64(),
    )
}

fn report(what: &str, (user, system, wall): (f64, f64, f64), count: f64) {
    println!(
        "{what}: {:.2} us user, {:.2} us system, over {count} ({:.0} a second)",
        user / count * 1e6,
        system / count * 1e6,
        count / wall
    );
}

/// Seconds of user and system time of this process, in ticks of a hundredth.
fn processor() -> (f64, f64) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let seconds = |at: usize| fields[at].parse::<f64>().unwrap() / 100.0;
    (seconds(11), seconds(12))
}

/// A client process: so many requests, one after the other, on one connection each.
pub(crate) fn client(arguments: &[String]) {
    let (address, stream) = (&arguments[0], arguments[1] == "stream");
    let tokens = if stream { TOKENS } else { 1 };
    let body = format!(
        r#"{{"prompt":"The capital of France","max_tokens":{tokens},"stream":{stream},"ignore_eos":true,"temperature":0}}"#
    );
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    for _ in 0..arguments[2].parse::<usize>().unwrap() {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200"));
    }
}
