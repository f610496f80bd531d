// SPDX-License-Identifier: MIT OR Apache-2.0
//! The planner's rules, one by one.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::kv::Kv;
use common::model::answer;
use common::rig::{End, Rig, limits, prompt, request};
use common::script::Mishap;
use metrale_scheduler::{
    Effect, Event, FaultKind, FinishReason, KvAccounts, LimitsError, Lookahead, NoSpill, Planner,
    PlannerLimits, Refusal, Request, RequestId, RowOutcome, Scope, StepOutcome, StepPlan, Turn,
};

/// A request that no token stops.
fn endless(id: u64, prompt: Vec<u32>, max_tokens: u32) -> Request<u64> {
    Request {
        stop_tokens: Arc::default(),
        ..request(id, prompt, max_tokens)
    }
}

fn cached(rig: &Rig, id: u64) -> u32 {
    match rig.events(id)[0] {
        Event::Admitted { cached_tokens } => cached_tokens,
        ref other => panic!("{other:?}"),
    }
}

fn plans(rig: &Rig) -> Vec<StepPlan<u64>> {
    rig.seen.lock().unwrap().plans.clone()
}

/// (request, first position, rows) of each segment of the last plan.
fn last_plan(rig: &Rig) -> Vec<(u64, u32, u32)> {
    let plans = plans(rig);
    let segments = plans.last().unwrap().segments.iter();
    segments
        .map(|s| (s.request.0, s.first_position, s.rows.len() as u32))
        .collect()
}

#[test]
fn a_prompt_runs_in_chunks_beside_decoding_rows() {
    let mut rig = Rig::new(limits(), 40);
    rig.submit(endless(1, prompt(1, 8), 20)).unwrap();
    rig.turn();
    assert_eq!(last_plan(&rig), [(1, 0, 8)]);
    rig.submit(endless(2, prompt(2, 70), 4)).unwrap();
    rig.turn();
    assert_eq!(last_plan(&rig), [(1, 8, 1), (2, 0, 32)]);
    rig.turn();
    assert_eq!(last_plan(&rig), [(1, 9, 1), (2, 32, 32)]);
    assert_eq!(plans(&rig)[2].logits.len(), 1);
    rig.turn();
    assert_eq!(last_plan(&rig), [(1, 10, 1), (2, 64, 6)]);
    assert_eq!(plans(&rig)[3].logits.len(), 2);
    rig.run();
    rig.settle();
}

#[test]
fn two_short_prompts_share_a_chunk_budget() {
    let mut rig = Rig::new(limits(), 40);
    rig.submit(endless(1, prompt(1, 20), 2)).unwrap();
    rig.submit(endless(2, prompt(2, 20), 2)).unwrap();
    rig.turn();
    assert_eq!(last_plan(&rig), [(1, 0, 20), (2, 0, 12)]);
    rig.run();
    rig.settle();
}

#[test]
fn the_next_turn_of_a_chat_is_a_prefix_hit_on_the_answer() {
    let mut rig = Rig::new(limits(), 40);
    rig.submit(endless(1, prompt(1, 30), 25)).unwrap();
    rig.run();
    let mut second = prompt(1, 30);
    second.extend(rig.tokens(1));
    second.extend(prompt(9, 10));
    rig.submit(endless(2, second, 5)).unwrap();
    rig.run();
    // The KV of the last generated token was never needed, so never computed.
    assert_eq!(cached(&rig, 2), 30 + 25 - 1);
    rig.settle();
}

#[test]
fn an_equal_prompt_computes_its_last_token_alone() {
    let mut rig = Rig::new(limits(), 40);
    rig.submit(endless(1, prompt(1, 48), 1)).unwrap();
    rig.run();
    rig.submit(endless(2, prompt(1, 48), 3)).unwrap();
    rig.turn();
    assert_eq!(cached(&rig, 2), 47);
    assert_eq!(last_plan(&rig), [(2, 47, 1)]);
    assert_eq!(plans(&rig).last().unwrap().copies.len(), 1);
    rig.run();
    rig.settle();
}

