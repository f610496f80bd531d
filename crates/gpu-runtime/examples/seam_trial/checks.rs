// SPDX-License-Identifier: MIT OR Apache-2.0
//! What must hold before any time means anything.

use std::collections::BTreeMap;
use std::time::Duration;

use metrale_core::{Elem, HistoryEntry, SampleRow};
use metrale_gpu_runtime::{CudaBackend, GpuBackend, Loc, Queue};

use crate::chain::{Chain, LIMITS};
use crate::model::{Model, Random, Shape};
use crate::rig::{Blocks, Rig, Run, Wanted};

/// Lengths of the sequences: one crosses a cut of 256 keys, one is a single token.
const LENGTHS: [usize; 5] = [37, 290, 1, 20, 64];

#[derive(Default)]
pub struct Report(Vec<(bool, String)>);

impl Report {
    fn check(&mut self, good: bool, text: String) {
        println!("{} {text}", if good { "ok  " } else { "FAIL" });
        self.0.push((good, text));
    }

    pub fn failed(&self) -> bool {
        self.0.iter().any(|(good, _)| !good)
    }

    pub fn print(&self) {
        let bad = self.0.iter().filter(|(good, _)| !good).count();
        println!("\n{} checks, {bad} failed", self.0.len());
        for (_, text) in self.0.iter().filter(|(good, _)| !good) {
            println!("FAIL {text}");
        }
    }
}

/// Hash and greedy token of each (sequence, position).
type Rows = BTreeMap<(usize, usize), (u64, u32)>;

pub fn run(
    device: &dyn GpuBackend,
    host: &dyn GpuBackend,
    shape: &Shape,
    kv: Elem,
    quick: bool,
    report: &mut Report,
) {
    let name = format!(
        "hidden {}, head_dim {}, KV {kv}",
        shape.hidden, shape.head_dim
    );
    println!("\n== {name}");
    let model = Model::random(*shape, 0xc0ff_ee00 + shape.hidden as u64);
    let rig = Rig::new(device, &model, Chain::new(&model, kv));
    let reference = Rig::new(host, &model, Chain::new(&model, kv));
    for (program, launches, time) in &rig.recorded {
        println!(
            "recorded {program}: {launches} launches in {:.0} us",
            time.as_secs_f64() * 1e6
        );
    }
    let mut random = Random(7);
    let lengths: &[usize] = if quick { &LENGTHS[2..4] } else { &LENGTHS };
    let tokens: Vec<Vec<u32>> = lengths
        .iter()
        .map(|n| (0..*n).map(|_| random.below(shape.vocab) as u32).collect())
        .collect();

    taps(&rig, &reference, &tokens, report);
    let alone = schedule(&rig, &tokens, &alone(&tokens, 64), 1);
    let want = schedule(&reference, &tokens, &crowd(&tokens, 3), 5);
    report.check(
        alone == want,
        format!("logits of {} rows have the host's bits", want.len()),
    );
    let mut ways = vec![
        ("crowd".to_owned(), crowd(&tokens, 11)),
        ("another crowd".to_owned(), crowd(&tokens, 12)),
    ];
    for chunk in if quick { vec![7] } else { vec![1, 7, 16] } {
        ways.push((format!("chunks of {chunk}"), self::alone(&tokens, chunk)));
    }
    for (i, (way, steps)) in ways.iter().enumerate() {
        let rows = schedule(&rig, &tokens, steps, i as u64 * 17);
        report.check(
            rows == alone,
            format!("row hashes: {way} ({} steps) = alone", steps.len()),
        );
    }
    if kv == Elem::F32 {
        bound(&rig, &model, &tokens, report);
    }
    sampling(&rig, &reference, shape.vocab, quick, report);
    faults(&rig, shape.vocab, report);
    device.release(rig.arenas);
    host.release(reference.arenas);
}

/// Each sequence for itself, in chunks: steps of (sequence, count).
fn alone(tokens: &[Vec<u32>], chunk: usize) -> Vec<Vec<(usize, usize)>> {
    let chunks = |(i, t): (usize, &Vec<u32>)| {
        let (whole, rest) = (t.len() / chunk, t.len() % chunk);
        let mut steps = vec![vec![(i, chunk)]; whole];
        if rest > 0 {
            steps.push(vec![(i, rest)]);
        }
        steps
    };
    tokens.iter().enumerate().flat_map(chunks).collect()
}

/// All sequences at once, each with some rows of its own in a step.
fn crowd(tokens: &[Vec<u32>], seed: u64) -> Vec<Vec<(usize, usize)>> {
    let mut random = Random(seed);
    let mut left: Vec<usize> = tokens.iter().map(Vec::len).collect();
    let mut steps = Vec::new();
    while left.iter().any(|n| *n > 0) {
        let mut step = Vec::new();
        let mut room = LIMITS.rows as usize;
        for k in 0..left.len() {
            let i = (k + seed as usize) % left.len();
            let n = left[i].min(1 + random.below(23)).min(room);
            if n > 0 && random.below(4) > 0 {
                step.push((i, n));
                left[i] -= n;
                room -= n;
            }
        }
        if !step.is_empty() {
            steps.push(step);
        }
    }
    steps
}

