// SPDX-License-Identifier: MIT OR Apache-2.0
//! A chain on a backend: packed, bound, recorded by bucket, and stepped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrale_core::{
    ArenaKind, Arg, HistoryEntry, KV_BLOCK, PointId, RowRange, SampleRow, SpanId, StepBlock,
    StepLayout,
};
use metrale_gpu_runtime::{
    ArenasId, DeviceFault, GpuBackend, Launch, Loc, Program, Progress, Queue,
};

use crate::chain::{Chain, Group, KV_BLOCKS, LIMITS};
use crate::model::Model;

pub const BUCKETS: [u32; 3] = [1, 8, 64];
const SECONDS: Duration = Duration::from_secs(20);

pub struct Rig<'a> {
    pub backend: &'a dyn GpuBackend,
    pub chain: Chain,
    pub arenas: ArenasId,
    pub forward: Vec<(u32, Program)>,
    pub sample: Vec<(u32, Program)>,
    pub layout: Arc<StepLayout>,
    /// Time to record each program, with its launches.
    pub recorded: Vec<(String, usize, Duration)>,
}

/// One row whose logits are wanted.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub sample: SampleRow,
    pub history: Vec<HistoryEntry>,
    pub bias: Vec<(u32, f32)>,
}

/// One sequence's part in a step.
#[derive(Clone, Debug)]
pub struct Run {
    pub slot: u32,
    pub first: u32,
    pub tokens: Vec<u32>,
    /// Logits of each of its rows, in order; greedy where not stated.
    pub wanted: Vec<Wanted>,
}

/// What a row gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub logits: Vec<u32>,
    pub token: u32,
    pub logprob: u32,
    pub top: Vec<u32>,
    pub status: u32,
}

impl Answer {
    /// FNV-1a over the bits of the row.
    pub fn hash(&self) -> u64 {
        let bytes = self.logits.iter().flat_map(|w| w.to_le_bytes());
        bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
        })
    }
}

