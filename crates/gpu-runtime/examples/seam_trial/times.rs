// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the seam costs: recording, replaying, sending step blocks, waiting.

use std::sync::Arc;
use std::time::{Duration, Instant};

use metrale_core::{Arg, Elem, StepBlock, StepLayout};
use metrale_gpu_runtime::{CudaBackend, GpuBackend, Launch, Loc, Program, Queue};

use crate::chain::{Chain, Group, LIMITS};
use crate::model::{Model, PLAIN};
use crate::rig::{Blocks, Rig, Run};

const REPLAYS: usize = 1000;
const MINUTE: Duration = Duration::from_secs(60);

pub fn run(cuda: &CudaBackend) {
    let model = Model::random(PLAIN, 5);
    let rig = Rig::new(cuda, &model, Chain::new(&model, Elem::BF16));
    let run = Run {
        slot: 0,
        first: 0,
        tokens: vec![3],
        wanted: Vec::new(),
    };
    let step = rig.block(&[run], &mut Blocks::new(0));
    rig.submit(&step).unwrap();

    println!("\n== times (medians of {REPLAYS} replays)");
    println!(
        "{:<34} {:>9} {:>12} {:>12} {:>12}",
        "program", "launches", "record us", "alone us", "back-to-back"
    );
    let (forward, sample) = (rig.forward[0].1, rig.sample[0].1);
    line(
        cuda,
        "chain, forward[1]",
        rig.chain.forward.len(),
        rig.recorded[0].2,
        forward,
        &step,
    );
    line(
        cuda,
        "chain, sample[1]",
        rig.chain.sample.len(),
        rig.recorded[1].2,
        sample,
        &step,
    );

    // Launches that find nothing to do: what a launch costs inside a graph.
    let nothing = StepBlock::new(rig.layout.clone());
    let tables = rig.bind(&rig.chain.forward[0]);
    let add = rig.bind(
        rig.chain
            .forward
            .iter()
            .find(|g| g.point == "add/f32")
            .unwrap(),
    );
    for (name, launch, count) in [
        ("tables, no deltas", tables, 1),
        ("tables, no deltas", tables, 300),
        ("add, no rows", add, 300),
    ] {
        for bucket in [1, 64] {
            let free = cuda.free_memory().unwrap();
            let start = Instant::now();
            let program = cuda.record(&vec![launch; count], bucket).unwrap();
            let recorded = start.elapsed();
            let taken = free - cuda.free_memory().unwrap();
            line(
                cuda,
                &format!("{name}, bucket {bucket}"),
                count,
                recorded,
                program,
                &nothing,
            );
            if taken > 0 {
                println!("    device memory taken by the program: {taken} bytes");
            }
        }
    }
    outputs(&rig, sample);
    many(cuda, tables);
    blocks(cuda);
    cuda.release(rig.arenas);
}

fn line(
    cuda: &CudaBackend,
    name: &str,
    launches: usize,
    recorded: Duration,
    program: Program,
    step: &StepBlock,
) {
    let once = |step| cuda.submit(Queue(0), program, step, &[]).unwrap();
    for _ in 0..20 {
        cuda.wait(once(step), MINUTE).unwrap();
    }
    let mut alone: Vec<Duration> = (0..REPLAYS)
        .map(|_| {
            let start = Instant::now();
            cuda.wait(once(step), MINUTE).unwrap();
            start.elapsed()
        })
        .collect();
    alone.sort();
    let start = Instant::now();
    let mut last = None;
    for _ in 0..REPLAYS {
        last = Some(once(step));
    }
    let submitted = start.elapsed();
    cuda.wait(last.unwrap(), MINUTE).unwrap();
    let train = start.elapsed();
    let us = |d: Duration| d.as_secs_f64() * 1e6;
    println!(
        "{name:<34} {launches:>9} {:>12.0} {:>12.1} {:>12.1}   ({:.2} us a launch; submit {:.1} us; p99 {:.1})",
        us(recorded),
        us(alone[REPLAYS / 2]),
        us(train) / REPLAYS as f64,
        us(train) / REPLAYS as f64 / launches as f64,
        us(submitted) / REPLAYS as f64,
        us(alone[REPLAYS * 99 / 100]),
    );
}