fn schedule(rig: &Rig<'_>, tokens: &[Vec<u32>], steps: &[Vec<(usize, usize)>], seed: u64) -> Rows {
    rig.poison();
    let mut blocks = Blocks::new(seed);
    let mut at = vec![0; tokens.len()];
    let mut rows = Rows::new();
    for step in steps {
        let runs: Vec<Run> = step
            .iter()
            .map(|(i, n)| Run {
                slot: ((i + seed as usize) % tokens.len()) as u32,
                first: at[*i] as u32,
                tokens: tokens[*i][at[*i]..at[*i] + n].to_vec(),
                wanted: Vec::new(),
            })
            .collect();
        rig.submit(&rig.block(&runs, &mut blocks)).unwrap();
        let mut answers = rig.answers(step.iter().map(|(_, n)| n).sum()).into_iter();
        for (i, n) in step {
            for position in at[*i]..at[*i] + n {
                let answer = answers.next().unwrap();
                assert_eq!(answer.status, 0, "sequence {i}, position {position}");
                rows.insert((*i, position), (answer.hash(), answer.token));
            }
            at[*i] += n;
        }
    }
    rows
}

/// One mixed step: every edge of the forward program, bit by bit.
fn taps(rig: &Rig<'_>, reference: &Rig<'_>, tokens: &[Vec<u32>], report: &mut Report) {
    let mut got = Vec::new();
    for rig in [rig, reference] {
        rig.poison();
        let mut blocks = Blocks::new(3);
        let runs: Vec<Run> = tokens
            .iter()
            .enumerate()
            .map(|(i, t)| Run {
                slot: i as u32,
                first: 0,
                tokens: t[..t.len().min(12)].to_vec(),
                wanted: Vec::new(),
            })
            .collect();
        let step = rig.block(&runs, &mut blocks);
        rig.submit(&step).unwrap();
        got.push(rig.taps(step.counts().rows as usize));
    }
    let mut worst = Vec::new();
    for (name, want) in &got[1] {
        let differ = got[0][name]
            .iter()
            .zip(want)
            .filter(|(a, b)| a != b)
            .count();
        if differ > 0 {
            worst.push(format!("{name}: {differ} of {}", want.len()));
        }
    }
    let text = if worst.is_empty() {
        String::new()
    } else {
        format!("; differ: {}", worst.join(", "))
    };
    report.check(
        worst.is_empty(),
        format!("{} taps have the host's bits{text}", got[1].len()),
    );
}

/// Against f64: at most eight times what the same reference loses in f32 (its order differs from the engine's, its length
/// does not).
fn bound(rig: &Rig<'_>, model: &Model, tokens: &[Vec<u32>], report: &mut Report) {
    let (mut largest, mut allowed) = (0.0f64, 0.0f64);
    for t in tokens.iter().filter(|t| t.len() <= 64) {
        let (exact, single) = (model.logits::<f64>(t), model.logits::<f32>(t));
        for (e, s) in exact.iter().flatten().zip(single.iter().flatten()) {
            allowed = allowed.max(8.0 * (f64::from(*s) - e).abs());
        }
        rig.poison();
        let run = Run {
            slot: 2,
            first: 0,
            tokens: t.clone(),
            wanted: Vec::new(),
        };
        rig.submit(&rig.block(&[run], &mut Blocks::new(9))).unwrap();
        for (answer, exact) in rig.answers(t.len()).iter().zip(&exact) {
            for (got, exact) in answer.logits.iter().zip(exact) {
                let error = (f64::from(f32::from_bits(*got)) - exact).abs();
                largest = if error.is_nan() {
                    f64::INFINITY
                } else {
                    largest.max(error)
                };
            }
        }
    }
    report.check(
        largest <= allowed,
        format!("logits against f64: off by {largest:.2e}, bound {allowed:.2e}"),
    );
}

/// Rows with every kind of sampling: token, log-probability, alternatives and status equal the host's.
fn sampling(rig: &Rig<'_>, reference: &Rig<'_>, vocab: usize, quick: bool, report: &mut Report) {
    let mut random = Random(99);
    let mut differ = BTreeMap::new();
    let mut rows = 0;
    for round in 0..if quick { 1 } else { 6 } {
        let mut run = Run {
            slot: 1,
            first: 0,
            tokens: Vec::new(),
            wanted: Vec::new(),
        };
        for _ in 0..24 {
            run.tokens.push(random.below(vocab) as u32);
            run.wanted.push(wanted(&mut random, vocab, round));
        }
        let mut answers = Vec::new();
        for rig in [rig, reference] {
            rig.poison();
            rig.submit(&rig.block(std::slice::from_ref(&run), &mut Blocks::new(1)))
                .unwrap();
            answers.push(rig.answers(run.tokens.len()));
        }
        rows += run.tokens.len();
        for (a, b) in answers[0].iter().zip(&answers[1]) {
            let parts = [
                ("logits", a.logits != b.logits),
                ("token", a.token != b.token),
                ("logprob", a.logprob != b.logprob),
                ("top", a.top != b.top),
                ("status", a.status != b.status),
            ];
            for (part, differs) in parts {
                *differ.entry(part).or_insert(0) += usize::from(differs);
            }
        }
    }
    let bad = differ.values().any(|n| *n > 0);
    report.check(
        !bad,
        format!("{rows} sampled rows equal the host's; differing: {differ:?}"),
    );
}