#[test]
fn a_shared_prompt_is_computed_once() {
    let rows = |share_prefill| {
        let wide = PlannerLimits {
            max_prefill_tokens: 400,
            max_rows: 404,
            share_prefill,
            ..limits()
        };
        let mut rig = Rig::new(wide, 40);
        for id in 1..=4 {
            rig.submit(endless(id, prompt(1, 100), 3)).unwrap();
        }
        rig.run();
        rig.settle();
        rig.handle.stats().rows
    };
    // 96 tokens lie in whole blocks; each computes the 4 after them, and 2 of the tokens it generates.
    assert_eq!(rows(true), 96 + 4 * (4 + 2));
    assert_eq!(rows(false), 4 * (100 + 2));
}

/// Two compute the same in one step; the second changes over to the first one's blocks as it ends, and its slot is filled
/// anew in the next plan (the device checks that no table entry is written twice).
#[test]
fn a_change_of_blocks_is_forgotten_with_its_sequence() {
    let apart = PlannerLimits {
        max_num_seqs: 2,
        share_prefill: false,
        ..limits()
    };
    let mut rig = Rig::new(apart, 40);
    for id in 1..=2 {
        rig.submit(endless(id, prompt(1, 16), 0)).unwrap();
    }
    for id in 3..=4 {
        rig.submit(endless(id, prompt(id as u32, 16), 2)).unwrap();
    }
    rig.run();
    assert_eq!(plans(&rig)[0].segments.len(), 2);
    rig.settle();
}

#[test]
fn an_admission_leaves_a_block_for_each_that_runs() {
    let mut rig = Rig::new(limits(), 4);
    rig.submit(endless(1, prompt(1, 30), 20)).unwrap();
    rig.submit(endless(2, prompt(2, 20), 2)).unwrap();
    rig.turn();
    assert_eq!(last_plan(&rig), [(1, 0, 30)]);
    rig.run();
    rig.settle();
    assert_eq!(rig.preemptions(), 0);
}

#[test]
fn a_namespace_hits_only_its_own() {
    let mut rig = Rig::new(limits(), 40);
    for (id, namespace) in [(1, 5), (2, 6), (3, 5)] {
        let r = Request {
            namespace,
            ..endless(id, prompt(1, 40), 1)
        };
        rig.submit(r).unwrap();
        rig.run();
    }
    assert_eq!((cached(&rig, 2), cached(&rig, 3)), (0, 39));
    rig.settle();
}

#[test]
fn prompt_logprobs_are_cut_to_the_logits_rows_and_use_no_hit() {
    let mut rig = Rig::new(limits(), 40);
    rig.submit(endless(1, prompt(1, 40), 1)).unwrap();
    rig.run();
    let r = Request {
        prompt_logprobs: Some(2),
        ..endless(2, prompt(1, 40), 3)
    };
    rig.submit(r).unwrap();
    rig.turn();
    assert_eq!(last_plan(&rig), [(2, 0, 8)]);
    assert_eq!(plans(&rig).last().unwrap().logits.len(), 8);
    rig.run();
    assert_eq!(cached(&rig, 2), 0);
    let reported = rig
        .events(2)
        .iter()
        .filter(|e| matches!(e, Event::Prompt { .. }))
        .count();
    assert_eq!(reported, 39);
    rig.settle();
}

#[test]
fn max_tokens_zero_runs_the_prompt_and_draws_nothing() {
    let mut rig = Rig::new(limits(), 40);
    rig.submit(endless(1, prompt(1, 40), 0)).unwrap();
    let r = Request {
        prompt_logprobs: Some(0),
        ..endless(2, prompt(2, 20), 0)
    };
    rig.submit(r).unwrap();
    rig.run();
    rig.settle();
    assert_eq!(rig.events(1).len(), 2);
    assert_eq!(rig.events(2).len(), 1 + 19 + 1);
}

