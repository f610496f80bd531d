// SPDX-License-Identifier: MIT OR Apache-2.0
//! `met verify`: a model against reference logits, along every kind of schedule.
//!
//! The prompt of the reference runs as one prefill, in chunks, token by token, and among other sequences; each time every
//! row of logits is compared with the reference, and its bits with those of the first run. Then the greedy continuation
//! is decoded. A schedule must not change a bit; the difference from the reference is held to the caller's bound.

mod reference;
mod schedule;

use std::time::Duration;

use metrale_circuit::{Instance, Plan};
use metrale_core::{ArenaKind, Elem, SampleRow, StepBlock, StepFull, StepLayout, StepLimits};
use metrale_gpu_runtime::{DeviceFault, Progress};

pub use reference::{Reference, ReferenceError};
pub use schedule::{Run, Schedule};

use crate::traits::Model;

/// Sequences of the crowd, the one that is watched among them.
pub const CROWD: u32 = 8;

/// The outcome of one schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleReport {
    /// Its name (`chunks of 7`).
    pub name: String,
    /// Largest difference from the reference over all rows and tokens.
    pub max_diff: f32,
    /// Mean difference.
    pub mean_diff: f64,
    /// Rows whose bits differ from those of the first schedule.
    pub rows_differing: u32,
}

/// The outcome of a verification.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// One per schedule.
    pub schedules: Vec<ScheduleReport>,
    /// Greedy steps that were compared: those before the reference's margin first falls below twice the bound, and, under
    /// roundings coarser than those of f32, before the first in which experts are chosen by a near tie.
    pub greedy_compared: u32,
    /// How many of them gave the reference's token.
    pub greedy_equal: u32,
    /// The bound on `max_diff`.
    pub bound: f32,
}

impl Report {
    /// Whether everything agrees.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.greedy_equal == self.greedy_compared
            && self
                .schedules
                .iter()
                .all(|s| s.max_diff <= self.bound && s.rows_differing == 0)
    }
}

/// A verification could not run.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceFault),
    /// The model was planned for smaller steps than the reference needs.
    #[error(transparent)]
    Full(#[from] StepFull),
    /// The reference was made for another vocabulary.
    #[error(
        "the reference has {reference} logits a row and the model {model}: it belongs to another checkpoint"
    )]
    Vocab {
        /// Of the reference.
        reference: u32,
        /// Of the model.
        model: u32,
    },
}

/// Step limits that a verification against `reference` needs.
#[must_use]
pub fn limits(reference: &Reference) -> StepLimits {
    let tokens = (reference.input_ids.len() + reference.greedy_ids.len()) as u32;
    StepLimits {
        rows: CROWD * tokens,
        logits_rows: tokens.max(CROWD),
        slots: CROWD,
        blocks_per_slot: tokens.div_ceil(metrale_core::KV_BLOCK),
        tables: 1,
        history: 1,
        bias: 1,
        mask_words: 0,
    }
}

/// A bound for a reference that does not record what rounding did to it: 8 times the error of a random walk of f32
/// roundings (unit 2^-24), one for each step of each matrix's contraction, relative to the largest logit. Looser than a
/// recorded difference by a factor of 2 to 5 on the tiny fixtures, and still far below what a wrong parameter does.
#[must_use]
pub fn estimated_bound(instance: &Instance, reference: &Reference) -> f32 {
    let matrices = instance.weights().iter().filter(|w| w.shape.len() == 2);
    let steps: u64 = matrices.map(|w| w.shape[1]).sum();
    let largest = reference.logits.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    8.0 * (steps as f32).sqrt() * f32::EPSILON / 2.0 * largest
}