/// What the engine reads after a step: three words a row, one at a time.
fn outputs(rig: &Rig<'_>, sample: Program) {
    let tokens = (0..64).collect();
    let run = Run {
        slot: 0,
        first: 0,
        tokens,
        wanted: Vec::new(),
    };
    let step = rig.block(&[run], &mut Blocks::new(0));
    rig.submit(&step).unwrap();
    let mut times: Vec<Duration> = (0..REPLAYS / 10)
        .map(|_| {
            let none = StepBlock::new(rig.layout.clone());
            let fence = rig.backend.submit(Queue(0), sample, &none, &[]).unwrap();
            rig.backend.wait(fence, MINUTE).unwrap();
            let start = Instant::now();
            for row in 0..64 {
                let o = rig.chain.outputs;
                for span in [o.token, o.logprob, o.status] {
                    let at = Loc {
                        span,
                        offset: row * 4,
                    };
                    rig.backend.read(rig.arenas, at, &mut [0; 4]).unwrap();
                }
            }
            start.elapsed()
        })
        .collect();
    times.sort();
    let us = times[times.len() / 2].as_secs_f64() * 1e6;
    println!("reading token, log-probability and status of 64 rows: {us:.1} us");
}

/// Programs of a real size: what all buckets together cost between listening and ready.
fn many(cuda: &CudaBackend, launch: Launch) {
    let free = cuda.free_memory().unwrap();
    let start = Instant::now();
    let programs: Vec<Program> = (0..32)
        .map(|i| cuda.record(&vec![launch; 400], 1 + i * 8).unwrap())
        .collect();
    let time = start.elapsed();
    let taken = free - cuda.free_memory().unwrap();
    println!(
        "32 programs of 400 launches: {:.1} ms to record, {} KiB of device memory",
        time.as_secs_f64() * 1e3,
        taken / 1024
    );
    assert_eq!(programs.len(), 32);
}

/// Step blocks of many rows: what sending them costs.
fn blocks(cuda: &CudaBackend) {
    for rows in [1u32, 256, 2048, 8192] {
        let limits = metrale_core::StepLimits {
            rows: 8192,
            logits_rows: 256,
            slots: 256,
            blocks_per_slot: 64,
            tables: 1,
            ..LIMITS
        };
        let layout = Arc::new(StepLayout::new(limits));
        let mut plan = metrale_core::MemoryPlan::default();
        plan.spans.push(metrale_core::Span {
            name: "tables".into(),
            arena: metrale_core::ArenaKind::State,
            offset: 0,
            bytes: u64::from(limits.slots * limits.blocks_per_slot) * 4,
            elem: Elem::U32,
            extent: metrale_core::Extent {
                unit: metrale_core::Unit::Slot,
                elems: 64,
            },
            live: None,
        });
        let arenas = cuda.reserve(&plan, &limits).unwrap();
        let group = Group {
            point: "tables/u32".into(),
            args: vec![
                Arg::Buf {
                    span: metrale_core::SpanId(0),
                    access: metrale_core::Access::ReadWrite,
                },
                Arg::U32(0),
                Arg::U32(limits.slots * limits.blocks_per_slot),
                Arg::Step,
            ],
        };
        let kernel = cuda
            .resolve(&metrale_core::PointId::parse(&group.point).unwrap())
            .unwrap();
        let launch = cuda
            .bind(
                arenas,
                &[(metrale_core::RowRange::ALL, kernel)],
                &group.args,
            )
            .unwrap();
        let program = cuda.record(&[launch], 8192).unwrap();
        let mut step = StepBlock::new(layout);
        let runs = rows.min(256);
        for slot in 0..runs {
            step.push_run(slot, 0, &vec![1; (rows / runs) as usize])
                .unwrap();
        }
        let mut packed = vec![0; step.layout().words()];
        let bytes = step.pack_live(&mut packed) * 4;
        let name = format!("step block of {rows} rows, {bytes} B");
        line(cuda, &name, 1, Duration::ZERO, program, &step);
        cuda.release(arenas);
    }
}