impl<'a> Rig<'a> {
    pub fn new(backend: &'a dyn GpuBackend, model: &Model, chain: Chain) -> Rig<'a> {
        let arenas = backend.reserve(&chain.plan, &LIMITS).unwrap();
        let layout = Arc::new(StepLayout::new(LIMITS));
        let mut rig = Rig {
            backend,
            chain,
            arenas,
            forward: Vec::new(),
            sample: Vec::new(),
            layout,
            recorded: Vec::new(),
        };
        rig.poison();
        rig.pack(model);
        let forward: Vec<Launch> = rig.chain.forward.iter().map(|g| rig.bind(g)).collect();
        let sample: Vec<Launch> = rig.chain.sample.iter().map(|g| rig.bind(g)).collect();
        for bucket in BUCKETS {
            for (name, launches) in [("forward", &forward), ("sample", &sample)] {
                let start = Instant::now();
                let program = backend.record(launches, bucket).unwrap();
                rig.recorded
                    .push((format!("{name}[{bucket}]"), launches.len(), start.elapsed()));
                let list = if name == "forward" {
                    &mut rig.forward
                } else {
                    &mut rig.sample
                };
                list.push((bucket, program));
            }
        }
        rig
    }

    pub fn bind(&self, group: &Group) -> Launch {
        let kernel = self
            .backend
            .resolve(&PointId::parse(&group.point).unwrap())
            .unwrap();
        self.backend
            .bind(self.arenas, &[(RowRange::ALL, kernel)], &group.args)
            .unwrap_or_else(|e| panic!("{}: {e}", group.point))
    }

    fn pack(&self, model: &Model) {
        let empty = StepBlock::new(self.layout.clone());
        let place = |span| Loc { span, offset: 0 };
        for weight in &self.chain.weights {
            self.backend
                .write(self.arenas, place(self.chain.staging), &weight.bytes)
                .unwrap();
            let access = |span, access| Arg::Buf { span, access };
            let launch = self.bind(&Group {
                point: weight.point.clone(),
                args: vec![
                    access(self.chain.staging, metrale_core::Access::Read),
                    access(weight.span, metrale_core::Access::Write),
                    Arg::U32(weight.rows),
                    Arg::U32(weight.cols),
                    Arg::U32(0),
                    Arg::U32(weight.rows),
                ],
            });
            self.backend.run_once(launch, &empty).unwrap();
        }
        let bytes: Vec<u8> = model
            .inv_freq
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        self.backend
            .write(self.arenas, place(self.chain.inv_freq), &bytes)
            .unwrap();
    }

    /// NaN in everything that a step must write before it reads it: activations, outputs, the KV pool, and stale tables.
    pub fn poison(&self) {
        for (i, span) in self.chain.plan.spans.iter().enumerate() {
            let byte = match span.arena {
                ArenaKind::Activations
                | ArenaKind::Outputs
                | ArenaKind::Kv
                | ArenaKind::Weights => 0xff,
                ArenaKind::State => 0,
                ArenaKind::Staging => continue,
            };
            if span.arena == ArenaKind::Weights && !self.forward.is_empty() {
                continue;
            }
            let at = Loc {
                span: SpanId(i as u32),
                offset: 0,
            };
            self.backend
                .write(self.arenas, at, &vec![byte; span.bytes as usize])
                .unwrap();
        }
    }

    pub fn read(&self, span: SpanId, words: usize) -> Vec<u32> {
        let mut bytes = vec![0; words * 4];
        self.backend
            .read(self.arenas, Loc { span, offset: 0 }, &mut bytes)
            .unwrap();
        bytes
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect()
    }

    /// The step block of some runs; blocks are dealt out as slots first reach them.
    pub fn block(&self, runs: &[Run], blocks: &mut Blocks) -> StepBlock {
        let mut step = StepBlock::new(self.layout.clone());
        for run in runs {
            let item = step.push_run(run.slot, run.first, &run.tokens).unwrap();
            for row in 0..run.tokens.len() as u32 {
                let position = run.first + row;
                if let Some((index, block)) = blocks.take(run.slot, position) {
                    step.push_delta(run.slot, index, block).unwrap();
                }
                let greedy = SampleRow::greedy(position + 1);
                let (sample, history, bias) = match run.wanted.get(row as usize) {
                    Some(w) => (&w.sample, w.history.as_slice(), w.bias.as_slice()),
                    None => (&greedy, [].as_slice(), [].as_slice()),
                };
                step.push_logits(item.first_row + row, sample, history, bias)
                    .unwrap();
            }
        }
        step
    }

    pub fn program(list: &[(u32, Program)], rows: u32) -> Program {
        list.iter().find(|(bucket, _)| rows <= *bucket).unwrap().1
    }

    /// Runs both programs on a step block.
    pub fn submit(&self, step: &StepBlock) -> Result<(), DeviceFault> {
        let counts = step.counts();
        let forward = Self::program(&self.forward, counts.rows);
        let sample = Self::program(&self.sample, counts.logits_rows);
        let first = self.backend.submit(Queue(0), forward, step, &[])?;
        let second = self.backend.submit(Queue(0), sample, step, &[first])?;
        for fence in [first, second] {
            assert_eq!(
                self.backend.wait(fence, SECONDS)?,
                Progress::Done,
                "the device hangs"
            );
        }
        Ok(())
    }

    /// The answers of the step that ran last.
    pub fn answers(&self, rows: usize) -> Vec<Answer> {
        let o = self.chain.outputs;
        let vocab = self.chain.plan.span(o.logits).extent.elems as usize;
        let logits = self.read(o.logits, rows * vocab);
        let token = self.read(o.token, rows);
        let (logprob, top, status) = (
            self.read(o.logprob, rows),
            self.read(o.top, rows * 40),
            self.read(o.status, rows),
        );
        (0..rows)
            .map(|r| Answer {
                logits: logits[r * vocab..(r + 1) * vocab].to_vec(),
                token: token[r],
                logprob: logprob[r],
                top: top[r * 40..(r + 1) * 40].to_vec(),
                status: status[r],
            })
            .collect()
    }

    /// Every tap's bits for the rows of the step that ran last.
    pub fn taps(&self, rows: usize) -> BTreeMap<String, Vec<u32>> {
        let name = |span: SpanId| self.chain.plan.span(span).name.clone();
        self.chain
            .taps
            .iter()
            .map(|(span, cols)| (name(*span), self.read(*span, rows * cols)))
            .collect()
    }
}

/// Which blocks the slots have: dealt from the end of the pool in a scattered order.
pub struct Blocks {
    next: u64,
    held: BTreeMap<(u32, u32), u32>,
}

impl Blocks {
    pub fn new(seed: u64) -> Blocks {
        Blocks {
            next: seed,
            held: BTreeMap::new(),
        }
    }

    fn take(&mut self, slot: u32, position: u32) -> Option<(u32, u32)> {
        let index = position / KV_BLOCK;
        if self.held.contains_key(&(slot, index)) {
            return None;
        }
        // 41 has no factor in common with the pool's 96 blocks: every block comes once.
        let block = (self.next * 41 % KV_BLOCKS) as u32;
        self.next += 1;
        self.held.insert((slot, index), block);
        Some((index, block))
    }
}