#[test]
fn a_stop_token_is_counted_and_not_delivered() {
    let mut rig = Rig::new(limits(), 40);
    let stops: Arc<[u32]> = (0..20).collect();
    let r = Request {
        stop_tokens: Arc::clone(&stops),
        ..endless(1, prompt(1, 5), 100)
    };
    rig.submit(r).unwrap();
    rig.run();
    rig.settle();
    let Some(End::Finished(FinishReason::Stop, Some(stop), usage)) = rig.end(1) else {
        panic!("{:?}", rig.end(1));
    };
    assert!(stops.contains(&stop));
    assert_eq!(usage.completion_tokens as usize, rig.tokens(1).len() + 1);
    assert!(rig.tokens(1).iter().all(|t| !stops.contains(t)));
}

#[test]
fn no_stop_before_min_tokens() {
    let mut rig = Rig::new(limits(), 40);
    let r = Request {
        stop_tokens: (0..40).collect(),
        min_tokens: 12,
        ..endless(1, prompt(1, 5), 100)
    };
    rig.submit(r).unwrap();
    rig.run();
    rig.settle();
    assert!(rig.tokens(1).len() >= 12);
    assert!(rig.tokens(1)[..12].iter().all(|t| *t >= 40));
}

#[test]
fn the_context_ends_an_answer_with_length() {
    let mut rig = Rig::new(limits(), 40);
    rig.submit(endless(1, prompt(1, 150), 1000)).unwrap();
    rig.run();
    rig.settle();
    assert_eq!(rig.tokens(1).len(), 10);
    assert!(matches!(
        rig.end(1),
        Some(End::Finished(FinishReason::Length, None, _))
    ));
}

#[test]
fn refusals_are_typed_and_leave_nothing() {
    let mut rig = Rig::new(
        PlannerLimits {
            queue_len: 2,
            ..limits()
        },
        5,
    );
    assert_eq!(rig.submit(endless(1, vec![], 1)), Err(Refusal::EmptyPrompt));
    assert_eq!(
        rig.submit(endless(1, prompt(1, 160), 1)),
        Err(Refusal::PromptTooLong {
            tokens: 160,
            limit: 160
        })
    );
    assert_eq!(
        rig.submit(endless(1, prompt(1, 80), 1)),
        Err(Refusal::PromptExceedsPool {
            tokens: 80,
            limit: 80
        })
    );
    let r = Request {
        bias: vec![(1, 0.0); 65].into(),
        ..endless(1, prompt(1, 8), 1)
    };
    assert_eq!(
        rig.submit(r),
        Err(Refusal::TooManyBias {
            entries: 65,
            limit: 64
        })
    );
    rig.submit(endless(1, prompt(1, 79), 9)).unwrap();
    rig.submit(endless(2, prompt(2, 8), 9)).unwrap();
    assert_eq!(
        rig.submit(endless(3, prompt(3, 8), 9)),
        Err(Refusal::Busy {
            queued: 2,
            limit: 2
        })
    );
    rig.turn();
    rig.submit(endless(3, prompt(3, 8), 9)).unwrap();
    rig.run();
    rig.settle();
    assert_eq!(rig.handle.stats().finished, 3);
}

#[test]
fn an_id_in_use_is_an_error_of_the_caller() {
    let mut rig = Rig::new(limits(), 40);
    rig.submit(endless(1, prompt(1, 8), 9)).unwrap();
    rig.turn();
    let first = rig.logs.remove(&1).unwrap();
    rig.submit(endless(1, prompt(1, 8), 9)).unwrap();
    rig.run();
    assert!(matches!(rig.end(1), Some(End::Failed(f)) if f.kind == FaultKind::Internal));
    assert!(first.events.lock().unwrap().last().unwrap().is_last());
}

#[test]
fn limits_that_contradict_each_other_are_named() {
    let kv = Kv::new(4, 4);
    let bad = PlannerLimits {
        max_rows: 3,
        ..limits()
    };
    assert_eq!(
        Planner::<u64>::new(bad, &kv).err(),
        Some(LimitsError {
            limit: "max_rows",
            value: 3,
            bound: "max_num_seqs",
            least: 4
        })
    );
    assert_eq!(PlannerLimits::default().validate(), Ok(()));
}