/// The bound of a plan, from that of f32 arithmetic (`exact`, which consists of roundings of 2^-24).
///
/// Where weights are quantized it is 512 times that: format a16 is off by half of 1/16383 of a block's largest value, 2^-15.
/// Where activations or the KV pool have 16 bits or 8, their roundings (2^-9 for bf16, 2^-12 for f16, 2^-4 for e4m3) stand for all others: 8
/// times the error of a random walk of eight of them a layer (inputs of four products, q, k, v and the weights of
/// attention) and two behind, relative to the logits' root mean square. A KV pool with scales adds two coarser ones a layer: e4m3
/// has three bits behind the leading one (2^-4); an int8 is off by half of 1/127 of its head's largest value, which is at most
/// the root of their number times their root mean square.
///
/// What roundings to e4m3 do to the logits depends on the model (products of two rounded factors and softmax amplify them), and
/// the walk is loose by 1.5 to 3 there. A reference that records it ([`Reference::f8_diff`]) takes the place of their walk, twice
/// what is recorded: the largest of some 10,000 normal differences lies between 3.3 and 6.5 deviations but for one case in a
/// million at either end, so that of two evaluations with such roundings neither's largest is twice the other's.
///
/// So it is with roundings to bf16 where layers amplify them, as the norms of a recurrence do whose output is small: a reference
/// that records more than half of the walk ([`Reference::bf16_diff`], the largest of eight draws) bounds by twice that. No bound
/// holds once a router chooses another expert; such references have prompts whose rows are clear of that.
#[must_use]
pub fn bound_of(plan: &Plan, reference: &Reference, exact: f32) -> f32 {
    let computed = [ArenaKind::Activations, ArenaKind::Kv];
    let holds = |elem| {
        let mut spans = plan.memory.spans.iter();
        spans.any(|s| computed.contains(&s.arena) && s.elem == elem)
    };
    let fp8 = holds(Elem::F8Row) || holds(Elem::F8Block);
    let recorded = reference.f8_diff.filter(|_| fp8).map(|diff| 2.0 * diff);
    let units = [
        (fp8 && recorded.is_none(), 16.0),
        (holds(Elem::BF16), 512.0),
        (holds(Elem::F16), 4096.0),
    ];
    let unit = units.into_iter().find(|(held, _)| *held);
    let unit = unit.map_or(0.0, |(_, parts)| 1.0 / parts);
    let squares = reference
        .logits
        .iter()
        .map(|v| f64::from(*v) * f64::from(*v));
    let mean = squares.sum::<f64>() / reference.logits.len().max(1) as f64;
    let steps = (8 * plan.kv_spans.len() + 2) as f32;
    let walk = 8.0 * steps.sqrt() * unit * mean.sqrt() as f32;
    let scaled = match (holds(Elem::F8E4M3), holds(Elem::I8)) {
        (true, _) => 1.0 / 16.0,
        (false, true) => (plan.kv_head as f32).sqrt() / 254.0,
        (false, false) => 0.0,
    };
    let scaled = 8.0 * (2.0 * plan.kv_spans.len() as f32).sqrt() * scaled * mean.sqrt() as f32;
    let amplified = reference.bf16_diff.filter(|_| holds(Elem::BF16));
    let walk = walk.max(2.0 * amplified.unwrap_or(0.0));
    let walk = walk.max(scaled) + recorded.unwrap_or(0.0);
    let integer = if holds(Elem::A16) { 512.0 } else { 1.0 };
    (exact * integer).max(walk)
}

/// KV blocks that a verification with these limits needs.
#[must_use]
pub fn kv_blocks(limits: &StepLimits) -> u64 {
    u64::from(limits.slots * limits.blocks_per_slot)
}

/// Runs every schedule. The model must have been planned for at least [`limits`] and [`kv_blocks`].
///
/// # Errors
/// [`VerifyError`]; a disagreement is no error but a report.
pub fn verify(
    model: &mut dyn Model,
    reference: &Reference,
    bound: f32,
) -> Result<Report, VerifyError> {
    if model.vocab() != reference.vocab {
        return Err(VerifyError::Vocab {
            reference: reference.vocab,
            model: model.vocab(),
        });
    }
    let mut runner = Runner::new(model, reference);
    let mut first: Option<Vec<u64>> = None;
    let mut schedules = Vec::new();
    for schedule in schedule::all(&reference.input_ids, reference.vocab) {
        let outcome = runner.run(&schedule)?;
        let hashes = first.get_or_insert_with(|| outcome.hashes.clone());
        schedules.push(ScheduleReport {
            name: schedule.name.clone(),
            max_diff: outcome.max_diff,
            mean_diff: outcome.mean_diff,
            rows_differing: hashes
                .iter()
                .zip(&outcome.hashes)
                .filter(|(a, b)| a != b)
                .count() as u32,
        });
    }
    let (greedy_compared, greedy_equal) = runner.greedy(bound)?;
    Ok(Report {
        schedules,
        greedy_compared,
        greedy_equal,
        bound,
    })
}

struct Outcome {
    hashes: Vec<u64>,
    max_diff: f32,
    mean_diff: f64,
}

