// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole models on decorated backends: every launch checked, and every fault that can be planned.

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrale_core::ArenaKind;
use metrale_gpu_runtime::{Checked, FaultPlan, Faulty, GpuBackend, HostBackend, HostOptions};
use metrale_model_engine::engine::assemble;
use metrale_model_engine::{EngineOptions, TransformerModel};
use metrale_sampling::Sampling;
use metrale_scheduler::{
    Delivery, Event, FaultKind, Health, PlannerLimits, Request, RequestId, Scope, Turn,
};
use support::{Result, Setup, fixture};

fn host() -> Result<HostBackend> {
    Ok(HostBackend::new(&HostOptions {
        threads: 2,
        ..HostOptions::default()
    })?)
}

/// Prefill in chunks, decode and a crowd, on a backend that walks launch by launch. Slow: each launch is compared with all
/// memory, so the steps are few.
#[test]
fn no_launch_of_a_whole_model_leaves_its_extents() {
    let cases = [
        ("llama", true),
        ("qwen3-tied", false),
        ("llama-gguf-q8_0", true),
        ("qwen3-gguf-q4_0", true),
    ];
    for (name, fuse) in cases {
        let (mut setup, limits) = setup();
        setup.fuse = fuse;
        let model = setup
            .load_on(&fixture(name), Arc::new(Checked::new(host().unwrap())))
            .unwrap();
        // A violation is a device fault that names the launch.
        let (events, health) = serve(model, limits, 4).unwrap();
        assert_eq!(events.len(), 2, "{name}");
        assert!(
            events.iter().all(|e| matches!(e, Event::Finished { .. })),
            "{name}: {events:?}"
        );
        assert_eq!(health, Health::Serving, "{name}");
    }
}

fn setup() -> (Setup, PlannerLimits) {
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
    let step = metrale_core::StepLimits {
        rows: limits.max_rows,
        logits_rows: 3,
        slots: 3,
        blocks_per_slot: 4,
        history: limits.max_history,
        bias: limits.max_bias,
    };
    (Setup::new(step, 12), limits)
}

#[test]
fn survival_43_out_of_memory_at_every_allocation_names_it_and_keeps_nothing() {
    let (setup, _) = setup();
    let mut failed = 0;
    for allocation in 0..20 {
        let plan = FaultPlan {
            allocation: Some(allocation),
            ..FaultPlan::default()
        };
        let backend = Arc::new(Faulty::new(host().unwrap(), plan));
        match setup.load_on(&fixture("llama"), backend.clone()) {
            Ok(_) => break,
            Err(error) => {
                assert!(error.to_string().contains("has no room for the"), "{error}");
                failed += 1;
            }
        }
        for kind in ArenaKind::ALL {
            assert_eq!(
                backend.reserved(kind),
                0,
                "allocation {allocation}: {} stays",
                kind.name()
            );
        }
    }
    // One per arena that holds anything.
    assert_eq!(failed, 6);
}

/// The submit that starts the first step: those before it pack weights, one for each part (all fit into staging).
fn first_step() -> Result<u64> {
    let (setup, _) = setup();
    let model = setup.load(&fixture("llama"))?;
    Ok(model
        .plan()
        .weights
        .iter()
        .map(|slot| slot.parts.len() as u64)
        .sum())
}

/// Two requests on a backend that fails as planned: their last events, and the health afterwards.
fn under(plan: FaultPlan) -> Result<(Vec<Event>, Health)> {
    let (setup, limits) = setup();
    let model = setup.load_on(&fixture("llama"), Arc::new(Faulty::new(host()?, plan)))?;
    serve(model, limits, 20)
}

/// Two requests for `tokens` tokens each: their last events, and the health afterwards.
fn serve(
    model: TransformerModel,
    limits: PlannerLimits,
    tokens: u32,
) -> Result<(Vec<Event>, Health)> {
    let options = EngineOptions {
        limits,
        step_deadline: Duration::ZERO,
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

#[test]
fn survival_42_a_step_that_never_ends_fails_what_runs_and_turns_health_red() {
    let plan = FaultPlan {
        hang: Some(first_step().unwrap() + 9),
        ..FaultPlan::default()
    };
    let (events, health) = under(plan).unwrap();
    assert_eq!(events.len(), 2);
    for event in &events {
        let Event::Failed(fault) = event else {
            panic!("{event:?}")
        };
        assert_eq!(
            (fault.scope, fault.kind),
            (Scope::Device, FaultKind::Device)
        );
    }
    assert!(
        matches!(&health, Health::Failed(why) if why.contains("hang")),
        "{health:?}"
    );
}

#[test]
fn survival_43_a_sticky_device_error_fails_what_runs_and_turns_health_red() {
    for submit in [0, 1, 8] {
        let plan = FaultPlan {
            lose: Some(first_step().unwrap() + submit),
            ..FaultPlan::default()
        };
        let (events, health) = under(plan).unwrap();
        assert_eq!(events.len(), 2, "submit {submit}");
        assert!(
            events
                .iter()
                .all(|e| matches!(e, Event::Failed(f) if f.scope == Scope::Device))
        );
        assert!(matches!(health, Health::Failed(_)), "{health:?}");
    }
}

#[test]
fn a_healthy_backend_under_the_same_test_finishes() {
    let (events, health) = under(FaultPlan::default()).unwrap();
    assert_eq!(events.len(), 2);
    assert!(
        events.iter().all(|e| matches!(e, Event::Finished { .. })),
        "{events:?}"
    );
    assert_eq!(health, Health::Serving);
}
