// SPDX-License-Identifier: MIT OR Apache-2.0
//! Constraints in the planner: what waits for a token and what does not, whose fault a fault is, whose state a state.
//! The histories hold all of it to the answer that a request gets alone.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod common;

use common::VOCAB;
use common::constraint::{Alternating, Ending};
use common::rig::{End, Rig, limits, prompt, request};
use metrale_scheduler::{
    FaultKind, FinishReason, FixedMask, Lookahead, PlannerLimits, Request, Scope, TokenConstraint,
    TokenMask,
};

fn constrained(id: u64, constraint: impl TokenConstraint + 'static) -> Request<u64> {
    Request {
        constraint: Some(Box::new(constraint)),
        stop_tokens: [].into(),
        ..request(id, prompt(id as u32, 20), 12)
    }
}

fn rig(lookahead: Lookahead, drafts: u32) -> Rig {
    let limits = PlannerLimits {
        max_drafts: drafts,
        ..limits()
    };
    Rig::with(limits, 64, |s| s.lookahead = lookahead)
}

const WAYS: [(Lookahead, u32); 5] = [
    (Lookahead::None, 0),
    (Lookahead::None, 3),
    (Lookahead::Late, 0),
    (Lookahead::Late, 3),
    (Lookahead::Slot, 0),
];

/// Two answers with their masks, one beside without, however the steps are taken; `settle` compares each with what it is alone.
#[test]
fn masks_hold_ahead_of_tokens_and_with_drafts() {
    for (lookahead, drafts) in WAYS {
        let mut rig = rig(lookahead, drafts);
        let few = TokenMask::only(VOCAB, &[3, 17, 40, 41]);
        rig.submit(constrained(1, FixedMask(few.clone()))).unwrap();
        rig.submit(constrained(2, Alternating::new(Ending::Never)))
            .unwrap();
        rig.submit(request(3, prompt(3, 9), 12)).unwrap();
        rig.run();
        rig.settle();
        assert_eq!(rig.tokens(1).len(), 12);
        assert!(rig.tokens(1).iter().all(|t| few.allows(*t)));
        let moving = rig.tokens(2);
        assert!(
            moving.windows(2).all(|w| w[0] % 3 != w[1] % 3),
            "{moving:?}"
        );
        let seen = rig.seen.lock().unwrap();
        let drafted = seen.plans.iter().flat_map(|p| &p.segments);
        let drafted: Vec<u64> = drafted
            .filter(|s| s.drafts > 0)
            .map(|s| s.request.0)
            .collect();
        assert!(!drafted.contains(&2), "a moving mask brings no drafts");
        assert_eq!(drafts > 0, drafted.contains(&1));
    }
}

/// Where a step is submitted before the tokens of the last are known, the row of a moving mask waits; fixed ones do not.
#[test]
fn a_moving_mask_waits_for_its_token_and_others_go_ahead() {
    let mut rig = rig(Lookahead::Slot, 0);
    rig.submit(constrained(1, Alternating::new(Ending::Never)))
        .unwrap();
    rig.submit(constrained(2, FixedMask(TokenMask::all(VOCAB))))
        .unwrap();
    rig.run();
    rig.settle();
    let seen = rig.seen.lock().unwrap();
    let late = |id: u64| {
        let of = |p: &&metrale_scheduler::StepPlan<u64>| {
            let segment = p.segments.iter().find(|s| s.request.0 == id);
            segment.is_some_and(|s| p.late.iter().any(|l| s.rows.contains(&l.row)))
        };
        seen.plans.iter().filter(of).count()
    };
    assert_eq!(late(1), 0);
    assert!(late(2) >= 10, "{}", late(2));
}

