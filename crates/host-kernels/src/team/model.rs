// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocol under loom: every interleaving of a few threads (with at most so many preemptions as each test says), and
//! every value that a read may see by the memory model. `scripts/test loom` runs it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use loom::sync::atomic::AtomicUsize;
use loom::thread;

use super::shared::Shared;
use super::{Outcome, TeamOptions, Work};
use crate::scratch::Scratch;

/// Launches of so many tiles, each counted when it has run; the tiles of a launch look at what those before have left.
struct Counted {
    launches: Vec<u32>,
    /// By launch. Relaxed: what orders them is the team alone.
    ran: Vec<AtomicUsize>,
    /// A tile of this launch fails.
    fails: Option<usize>,
}

impl Counted {
    fn new(launches: &[u32], fails: Option<usize>) -> Arc<Counted> {
        Arc::new(Counted {
            launches: launches.to_vec(),
            ran: launches.iter().map(|_| AtomicUsize::new(0)).collect(),
            fails,
        })
    }

    fn ran(&self) -> Vec<usize> {
        self.ran.iter().map(|r| r.load(Relaxed)).collect()
    }
}

impl Work for Counted {
    fn launches(&self) -> usize {
        self.launches.len()
    }

    fn tiles(&self, launch: usize) -> u32 {
        self.launches[launch]
    }

    fn run(&self, launch: usize, tile: u32, _: &mut Scratch) -> Result<(), String> {
        if tile >= self.launches[launch] {
            return Err(format!("tile {tile}"));
        }
        for before in 0..launch {
            let ran = self.ran[before].load(Relaxed);
            if ran != self.launches[before] as usize {
                return Err(format!(
                    "launch {launch} sees {ran} tiles of launch {before}"
                ));
            }
        }
        self.ran[launch].fetch_add(1, Relaxed);
        match self.fails == Some(launch) {
            true => Err("scripted".into()),
            false => Ok(()),
        }
    }
}

/// Runs `submit` beside `workers` threads of a team, in every interleaving; then stops the team.
fn check(workers: u32, preemptions: usize, submit: impl Fn(&Shared) + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    // LOOM_MAX_PREEMPTIONS asks for more than CI has time for.
    model.preemption_bound.get_or_insert(preemptions);
    model.max_branches = 20_000;
    model.check(move || {
        let options = TeamOptions {
            spin: Duration::ZERO,
            ..TeamOptions::new(workers as usize)
        };
        let shared = Arc::new(Shared::new(&options));
        let threads: Vec<_> = (0..workers)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.work_until_stopped())
            })
            .collect();
        submit(&shared);
        shared.stop();
        for worker in threads {
            worker.join().unwrap();
        }
    });
}

#[test]
fn every_tile_runs_once_and_behind_those_before_it() {
    check(2, 1, |team| {
        let work = Counted::new(&[2, 0, 1], None);
        let ticket = team.submit(Arc::clone(&work) as Arc<dyn Work>);
        assert_eq!(team.wait(ticket, Duration::MAX), Some(Outcome::Done));
        assert_eq!(work.ran(), [2, 0, 1]);
    });
}

#[test]
fn works_end_in_the_order_of_their_submission() {
    check(2, 1, |team| {
        let works = [Counted::new(&[1], None), Counted::new(&[2], None)];
        let tickets = works
            .each_ref()
            .map(|w| team.submit(Arc::clone(w) as Arc<dyn Work>));
        assert_eq!(team.wait(tickets[1], Duration::MAX), Some(Outcome::Done));
        assert_eq!(team.poll(tickets[0]), Some(Outcome::Done));
        assert_eq!((works[0].ran(), works[1].ran()), (vec![1], vec![2]));
    });
}

#[test]
fn an_idle_team_is_woken_again() {
    check(1, 3, |team| {
        for _ in 0..2 {
            let work = Counted::new(&[1], None);
            let ticket = team.submit(Arc::clone(&work) as Arc<dyn Work>);
            assert_eq!(team.wait(ticket, Duration::MAX), Some(Outcome::Done));
            assert_eq!(work.ran(), [1]);
        }
    });
}

#[test]
fn a_failure_skips_the_rest_of_its_work_and_no_other() {
    check(2, 1, |team| {
        let works = [Counted::new(&[2, 1], Some(0)), Counted::new(&[1], None)];
        let tickets = works
            .each_ref()
            .map(|w| team.submit(Arc::clone(w) as Arc<dyn Work>));
        let Some(Outcome::Failed { launch: 0, what }) = team.wait(tickets[0], Duration::MAX) else {
            panic!("it failed");
        };
        assert_eq!(what, "scripted");
        assert_eq!(team.wait(tickets[1], Duration::MAX), Some(Outcome::Done));
        assert_eq!((works[0].ran()[1], works[1].ran()), (0, vec![1]));
    });
}