fn wanted(random: &mut Random, vocab: usize, round: usize) -> Wanted {
    let mut sample = SampleRow::greedy(random.below(1000) as u32);
    let mut choose = |n: usize| random.below(n);
    sample.temperature = [0.0, 0.3, 1.0, 4.0][choose(4)];
    sample.top_k = [0, 1, 5, 3000][choose(4)];
    sample.top_p = [1.0, 0.1, 0.7, 0.99][choose(4)];
    sample.min_p = [0.0, 0.0, 0.05, 0.5][choose(4)];
    sample.top = [0, 1, 20][choose(3)];
    sample.forced = (choose(8) == 0).then(|| choose(vocab) as u32);
    sample.seed = choose(usize::MAX) as u64;
    let (mut history, mut bias) = (Vec::new(), Vec::new());
    if round > 0 && choose(2) == 0 {
        sample.repetition = [1.0, 1.3, 0.8][choose(3)];
        sample.presence = [0.0, 0.5][choose(2)];
        sample.frequency = [0.0, -0.2, 0.4][choose(3)];
        let first = choose(vocab - 12);
        history = (0..8)
            .map(|i| HistoryEntry {
                token: (first + i) as u32,
                output_count: choose(4) as u32,
                in_prompt: choose(2) == 0,
            })
            .collect();
    }
    if round > 1 && choose(3) == 0 {
        bias = vec![(choose(vocab) as u32, 3.5), (vocab as u32 + 5, 1.0)];
        if bias[0].0 as usize == vocab {
            bias.clear();
        }
    }
    Wanted {
        sample,
        history,
        bias,
    }
}

/// Bad step blocks are refused by name, and the next step runs.
fn faults(rig: &Rig<'_>, vocab: usize, report: &mut Report) {
    let run = |slot, first, token| Run {
        slot,
        first,
        tokens: vec![token],
        wanted: Vec::new(),
    };
    rig.poison();
    let mut blocks = Blocks::new(0);
    let good = rig.block(&[run(0, 0, 1)], &mut blocks);
    rig.submit(&good).unwrap();
    let before = rig.answers(1)[0].hash();
    let bad = rig.block(&[run(0, 0, vocab as u32 + 3)], &mut blocks);
    let error = rig.submit(&bad).expect_err("a token past the vocabulary");
    let text = error.what.clone();
    report.check(
        !error.sticky && text.contains("vocabulary"),
        format!("a bad token is refused: {text}"),
    );
    // Position 320 is the first past 20 blocks; no delta can name it, the table ends before.
    let mut step = metrale_core::StepBlock::new(rig.layout.clone());
    step.push_run(0, 320, &[1]).unwrap();
    step.push_logits(0, &SampleRow::greedy(321), &[], &[])
        .unwrap();
    let error = rig.submit(&step).expect_err("a position past the table");
    report.check(
        !error.sticky,
        format!("a bad position is refused: {}", error.what),
    );
    rig.submit(&good).unwrap();
    report.check(
        rig.answers(1)[0].hash() == before,
        "the device goes on after a refusal".into(),
    );

    let place = Loc {
        span: rig.chain.outputs.token,
        offset: 0,
    };
    let error = rig
        .backend
        .read(rig.arenas, place, &mut vec![0; 1 << 20])
        .expect_err("too long");
    report.check(
        !error.sticky,
        format!("a read past a span is refused: {}", error.what),
    );
    let small = rig.forward[0].1;
    let two = rig.block(&[run(1, 0, 1), run(2, 0, 2)], &mut blocks);
    let error = rig
        .backend
        .submit(Queue(0), small, &two, &[])
        .expect_err("too many rows");
    report.check(
        !error.sticky,
        format!("a step past the bucket is refused: {}", error.what),
    );
}

/// Loses the context by a wild block id: the fault is sticky, and every later call answers with it.
pub fn lose(cuda: &CudaBackend, report: &mut Report) {
    let model = Model::random(crate::model::ODD, 1);
    let rig = Rig::new(cuda, &model, Chain::new(&model, Elem::F32));
    let mut step = metrale_core::StepBlock::new(rig.layout.clone());
    step.push_run(0, 0, &[1]).unwrap();
    step.push_delta(0, 0, u32::MAX / 2).unwrap();
    let error = cuda
        .submit(Queue(0), rig.forward[0].1, &step, &[])
        .and_then(|fence| cuda.wait(fence, Duration::from_secs(20)))
        .expect_err("a wild address");
    report.check(
        error.sticky,
        format!("a wild address loses the context: {}", error.what),
    );
    let place = Loc {
        span: rig.chain.outputs.token,
        offset: 0,
    };
    let after = cuda.read(rig.arenas, place, &mut [0; 4]).expect_err("lost");
    report.check(after.sticky, format!("later calls say so: {}", after.what));
}
