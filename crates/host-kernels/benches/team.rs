// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the seam costs on the host: a program of 300 launches, empty and of real tiles, alone and beside a busy process.
//!
//! `cargo bench -p metrale-host-kernels --bench team`
//!
//! The requirement: 300 empty launches on two threads cost at most 260 us, 2 % of a 13 ms token (mean of 400 steps); with
//! one core taken by another job, 300 launches of real tiles (13 ms on one thread) keep at least 0.9 of the speed of one
//! thread. The busy process is this program started again with `--busy`.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrale_host_kernels::Scratch;
use metrale_host_kernels::team::{Outcome, Team, TeamOptions, Work};

const LAUNCHES: usize = 300;
const STEPS: usize = 400;

/// `tiles` tiles per launch, each `rounds` rounds of arithmetic on a few kilobytes.
struct Program {
    tiles: u32,
    rounds: usize,
    data: Vec<f32>,
}

impl Work for Program {
    fn launches(&self) -> usize {
        LAUNCHES
    }
    fn tiles(&self, _: usize) -> u32 {
        self.tiles
    }
    fn run(&self, _: usize, _: u32, _: &mut Scratch) -> Result<(), String> {
        let mut sum = [0.0f32; 8];
        for _ in 0..self.rounds {
            for chunk in self.data.chunks_exact(8) {
                for i in 0..8 {
                    sum[i] = sum[i] * 0.5 + chunk[i];
                }
            }
        }
        std::hint::black_box(sum);
        Ok(())
    }
}

/// Mean time of a step, after a few to warm up.
fn measure(threads: usize, tiles: u32, rounds: usize) -> Duration {
    let team = Team::new(&TeamOptions::new(threads)).unwrap();
    let program: Arc<dyn Work> = Arc::new(Program {
        tiles,
        rounds,
        data: vec![1.0; 1024],
    });
    let step = || {
        let ticket = team.submit(program.clone());
        assert_eq!(
            team.wait(ticket, Duration::from_secs(60)),
            Some(Outcome::Done)
        );
    };
    (0..20).for_each(|_| step());
    let begin = Instant::now();
    (0..STEPS).for_each(|_| step());
    begin.elapsed() / STEPS as u32
}

/// The busy neighbour; ended with the value.
struct Busy(Child);

impl Busy {
    fn start() -> Busy {
        let exe = std::env::current_exe().unwrap();
        let busy = Busy(Command::new(exe).arg("--busy").spawn().unwrap());
        std::thread::sleep(Duration::from_millis(200));
        busy
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn main() {
    if std::env::args().any(|a| a == "--busy") {
        let mut x = 1u64;
        loop {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
    }
    let us = |d: Duration| d.as_secs_f64() * 1e6;
    for threads in [1, 2] {
        for tiles in [1, 2, 8] {
            let t = us(measure(threads, tiles, 0));
            println!("{LAUNCHES} launches of {tiles} empty tiles, {threads} threads: {t:7.0} us");
        }
    }
    // Tiles so long that the program takes 13 ms on one thread.
    let tiles = 8;
    let trial = measure(1, tiles, 10).as_secs_f64();
    let rounds = ((0.013 / trial * 10.0) as usize).max(1);
    let alone = us(measure(1, tiles, rounds));
    println!("{LAUNCHES} launches of {tiles} real tiles, 1 thread,  alone: {alone:7.0} us");
    let two = us(measure(2, tiles, rounds));
    println!(
        "{LAUNCHES} launches of {tiles} real tiles, 2 threads, alone: {two:7.0} us, {:.2}x",
        alone / two
    );
    let busy = Busy::start();
    for _ in 0..3 {
        let one = us(measure(1, tiles, rounds));
        let two = us(measure(2, tiles, rounds));
        println!(
            "beside a busy process: 1 thread {one:7.0} us ({:.2}x), 2 threads {two:7.0} us ({:.2}x of one thread alone)",
            alone / one,
            alone / two
        );
    }
    drop(busy);
}
