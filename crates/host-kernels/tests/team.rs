// SPDX-License-Identifier: MIT OR Apache-2.0
//! The team: every tile once, launches in order, faults contained.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use metrale_host_kernels::Scratch;
use metrale_host_kernels::team::{Outcome, Team, TeamOptions, Work};

/// Counts each tile, and holds that a launch begins only when the one before has ended.
struct Counting {
    tiles: Vec<u32>,
    ran: Vec<AtomicU32>,
    running: AtomicUsize,
    overlaps: AtomicU32,
}

impl Counting {
    fn new(tiles: Vec<u32>) -> Arc<Counting> {
        let ran = tiles.iter().map(|_| AtomicU32::new(0)).collect();
        Arc::new(Counting {
            tiles,
            ran,
            running: AtomicUsize::new(0),
            overlaps: AtomicU32::new(0),
        })
    }

    fn check(&self, times: u32) {
        for (tiles, ran) in self.tiles.iter().zip(&self.ran) {
            assert_eq!(ran.load(Ordering::SeqCst), tiles * times);
        }
        assert_eq!(self.overlaps.load(Ordering::SeqCst), 0);
    }
}

impl Work for Counting {
    fn launches(&self) -> usize {
        self.tiles.len()
    }
    fn tiles(&self, launch: usize) -> u32 {
        if self.running.load(Ordering::SeqCst) != 0 {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        self.tiles[launch]
    }
    fn run(&self, launch: usize, tile: u32, _: &mut Scratch) -> Result<(), String> {
        self.running.fetch_add(1, Ordering::SeqCst);
        assert!(tile < self.tiles[launch]);
        self.ran[launch].fetch_add(1, Ordering::SeqCst);
        self.running.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }
}

fn team(threads: usize, spin_us: u64) -> Team {
    let options = TeamOptions {
        spin: Duration::from_micros(spin_us),
        ..TeamOptions::new(threads)
    };
    Team::new(&options).unwrap()
}

#[test]
fn every_tile_runs_once_and_launches_do_not_overlap() {
    for threads in [1, 2, 5] {
        // Without spinning every wait parks: the wakes are what is tested.
        for spin in [0, 50] {
            let team = team(threads, spin);
            let work = Counting::new(vec![0, 1, 7, 0, 0, 64, 1, 2, 0]);
            let mut last = 0;
            for _ in 0..200 {
                last = team.submit(work.clone());
            }
            assert_eq!(team.wait(last, Duration::MAX), Some(Outcome::Done));
            work.check(200);
        }
    }
}

#[test]
fn works_without_tiles_or_launches_end() {
    let team = team(2, 0);
    for tiles in [vec![], vec![0], vec![0, 0, 0]] {
        let ticket = team.submit(Counting::new(tiles));
        assert_eq!(team.wait(ticket, Duration::MAX), Some(Outcome::Done));
    }
}

#[test]
fn submits_from_several_threads_all_run() {
    let team = team(2, 10);
    let work = Counting::new(vec![3, 1, 4]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let ticket = team.submit(work.clone());
                    assert_eq!(team.wait(ticket, Duration::MAX), Some(Outcome::Done));
                }
            });
        }
    });
    assert_eq!(team.submitted(), 400);
    work.check(400);
}

#[test]
fn dropping_the_team_ends_what_was_submitted() {
    let work = Counting::new(vec![5; 20]);
    let team = team(3, 0);
    for _ in 0..10 {
        team.submit(work.clone());
    }
    drop(team);
    work.check(10);
}

/// Fails in one tile of launch 1, by a panic or an error.
struct Failing {
    panics: bool,
    after: AtomicU64,
}

impl Work for Failing {
    fn launches(&self) -> usize {
        3
    }
    fn tiles(&self, _: usize) -> u32 {
        8
    }
    fn run(&self, launch: usize, tile: u32, _: &mut Scratch) -> Result<(), String> {
        if (launch, tile) == (1, 3) {
            assert!(!self.panics, "tile 3 is broken");
            return Err("tile 3 refuses".into());
        }
        if launch == 2 {
            self.after.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }
}

#[test]
fn a_failing_tile_fails_its_work_and_not_the_team() {
    let team = team(2, 10);
    for (panics, what) in [(true, "panic: tile 3 is broken"), (false, "tile 3 refuses")] {
        let failing = Arc::new(Failing {
            panics,
            after: AtomicU64::new(0),
        });
        let good = Counting::new(vec![4, 4]);
        let (bad, next) = (team.submit(failing.clone()), team.submit(good.clone()));
        let want = Outcome::Failed {
            launch: 1,
            what: what.into(),
        };
        assert_eq!(team.wait(bad, Duration::MAX), Some(want.clone()));
        assert_eq!(team.wait(next, Duration::MAX), Some(Outcome::Done));
        assert_eq!(team.poll(bad), Some(want));
        assert_eq!(
            failing.after.load(Ordering::SeqCst),
            0,
            "launch 2 was skipped"
        );
        good.check(1);
    }
}

/// Waits at a barrier: runs only with as many threads as it has tiles.
struct Meeting(Barrier);

impl Work for Meeting {
    fn launches(&self) -> usize {
        2
    }
    fn tiles(&self, _: usize) -> u32 {
        3
    }
    fn run(&self, _: usize, _: u32, _: &mut Scratch) -> Result<(), String> {
        self.0.wait();
        Ok(())
    }
}

#[test]
fn all_threads_are_woken_for_a_launch_that_has_tiles_for_them() {
    let team = team(3, 0);
    for _ in 0..50 {
        let ticket = team.submit(Arc::new(Meeting(Barrier::new(3))));
        assert_eq!(
            team.wait(ticket, Duration::from_secs(60)),
            Some(Outcome::Done)
        );
    }
}

/// A tile that waits until it is let go.
struct Held(Arc<AtomicU32>);

impl Work for Held {
    fn launches(&self) -> usize {
        1
    }
    fn tiles(&self, _: usize) -> u32 {
        1
    }
    fn run(&self, _: usize, _: u32, _: &mut Scratch) -> Result<(), String> {
        while self.0.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        Ok(())
    }
}

#[test]
fn a_wait_gives_up_at_its_timeout_and_the_work_goes_on() {
    let team = team(1, 0);
    let go = Arc::new(AtomicU32::new(0));
    let ticket = team.submit(Arc::new(Held(go.clone())));
    assert_eq!(team.wait(ticket, Duration::from_millis(1)), None);
    assert_eq!(team.poll(ticket), None);
    go.store(1, Ordering::SeqCst);
    assert_eq!(team.wait(ticket, Duration::MAX), Some(Outcome::Done));
}
