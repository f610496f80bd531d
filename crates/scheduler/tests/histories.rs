// SPDX-License-Identifier: MIT OR Apache-2.0
//! The deterministic simulation: histories made from numbers, on a virtual clock and a scripted device, half of them with
//! faults. Each has at least 50 steps and 8 sequences.
//!
//! `HISTORIES=100000 cargo test --release -p metrale-scheduler --test histories -- --nocapture` runs that many (2,000
//! without) from number `FROM` on (0). A history that breaks an invariant is made smaller and written to
//! `tests/histories/`, from where every test run takes it again.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod common;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use common::history::{Coverage, History, Op, Play};

/// What must have happened at least once.
const WANTED: [&str; 35] = [
    "admitted",
    "admitted with a prefix",
    "block copies",
    "blocks evicted",
    "drafts accepted",
    "drafts rejected",
    "failed Device Device",
    "failed Device Internal",
    "failed Request Deadline",
    "failed Row NonFinite",
    "failed Step Device",
    "finished Cancelled",
    "finished Length",
    "finished Stop",
    "late ids",
    "lookahead Late",
    "lookahead None",
    "lookahead Slot",
    "policy fifo",
    "policy priority",
    "policy slai",
    "preempt, recomputed",
    "preempt, spilled",
    "prefix blocks brought back",
    "prompt token",
    "sequences brought back",
    "state restored",
    "state saved",
    "steps",
    "steps that mix decode and prefill",
    "steps that mix decode, verify and prefill",
    "token",
    "verified, all accepted",
    "verified, none accepted",
    "with faults",
];

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |n| n.parse().unwrap())
}

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/histories"))
}

/// Runs a whole history; the message of what it breaks.
fn play(history: &History, coverage: &mut Coverage) -> Result<(), String> {
    let run = || {
        let mut play = Play::new(history);
        history.ops.iter().for_each(|op| play.step(op));
        play.finish(coverage);
    };
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| message(&*panic))
}

/// Runs the history of a number, rolling operations until it is long enough. Those it came to, and what it breaks.
fn roll(seed: u64, coverage: &mut Coverage) -> (History, Result<(), String>) {
    let (mut history, mut dice) = History::new(seed);
    let run = || {
        let mut play = Play::new(&history);
        while !play.is_long() {
            let mut op = dice.op();
            if let Op::Submit(shape) = &mut op
                && history.limits[10] > 0
                && shape[1] % 4 > 0
            {
                shape[6] = 0; // With a bias it would bring no drafts.
            }
            history.ops.push(op.clone());
            play.step(&op);
        }
        play.finish(coverage);
    };
    let result = catch_unwind(AssertUnwindSafe(run)).map_err(|panic| message(&*panic));
    (history, result)
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default()
}

/// The smallest history found that still breaks something: parts left out, from halves to single ones, and numbers halved.
fn shrink(mut history: History) -> History {
    let breaks = |h: &History| play(h, &mut Coverage::new()).is_err();
    let mut size = history.ops.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < history.ops.len() {
            let mut less = history.clone();
            less.ops.drain(at..(at + size).min(less.ops.len()));
            if breaks(&less) {
                history = less;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    for at in (0..history.mishaps.len()).rev() {
        let mut less = history.clone();
        less.mishaps.remove(at);
        if breaks(&less) {
            history = less;
        }
    }
    for at in 0..history.ops.len() {
        for field in 0..13 {
            let mut less = history.clone();
            match &mut less.ops[at] {
                Op::Submit(shape) => shape[field] /= 2,
                Op::Turns(n) if field == 0 => *n = n.div_ceil(2),
                _ => continue,
            }
            let keeps_a_prompt = match &less.ops[at] {
                Op::Submit(shape) => shape[2] > 0,
                _ => true,
            };
            if keeps_a_prompt && breaks(&less) {
                history = less;
            }
        }
    }
    history
}

#[test]
fn histories_keep_every_invariant() {
    let (from, count) = (number("FROM", 0), number("HISTORIES", 2000));
    let mut coverage = Coverage::new();
    for seed in from..from + count {
        let (history, result) = roll(seed, &mut coverage);
        if let Err(why) = result {
            let small = shrink(history);
            let file = folder().join(format!("{seed}.txt"));
            fs::create_dir_all(folder()).unwrap();
            fs::write(
                &file,
                format!("# {}\n{}", why.lines().next().unwrap_or(""), small.text()),
            )
            .unwrap();
            panic!(
                "history {seed}: {why}\nkept as {}:\n{}",
                file.display(),
                small.text()
            );
        }
        *coverage.entry("with faults".to_owned()).or_default() +=
            u64::from(!history.mishaps.is_empty());
    }
    println!("{count} histories from {from}:");
    for (what, times) in &coverage {
        println!("  {times:>10}  {what}");
    }
    let missing: Vec<_> = WANTED
        .iter()
        .filter(|w| !coverage.contains_key(**w))
        .collect();
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

/// What was found once stays mended.
#[test]
fn kept_histories_pass() {
    let Ok(files) = fs::read_dir(folder()) else {
        return;
    };
    for file in files {
        let path = file.unwrap().path();
        let history = History::parse(&fs::read_to_string(&path).unwrap());
        if let Err(why) = play(&history, &mut Coverage::new()) {
            panic!("{}: {why}", path.display());
        }
    }
}

#[test]
fn equal_histories_have_equal_plans_and_effects() {
    for seed in 0..60 {
        let run = |history: &History| {
            let mut play = Play::new(history);
            history.ops.iter().for_each(|op| play.step(op));
            play.finish(&mut Coverage::new());
            let seen = play.rig.seen.lock().unwrap();
            (seen.plans.clone(), seen.effects.clone())
        };
        let (history, result) = roll(seed, &mut Coverage::new());
        result.unwrap();
        let again = History::parse(&history.text());
        assert_eq!(again, history, "a file says all");
        assert!(run(&history) == run(&again), "history {seed}");
    }
}
