// SPDX-License-Identifier: MIT OR Apache-2.0
//! A prompt of two thousand tokens, all but the last of them cached, against a decode step. Target: at most 1.2 times.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use metrale_model_engine::EngineOptions;
use metrale_model_engine::engine::assemble;
use metrale_sampling::Sampling;
use metrale_scheduler::{Delivery, Event, Request, RequestId, Turn};
use metrale_server::assembly::{LoadOptions, open};

const PROMPT: u32 = 2048;

pub(crate) fn prefix(model: &Path) {
    let mut options = LoadOptions::new(model);
    options.max_seq_len = Some(4096);
    options.max_num_seqs = Some(4);
    options.kv_bytes = Some(2 << 30);
    let opened = open(options).unwrap();
    let engine = EngineOptions {
        limits: opened.limits.clone(),
        ..EngineOptions::default()
    };
    let (mut driver, _populator) = assemble(opened.model(|_| ()).unwrap(), engine).unwrap();
    let handle = driver.handle();
    let prompt: Arc<[u32]> = (0..PROMPT).map(|i| 100 + i * 7 % 4000).collect();
    let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
    // The time to the first token, and between the others.
    let mut run = |id: u64, tokens: u32| {
        let seen = Arc::clone(&times);
        let sink = move |event| {
            if matches!(event, Event::Token { .. }) {
                seen.lock().unwrap().push(Instant::now());
            }
            Delivery::Taken
        };
        let request = Request::new(
            RequestId(id),
            Arc::clone(&prompt),
            Sampling::greedy(),
            tokens,
        );
        let start = Instant::now();
        handle.submit(request, Box::new(sink)).unwrap();
        while driver.turn() != Turn::Idle {}
        let times = std::mem::take(&mut *times.lock().unwrap());
        let between = times.windows(2).map(|w| w[1] - w[0]).collect::<Vec<_>>();
        (times[0] - start, between)
    };
    let (cold, _) = run(1, 2);
    let (mut warm, mut decode) = (Vec::new(), Vec::new());
    for id in 0..15 {
        warm.push(run(10 + id, 1).0);
        decode.extend(run(100 + id, 4).1);
    }
    let median = |mut all: Vec<Duration>| {
        all.sort_unstable();
        all[all.len() / 2].as_secs_f64() * 1e3
    };
    let (warm, decode) = (median(warm), median(decode));
    println!(
        "prompt of {PROMPT} tokens: cold {:.0} ms, warm {warm:.2} ms; a decode step there {decode:.2} ms: {:.2} times",
        cold.as_secs_f64() * 1e3,
        warm / decode
    );
}
