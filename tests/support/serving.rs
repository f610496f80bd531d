// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two requests on a small engine, stepped by hand.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrale_model_engine::engine::{EngineDriver, Populator, assemble, step_limits};
use metrale_model_engine::{EngineOptions, TransformerModel};
use metrale_sampling::Sampling;
use metrale_scheduler::{Delivery, Event, Health, PlannerLimits, Request, RequestId, Turn};

use super::{Result, Setup, on_gpu};

/// A driver whose KV pool is populated: what is preempted follows from the pool's size, not from how far its population has come.
pub(crate) fn populated(
    model: TransformerModel,
    options: EngineOptions,
) -> Result<(EngineDriver, Populator)> {
    let (driver, mut populator) = assemble(model, options)?;
    populator.wait();
    Ok((driver, populator))
}

/// Limits so small that prefill goes in chunks, and a pool of twelve blocks.
pub(crate) fn small() -> (Setup, PlannerLimits) {
    let limits = PlannerLimits {
        max_prefill_tokens: 13,
        max_rows: 16,
        max_history: 64,
        max_bias: 8,
        max_num_seqs: 3,
        max_logits_rows: 3,
        max_seq_len: 64,
        ..PlannerLimits::default()
    };
    (Setup::new(step_limits(&limits), 12), limits)
}

/// Two requests for `tokens` tokens each: their last events, and the health afterwards. A step that has not ended after a
/// second has hung; on class cpu, where a hung step is a virtual one, after no time.
pub(crate) fn serve(
    model: TransformerModel,
    limits: PlannerLimits,
    tokens: u32,
) -> Result<(Vec<Event>, Health)> {
    let options = EngineOptions {
        limits,
        step_deadline: Duration::from_secs(u64::from(on_gpu())),
        ..EngineOptions::default()
    };
    let (mut driver, _populator) = assemble(model, options)?;
    let handle = driver.handle();
    let events: Arc<Mutex<Vec<Event>>> = Arc::default();
    for (id, prompt) in [(1, vec![5; 20]), (2, vec![6, 7, 8])] {
        let events = Arc::clone(&events);
        let sink = move |event: Event| {
            if event.is_last() {
                events.lock().unwrap_or_else(|e| e.into_inner()).push(event);
            }
            Delivery::Taken
        };
        let request = Request::new(RequestId(id), prompt, Sampling::greedy(), tokens);
        handle.submit(request, Box::new(sink))?;
    }
    for _ in 0..200 {
        if !matches!(driver.turn(), Turn::Ran | Turn::Waiting) {
            break;
        }
    }
    let events = events.lock().map_err(|e| e.to_string())?.clone();
    Ok((events, handle.health()))
}

/// One turn; where requests wait for blocks that the populator is about to hand out, with a pause, as in the engine's own loop.
pub(crate) fn turn(driver: &mut EngineDriver) -> Turn {
    let turn = driver.turn();
    if turn == Turn::Waiting {
        std::thread::sleep(Duration::from_millis(1));
    }
    turn
}
