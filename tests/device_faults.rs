// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a device can do to us, injected: memory that is not there, a step that never ends, a context that is lost.
//!
//! On class cpu a decorator plays them. With `TEST_DEVICE=cuda` in the environment they are real ones: the driver refuses an
//! allocation, a kernel traps, a kernel runs for ever. What loses a context loses it for the process: there each test that
//! does so wants a process of its own (`scripts/device/checks.sh` gives it one).

mod support;

use metrale_core::ArenaKind;
use metrale_gpu_runtime::FaultPlan;
use metrale_scheduler::{Event, FaultKind, Health, Scope};
use support::serving::{serve, small};
use support::{Result, faulty, fixture, on_gpu};

#[test]
fn survival_43_out_of_memory_at_every_allocation_names_it_and_keeps_nothing() {
    let (setup, _) = small();
    // Alive all the time, so that what a context takes for itself is in every figure.
    let watch = faulty(FaultPlan::default()).unwrap();
    let mut failed = 0;
    for allocation in 0..20 {
        let plan = FaultPlan {
            allocation: Some(allocation),
            ..FaultPlan::default()
        };
        let backend = faulty(plan).unwrap();
        let before = watch.free_memory();
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
        assert_eq!(watch.free_memory(), before, "allocation {allocation}");
    }
    // One per arena that holds anything; on a GPU also eight slots of the step ring and the step block.
    assert_eq!(failed, if on_gpu() { 6 + 8 + 1 } else { 6 });
}

#[test]
fn survival_43_a_plan_that_does_not_fit_names_the_arena_and_keeps_nothing() {
    let (mut setup, _) = small();
    setup.kv_blocks = 1 << 40;
    let backend = faulty(FaultPlan::default()).unwrap();
    let before = backend.free_memory();
    let error = setup.load_on(&fixture("llama"), backend.clone());
    let error = error.err().expect("no machine has so much").to_string();
    for words in ["has no room for the kv arena", "a smaller context"] {
        assert!(error.contains(words), "{words}: {error}");
    }
    assert_eq!(backend.free_memory(), before);
    for kind in ArenaKind::ALL {
        assert_eq!(backend.reserved(kind), 0, "{}", kind.name());
    }
    let (setup, limits) = small();
    let model = setup.load_on(&fixture("llama"), backend).unwrap();
    assert_eq!(serve(model, limits, 4).unwrap().1, Health::Serving);
}

/// The submit that starts the first step: those before it pack weights, one for each part (all fit into staging).
fn first_step() -> Result<u64> {
    let (setup, _) = small();
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
    let (setup, limits) = small();
    let model = setup.load_on(&fixture("llama"), faulty(plan)?)?;
    serve(model, limits, 20)
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

/// Any of the launches that pack weights; on a GPU, where one loses the context, the fourth.
#[test]
fn survival_42_a_launch_that_never_ends_while_weights_are_packed_is_an_error() {
    let (setup, _) = small();
    let launches = if on_gpu() {
        3..4
    } else {
        0..first_step().unwrap()
    };
    for launch in launches {
        let plan = FaultPlan {
            hang: Some(launch),
            ..FaultPlan::default()
        };
        let error = setup.load_on(&fixture("llama"), faulty(plan).unwrap());
        let error = error.err().expect("this launch hangs").to_string();
        let words = if on_gpu() { "hangs" } else { "never ended" };
        assert!(error.contains(words), "launch {launch}: {error}");
    }
}

/// A lost device is an error of the load at each of them, and says so.
#[test]
fn survival_43_a_device_that_is_lost_at_any_launch_of_the_load_is_an_error() {
    if on_gpu() {
        return; // a context is lost for the process: the decorator alone can do it so often
    }
    let (setup, _) = small();
    for launch in 0..first_step().unwrap() {
        let plan = FaultPlan {
            lose: Some(launch),
            ..FaultPlan::default()
        };
        let backend = faulty(plan).unwrap();
        let error = setup.load_on(&fixture("llama"), backend.clone());
        let error = error.err().expect("this launch loses it").to_string();
        assert!(error.contains("was lost"), "launch {launch}: {error}");
        for kind in ArenaKind::ALL {
            assert_eq!(backend.reserved(kind), 0, "{launch}: {}", kind.name());
        }
    }
}

#[test]
fn survival_43_a_sticky_device_error_fails_what_runs_and_turns_health_red() {
    let submits = if on_gpu() { 8..9 } else { 0..16 };
    for submit in submits {
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
