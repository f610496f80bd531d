// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults inside the real engine: who fails with whom.

mod support;

use std::fs;
use std::sync::{Arc, Mutex};

use metrale_model_engine::EngineOptions;
use metrale_model_engine::engine::{assemble, step_limits};
use metrale_model_weights::Checkpoint;
use metrale_sampling::Sampling;
use metrale_scheduler::{
    Delivery, Event, FaultKind, PlannerLimits, Request, RequestId, Scope, Turn,
};
use support::serving::turn;
use support::{Result, Setup, TempCopy, fixture};

/// A token whose embedding row is made NaN.
const POISON: u32 = 7;

type Events = Arc<Mutex<Vec<Event>>>;

fn sink(events: &Events) -> Box<dyn metrale_scheduler::EventSink> {
    let events = Arc::clone(events);
    Box::new(move |event| {
        events.lock().unwrap_or_else(|e| e.into_inner()).push(event);
        Delivery::Taken
    })
}

fn hashes(events: &Events) -> Vec<u64> {
    let events = events.lock().unwrap_or_else(|e| e.into_inner());
    let hash = |e: &Event| match e {
        Event::Token { row_hash, .. } => *row_hash,
        _ => None,
    };
    events.iter().filter_map(hash).collect()
}

/// A copy of the tiny llama in which token [`POISON`] embeds to NaN.
fn poisoned() -> Result<TempCopy> {
    let copy = TempCopy::of(&fixture("llama"))?;
    let checkpoint = Checkpoint::open(copy.path())?;
    let store = checkpoint.store.as_ref().ok_or("no weights")?;
    let embed = store
        .get("model.embed_tokens.weight")
        .ok_or("no embedding")?;
    let file = copy.path().join("model.safetensors");
    let mut bytes = fs::read(&file)?;
    let at = (embed.offset + u64::from(POISON) * embed.row_bytes()) as usize;
    for value in bytes[at..at + embed.row_bytes() as usize].chunks_exact_mut(2) {
        value.copy_from_slice(&[0xc0, 0x7f]); // bf16 NaN
    }
    fs::write(&file, bytes)?;
    Ok(copy)
}

#[test]
fn survival_44_nan_logits_in_one_row_fail_that_request_alone() {
    let copy = poisoned().unwrap();
    let limits = PlannerLimits {
        max_num_seqs: 4,
        max_logits_rows: 4,
        max_seq_len: 64,
        ..PlannerLimits::default()
    };
    let step = step_limits(&limits);
    // Few blocks, so that those which held NaN are used again.
    let model = Setup::new(step, 6).load(copy.path()).unwrap();
    let options = EngineOptions {
        limits,
        row_hashes: true,
        ..EngineOptions::default()
    };
    let (mut driver, _populator) = assemble(model, options).unwrap();
    let handle = driver.handle();
    let request = |id: u64, poison: bool| {
        let mut prompt: Vec<u32> = (0..20).map(|i| 10 + i).collect();
        if poison {
            prompt[3] = POISON;
        }
        Request::new(RequestId(id), prompt, Sampling::greedy(), 8)
    };
    let mut rest = |until: &str| {
        for _ in 0..1000 {
            if turn(&mut driver) == Turn::Idle {
                return;
            }
        }
        panic!("the driver does not come to rest: {until}");
    };
    let alone = Events::default();
    handle.submit(request(1, false), sink(&alone)).unwrap();
    rest("alone");
    let want = hashes(&alone);
    assert_eq!(want.len(), 8);

    let (bad, good) = (Events::default(), Events::default());
    handle.submit(request(2, true), sink(&bad)).unwrap();
    handle.submit(request(3, false), sink(&good)).unwrap();
    rest("together");
    let events = bad.lock().unwrap();
    let Some(Event::Failed(fault)) = events.last() else {
        panic!("it did not fail: {events:?}")
    };
    assert_eq!(
        (fault.scope, fault.kind),
        (Scope::Row, FaultKind::NonFinite)
    );
    assert_eq!(
        hashes(&good),
        want,
        "the neighbour of a NaN has other logits"
    );

    let after = Events::default();
    handle.submit(request(4, false), sink(&after)).unwrap();
    let mut other = request(5, false);
    other.prompt = (0..40).map(|i| 100 + i).collect();
    let fresh = Events::default();
    handle.submit(other.clone(), sink(&fresh)).unwrap();
    rest("after");
    assert_eq!(
        hashes(&after),
        want,
        "blocks that held NaN changed a later answer"
    );
    assert!(matches!(
        fresh.lock().unwrap().last(),
        Some(Event::Finished { .. })
    ));
    let stats = handle.stats();
    assert_eq!(stats.kv_available, stats.kv_blocks, "blocks were lost");
}