#[test]
fn a_deadline_fails_one_request_running_or_waiting() {
    let mut rig = Rig::new(
        PlannerLimits {
            max_num_seqs: 1,
            ..limits()
        },
        40,
    );
    let late = |id, ms| Request {
        deadline: Some(Duration::from_millis(ms)),
        ..endless(id, prompt(id as u32, 8), 50)
    };
    rig.submit(late(1, 10)).unwrap();
    rig.submit(late(2, 5)).unwrap();
    rig.submit(endless(3, prompt(3, 8), 5)).unwrap();
    rig.run();
    rig.settle();
    for id in [1, 2] {
        assert!(matches!(rig.end(id), Some(End::Failed(f)) if f.kind == FaultKind::Deadline));
    }
    assert!(rig.tokens(1).len() >= 5 && rig.tokens(2).is_empty());
    assert_eq!(rig.tokens(3).len(), 5);
}

/// SURVIVAL 44: NaN logits in one row.
#[test]
fn survival_44_a_row_without_a_number_fails_alone() {
    let mut rig = Rig::with(limits(), 40, |s| {
        s.mishaps.insert(3, Mishap::Nan(1));
    });
    for id in 1..=3 {
        rig.submit(endless(id, prompt(id as u32, 9), 8)).unwrap();
    }
    rig.run();
    rig.settle();
    let Some(End::Failed(fault)) = rig.end(2) else {
        panic!("{:?}", rig.end(2));
    };
    assert_eq!(
        (fault.scope, fault.kind),
        (Scope::Row, FaultKind::NonFinite)
    );
    assert!(fault.what.contains("position 11"), "{}", fault.what);
    assert_eq!((rig.tokens(1).len(), rig.tokens(3).len()), (8, 8));
    // Nothing of it is offered to others.
    rig.submit(endless(4, prompt(2, 9), 1)).unwrap();
    rig.run();
    assert_eq!(cached(&rig, 4), 0);
}

#[test]
fn a_step_fault_fails_what_runs_and_keeps_the_cache_and_the_queue() {
    let mut rig = Rig::with(
        PlannerLimits {
            max_num_seqs: 1,
            ..limits()
        },
        40,
        |s| {
            s.mishaps.insert(4, Mishap::Wait(Scope::Step));
        },
    );
    rig.submit(endless(1, prompt(1, 40), 9)).unwrap();
    rig.submit(endless(2, prompt(1, 40), 9)).unwrap();
    rig.run();
    rig.settle();
    assert!(matches!(rig.end(1), Some(End::Failed(f)) if f.scope == Scope::Step));
    assert_eq!(rig.tokens(2).len(), 9);
    assert_eq!(cached(&rig, 2), 32);
}

#[test]
fn a_device_fault_empties_the_cache() {
    let mut rig = Rig::with(
        PlannerLimits {
            max_num_seqs: 1,
            ..limits()
        },
        40,
        |s| {
            s.mishaps.insert(4, Mishap::Submit(Scope::Device));
        },
    );
    rig.submit(endless(1, prompt(1, 40), 9)).unwrap();
    rig.submit(endless(2, prompt(1, 40), 9)).unwrap();
    rig.run();
    rig.settle();
    assert!(matches!(rig.end(1), Some(End::Failed(f)) if f.scope == Scope::Device));
    assert_eq!(cached(&rig, 2), 0);
}

/// The copy of a block whose source was evicted to make room, in a step that failed: nothing of it may be published.
#[test]
fn a_copy_that_was_not_done_is_not_published() {
    let mut rig = Rig::with(limits(), 4, |s| {
        s.mishaps.insert(2, Mishap::Submit(Scope::Step));
    });
    rig.submit(endless(1, prompt(1, 20), 1)).unwrap();
    rig.run();
    let mut long = prompt(1, 20);
    long.extend(prompt(5, 30));
    rig.submit(endless(2, long.clone(), 2)).unwrap();
    rig.run();
    assert_eq!(plans(&rig)[1].copies.len(), 1);
    assert!(matches!(rig.end(2), Some(End::Failed(_))));
    rig.submit(endless(3, long, 2)).unwrap();
    rig.run();
    assert_eq!(cached(&rig, 3), 16);
    rig.settle();
}