struct Runner<'a> {
    model: &'a mut dyn Model,
    reference: &'a Reference,
    block: StepBlock,
    row: Vec<f32>,
}

impl<'a> Runner<'a> {
    fn new(model: &'a mut dyn Model, reference: &'a Reference) -> Runner<'a> {
        let block = StepBlock::new(std::sync::Arc::new(StepLayout::new(*model.limits())));
        let row = vec![0.0; model.vocab() as usize];
        Runner {
            model,
            reference,
            block,
            row,
        }
    }

    fn run(&mut self, schedule: &Schedule) -> Result<Outcome, VerifyError> {
        let rows = self.reference.input_ids.len();
        let mut outcome = Outcome {
            hashes: vec![0; rows],
            max_diff: 0.0,
            mean_diff: 0.0,
        };
        self.block.clear();
        self.tables()?;
        for step in &schedule.steps {
            let watched = self.fill(step)?;
            self.step()?;
            for (index, position) in watched.enumerate() {
                self.model.logits(index as u32, &mut self.row)?;
                outcome.hashes[position as usize] = self.model.logits_hash(index as u32)?;
                let want = self.reference.row(position as usize);
                for (got, want) in self.row.iter().zip(want) {
                    // A NaN must not pass as the smaller of two values.
                    let diff = if got.is_nan() {
                        f32::INFINITY
                    } else {
                        (got - want).abs()
                    };
                    outcome.max_diff = outcome.max_diff.max(diff);
                    outcome.mean_diff += f64::from(diff);
                }
            }
            self.block.clear();
        }
        outcome.mean_diff /= (rows * self.row.len()) as f64;
        Ok(outcome)
    }

    /// Every slot gets its own blocks, spread backwards over the pool so that no test passes by lying in order.
    fn tables(&mut self) -> Result<(), StepFull> {
        let StepLimits {
            slots,
            blocks_per_slot,
            tables,
            ..
        } = *self.model.limits();
        let entries = slots * blocks_per_slot;
        for (group, entry) in (0..tables).flat_map(|g| (0..entries).map(move |e| (g, e))) {
            let table = group * slots + entry / blocks_per_slot;
            let block = entries - 1 - entry;
            self.block
                .push_delta(table, entry % blocks_per_slot, block)?;
        }
        Ok(())
    }

    /// Fills the block with a step; gives the positions of the watched sequence (slot 0), whose logits are all wanted.
    fn fill(&mut self, step: &[Run]) -> Result<std::ops::Range<u32>, StepFull> {
        let mut watched = 0..0;
        for run in step {
            let item = self.block.push_run(run.slot, run.first, &run.tokens)?;
            if run.slot == 0 {
                watched = run.first..run.first + item.rows;
                for row in 0..item.rows {
                    let sample = SampleRow::greedy(run.first + row + 1);
                    self.block
                        .push_logits(item.first_row + row, &sample, &[], &[])?;
                }
            }
        }
        Ok(watched)
    }

    fn step(&mut self) -> Result<(), DeviceFault> {
        self.model.submit(&self.block)?;
        while self.model.wait(Duration::from_secs(1))? == Progress::Running {}
        Ok(())
    }

    /// Prefills the prompt and decodes greedily: (steps compared, steps equal).
    fn greedy(&mut self, bound: f32) -> Result<(u32, u32), VerifyError> {
        self.block.clear();
        self.tables()?;
        let prompt = &self.reference.input_ids;
        let clear = self
            .reference
            .greedy_gap
            .iter()
            .take_while(|gap| **gap > 2.0 * bound)
            .count();
        let rough = self.reference.f64_diff.is_none_or(|d| bound > 8.0 * d);
        let routed = self.reference.greedy_clear.filter(|_| rough);
        let clear = routed.map_or(clear, |n| clear.min(n as usize));
        let (mut first, mut tokens, mut equal) = (0, prompt.clone(), 0);
        for want in &self.reference.greedy_ids[..clear] {
            let item = self.block.push_run(0, first, &tokens)?;
            first += item.rows;
            self.block.push_logits(
                item.first_row + item.rows - 1,
                &SampleRow::greedy(first),
                &[],
                &[],
            )?;
            self.step()?;
            let got = self.model.result(0, 0, &mut Vec::new())?.token;
            equal += u32::from(got == *want);
            tokens = vec![*want];
            self.block.clear();
        }
        Ok((clear as u32, equal))
    }
}