#[test]
fn choices_and_shared_masks() {
    let mut rig = rig(Lookahead::Late, 0);
    let first = constrained(1, Alternating::new(Ending::Complete(4)));
    for id in 1..=3 {
        let choice = Request {
            id: metrale_scheduler::RequestId(id),
            choice: id as u32,
            ..first.clone()
        };
        rig.submit(choice).unwrap();
    }
    rig.run();
    rig.settle();
    assert_ne!(rig.tokens(1), rig.tokens(2));
    for id in 1..=3 {
        assert_eq!(rig.tokens(id).len(), 4);
        let end = rig.end(id).unwrap();
        assert!(
            matches!(end, End::Finished(FinishReason::Stop, None, _)),
            "{end:?}"
        );
    }
    // Clones of a request's fixed mask are one mask.
    let mut fixed = constrained(1, FixedMask(TokenMask::all(VOCAB)));
    let mut clone = fixed.clone();
    let mask = |r: &mut Request<u64>| r.constraint.as_mut().unwrap().mask().unwrap();
    assert!(mask(&mut fixed).shares(&mask(&mut clone)));
}

/// The last token of the answer completes the text: it has ended by itself.
#[test]
fn a_text_that_is_complete_at_the_last_token_has_stopped() {
    let mut rig = rig(Lookahead::Slot, 0);
    rig.submit(constrained(1, Alternating::new(Ending::Complete(12))))
        .unwrap();
    // And one that would fail behind the last token is not asked any more.
    rig.submit(constrained(2, Alternating::new(Ending::Empty(12))))
        .unwrap();
    rig.run();
    rig.settle();
    let reason = |id| match rig.end(id).unwrap() {
        End::Finished(reason, ..) => reason,
        End::Failed(fault) => panic!("{fault}"),
    };
    assert_eq!(reason(1), FinishReason::Stop);
    assert_eq!(reason(2), FinishReason::Length);
}

/// SURVIVAL 47 for constraints: an error or a panic in one ends its request, at the token where it happens.
#[test]
fn survival_47_a_constraint_that_fails_or_panics_fails_its_request_alone() {
    for (lookahead, drafts) in WAYS {
        let mut rig = rig(lookahead, drafts);
        let endings = [
            (Ending::Fails(3), 3, "no such token"),
            (
                Ending::Panics(3),
                3,
                "panicked when it took a token: scripted",
            ),
            (Ending::Empty(2), 2, "allows no token"),
            (Ending::Maskless(2), 2, "no mask"),
            (Ending::Maskless(0), 0, "no mask"),
            (Ending::Empty(0), 0, "allows no token"),
        ];
        for (id, (ending, ..)) in (1..).zip(endings) {
            rig.submit(constrained(id, Alternating::new(ending)))
                .unwrap();
        }
        rig.submit(request(9, prompt(9, 30), 12)).unwrap();
        rig.run();
        rig.settle();
        for (id, (ending, tokens, why)) in (1..).zip(endings) {
            let Some(End::Failed(fault)) = rig.end(id) else {
                panic!("{ending:?} does not fail");
            };
            let kind = match ending {
                Ending::Empty(_) => FaultKind::NoToken,
                _ => FaultKind::Constraint,
            };
            assert_eq!((fault.kind, fault.scope), (kind, Scope::Request));
            assert!(fault.what.contains(why), "{fault}");
            assert_eq!(rig.tokens(id).len(), tokens, "{ending:?}");
        }
        assert!(matches!(rig.end(9), Some(End::Finished(..))));
        assert_eq!(rig.handle.stats().restarts, 0);
    }
}

/// A preempted text is computed again; its constraint goes on where it was.
#[test]
fn a_preempted_text_keeps_the_state_of_its_constraint() {
    let mut rig = Rig::with(limits(), 7, |s| s.lookahead = Lookahead::Late);
    for id in 1..=3 {
        let long = Request {
            max_tokens: 40,
            ..constrained(id, Alternating::new(Ending::Complete(30 + id as u32)))
        };
        rig.submit(long).unwrap();
    }
    rig.run();
    rig.settle();
    assert!(rig.preemptions() > 0);
    for id in 1..=3 {
        assert_eq!(rig.tokens(id).len(), 30 + id as usize);
    }
}

/// Prompt tokens are reported as they are, whatever is allowed behind them.
#[test]
fn prompt_rows_have_no_mask() {
    let mut rig = rig(Lookahead::Late, 0);
    let r = Request {
        prompt_logprobs: Some(1),
        logprobs: Some(2),
        ..constrained(1, FixedMask(TokenMask::only(VOCAB, &[5])))
    };
    rig.submit(r).unwrap();
    rig.run();
    rig.settle();
    assert_eq!(rig.tokens(1), [5; 12]);
}