#[test]
fn requests_wait_for_blocks_that_are_being_populated() {
    let mut rig = Rig::new(limits(), 8);
    // As model-engine does while the pool is being touched.
    let mut kv = Kv::new(8, 4);
    kv.0.set_populated(1);
    let mut planner = Planner::new(limits(), &kv).unwrap();
    planner
        .submit(endless(1, prompt(1, 20), 2), Duration::ZERO)
        .unwrap();
    let mut effects = Vec::new();
    let now = Duration::ZERO;
    assert!(
        planner
            .plan(now, &mut kv, &mut NoSpill, &mut effects)
            .is_none()
    );
    assert_eq!(planner.waiting(), 1);
    kv.0.set_populated(2);
    assert!(
        planner
            .plan(now, &mut kv, &mut NoSpill, &mut effects)
            .is_some()
    );
    assert_eq!(rig.turn(), Turn::Idle);
}

#[test]
fn after_a_cancel_in_flight_nothing_more_is_emitted() {
    let mut kv = Kv::new(8, 4);
    let mut planner = Planner::new(limits(), &kv).unwrap();
    let (mut effects, now) = (Vec::new(), Duration::ZERO);
    planner.submit(endless(1, prompt(1, 20), 9), now).unwrap();
    assert!(
        planner
            .plan(now, &mut kv, &mut NoSpill, &mut effects)
            .is_some()
    );
    planner.cancel(RequestId(1));
    effects.clear();
    let mut outcome = StepOutcome::default();
    outcome.push(RowOutcome::new(3, -1.0), []);
    planner.apply(&outcome, &mut kv, &mut effects).unwrap();
    assert_eq!(effects, []);
    assert!(
        planner
            .plan(now, &mut kv, &mut NoSpill, &mut effects)
            .is_none()
    );
    let [
        Effect::Emit {
            event: Event::Finished { reason, usage, .. },
            ..
        },
    ] = &effects[..]
    else {
        panic!("{effects:?}");
    };
    assert_eq!(
        (*reason, usage.completion_tokens),
        (FinishReason::Cancelled, 0)
    );
    assert_eq!(kv.available_blocks(), 8);
    // What was computed stays: it is right.
    assert_eq!(kv.0.cached(0, &prompt(1, 21)), 20);
}

#[test]
fn rows_wait_when_their_history_does_not_fit() {
    let mut rig = Rig::new(
        PlannerLimits {
            max_history: 160,
            ..limits()
        },
        40,
    );
    for id in 1..=4 {
        let r = Request {
            history: true,
            ..endless(id, prompt(id as u32, 60), 12)
        };
        rig.submit(r).unwrap();
    }
    rig.run();
    rig.settle();
    for id in 1..=4 {
        assert_eq!(rig.tokens(id).len(), 12);
    }
}

#[test]
fn the_answer_of_the_model_is_not_trivial() {
    let long = answer(&endless(1, prompt(1, 10), 50), 160);
    let mut kinds: Vec<u32> = long.tokens.iter().map(|t| t.0).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert!(kinds.len() > 20);
}

/// What was drafted for each step of a request, and how many of it became tokens.
fn verified(rig: &Rig, id: u64) -> Vec<(u32, u32)> {
    let seen = rig.seen.lock().unwrap();
    let verified = seen.effects.iter().filter_map(|e| match e {
        Effect::Verified {
            request,
            drafted,
            accepted,
        } if request.0 == id => Some((*drafted, *accepted)),
        _ => None,
    });
    verified.collect()
}

#[test]
fn drafts_run_behind_a_row_and_those_that_are_drawn_become_tokens() {
    let limits = PlannerLimits {
        max_drafts: 5,
        ..limits()
    };
    for ahead in [Lookahead::None, Lookahead::Late, Lookahead::Slot] {
        let mut rig = Rig::with(limits.clone(), 40, |s| s.lookahead = ahead);
        rig.submit(endless(1, prompt(1, 20), 100)).unwrap();
        rig.run();
        rig.settle(); // The tokens, and the hash of each logits row, are those of the request alone.
        let verified = verified(&rig, 1);
        let (drafted, accepted) = verified
            .iter()
            .fold((0, 0), |sum, v| (sum.0 + v.0, sum.1 + v.1));
        assert!(verified.contains(&(5, 5)) && verified.iter().any(|v| v.1 == 0));
        let steps = plans(&rig).len() as u32;
        assert_eq!(
            steps + accepted,
            100,
            "a step gives a token and those accepted"
        );
        let stats = rig.handle.stats();
        assert_eq!(
            (stats.drafted, stats.accepted),
            (drafted.into(), accepted.into())
        );
    }
}

#[test]
fn blocks_that_only_rejected_drafts_had_are_given_back_at_once() {
    let limits = PlannerLimits {
        max_drafts: 7,
        max_logits_rows: 20,
        ..limits()
    };
    let mut rig = Rig::new(limits, 40);
    rig.submit(endless(1, prompt(1, 20), 120)).unwrap();
    let mut shrank = 0;
    while rig.end(1).is_none() {
        rig.turn();
        if rig.end(1).is_some() {
            break;
        }
        let known = 20 + rig.tokens(1).len() as u32;
        let used = rig.driver.kv().0.stats().used;
        assert!(
            used <= known.div_ceil(16),
            "{used} blocks for {known} tokens"
        );
        let plan = plans(&rig).pop().unwrap();
        let end = plan.segments[0].first_position + plan.rows();
        shrank += u32::from(end.div_ceil(16) > known.div_ceil(16));
    }
    assert!(shrank > 0, "no draft ever stood alone in a block");
    rig.settle();
}

#[test]
fn drafts_leave_a_row_to_every_running_sequence_and_the_chunks_their_budget() {
    let limits = PlannerLimits {
        max_drafts: 8,
        max_rows: 10,
        max_prefill_tokens: 8,
        max_logits_rows: 6,
        ..limits()
    };
    let mut rig = Rig::new(limits, 40);
    for id in 1..=4 {
        rig.submit(endless(id, prompt(id as u32, 10), 60)).unwrap();
    }
    rig.run();
    rig.settle();
    let plans = plans(&rig);
    let full: Vec<_> = plans.iter().filter(|p| p.segments.len() == 4).collect();
    assert!(
        full.iter().any(|p| p.logits.len() == 6),
        "two rows were left for drafts"
    );
    // Once all four decode, none is ever left out.
    let first = plans.iter().position(|p| p.segments.len() == 4).unwrap();
    let last = plans.iter().rposition(|p| p.segments.len() == 4).unwrap();
    assert!(plans[first..last].iter().all(|p| p.segments.len() == 4));
}

#[test]
fn sequences_with_a_penalty_a_bias_or_recurrent_state_bring_no_drafts() {
    let limits = PlannerLimits {
        max_drafts: 5,
        ..limits()
    };
    let mut rig = Rig::new(limits.clone(), 40);
    let penalty = Request {
        history: true,
        ..endless(1, prompt(1, 20), 40)
    };
    let bias = Request {
        bias: Arc::from([(3, 1.0)]),
        ..endless(2, prompt(2, 20), 40)
    };
    rig.submit(penalty).unwrap();
    rig.submit(bias).unwrap();
    rig.run();
    rig.settle();
    let mut hybrid = Rig::hybrid(limits, 40, 2, |_| {});
    hybrid.submit(endless(1, prompt(1, 20), 40)).unwrap();
    hybrid.run();
    hybrid.settle();
    for rig in [rig, hybrid] {
        assert_eq!(rig.handle.stats().drafted, 0);
    }
}
