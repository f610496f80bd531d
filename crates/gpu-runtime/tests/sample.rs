// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `sample` kernel against the reference of the sampling crate, bit for bit.
#![allow(clippy::unwrap_used)]

mod common;

use common::{A, Rng, call_all, f32s, raw, step, u32s, write};
use metrale_core::{Access, Elem, HistoryEntry, SampleRow, Unit};
use metrale_sampling::reference;

struct Case {
    logits: Vec<f32>,
    row: SampleRow,
    history: Vec<HistoryEntry>,
    bias: Vec<(u32, f32)>,
    mask: Option<Vec<u32>>,
}

/// Runs up to 16 rows of one vocabulary at once and compares each with the reference.
fn check(vocab: usize, cases: &[Case]) {
    for cases in cases.chunks(16) {
        let mut step = step();
        step.push_run(0, 0, &vec![0; cases.len()]).unwrap();
        for (i, case) in cases.iter().enumerate() {
            let mask = case.mask.as_ref().map(|m| step.push_mask(m).unwrap());
            let row = SampleRow { mask, ..case.row };
            step.push_logits(i as u32, &row, &case.history, &case.bias)
                .unwrap();
        }
        let logits: Vec<f32> = cases.iter().flat_map(|c| c.logits.clone()).collect();
        let args = arguments(vocab, &logits, cases.len());
        let out = call_all("sample/f32", &args, &step);
        assert_eq!(f32s(&out[0]).len(), logits.len());
        for (a, b) in f32s(&out[0]).iter().zip(&logits) {
            assert_eq!(a.to_bits(), b.to_bits(), "the raw row stays");
        }
        for (i, case) in cases.iter().enumerate() {
            let want = reference::sample(
                &case.logits,
                &case.row,
                &case.history,
                &case.bias,
                case.mask.as_deref(),
            );
            let got = (
                u32s(&out[1])[i],
                f32s(&out[2])[i].to_bits(),
                u32s(&out[4])[i],
            );
            let nan = want.logprob.is_nan() && f32::from_bits(got.1).is_nan();
            let logprob = if nan { got.1 } else { want.logprob.to_bits() };
            assert_eq!(
                got,
                (want.token, logprob, want.status as u32),
                "{:?}",
                case.row
            );
            let top = &u32s(&out[3])[i * 40..(i + 1) * 40];
            for (j, pair) in top.chunks(2).enumerate() {
                let want = want
                    .top
                    .get(j)
                    .map_or([u32::MAX, 0], |(id, l)| [*id, l.to_bits()]);
                assert_eq!(pair, want, "alternative {j} of {:?}", case.row);
            }
        }
    }
}

/// The kernel's arguments for `rows` rows of logits.
fn arguments(vocab: usize, logits: &[f32], rows: usize) -> [A; 7] {
    let u32s_of = |elems: usize| {
        let bytes = vec![0; elems * 4 * rows];
        raw(Access::Write, Elem::U32, Unit::LogitsRow, elems, bytes)
    };
    [
        common::buf(Access::ReadWrite, Unit::LogitsRow, vocab, logits),
        u32s_of(1),
        write(Unit::LogitsRow, 1, rows),
        u32s_of(40),
        u32s_of(1),
        A::U(vocab),
        A::Step,
    ]
}

#[test]
fn random_rows_with_random_parameters() {
    let mut rng = Rng::new(1);
    for vocab in [1, 7, 320, 5000] {
        let mut cases = Vec::new();
        for i in 0..160u32 {
            let mut logits: Vec<f32> = rng.normals(vocab).iter().map(|v| v * 4.0).collect();
            if i % 5 == 0 {
                // Coarse values: many ties.
                logits.iter_mut().for_each(|v| *v = v.round());
            }
            let mut pick = |values: &[f32]| values[rng.word() as usize % values.len()];
            let row = SampleRow {
                temperature: pick(&[0.0, 0.1, 0.7, 1.0, 1.0, 5.0, 100.0]),
                top_p: pick(&[1.0, 1.0, 0.95, 0.5, 1e-6]),
                min_p: pick(&[0.0, 0.0, 0.05, 0.5, 1.0]),
                top_k: pick(&[0.0, 0.0, 1.0, 5.0, 50.0, 100_000.0]) as u32,
                repetition: pick(&[1.0, 1.3, 0.8]),
                presence: pick(&[0.0, 0.5, -1.0]),
                frequency: pick(&[0.0, 0.3]),
                seed: u64::from(i) << 30 | 5,
                choice: i % 3,
                position: i * 7,
                forced: (i % 11 == 3).then_some(i % vocab as u32),
                top: [0, 1, 5, 20][i as usize % 4],
                mask: None,
            };
            let mut history = Vec::new();
            let mut bias = Vec::new();
            for j in 0..i % 4 {
                let token = (i * 31 + j * 13) % (vocab as u32 + 2);
                let in_prompt = (i + j) % 2 == 0;
                history.push(HistoryEntry {
                    token,
                    output_count: j,
                    in_prompt,
                });
                let add = pick(&[-5.0, 3.0, 100.0, f32::NEG_INFINITY]);
                bias.push(((token + j) % (vocab as u32 + 1), add));
            }
            cases.push(Case {
                logits,
                row,
                history,
                bias,
                mask: random_mask(&mut rng, i, vocab),
            });
        }
        check(vocab, &cases);
    }
}

/// None, all, a half, a few, one, none allowed, one word too few; and whatever bits beyond the vocabulary.
fn random_mask(rng: &mut Rng, i: u32, vocab: usize) -> Option<Vec<u32>> {
    let words = vocab.div_ceil(32);
    let mut mask: Vec<u32> = match i % 9 {
        0..=2 => return None,
        3 => vec![u32::MAX; words],
        4 | 5 => (0..words).map(|_| rng.word()).collect(),
        6 => {
            let rare = |rng: &mut Rng| (0..4).fold(u32::MAX, |bits, _| bits & rng.word());
            (0..words).map(|_| rare(rng)).collect()
        }
        7 => {
            let token = rng.word() as usize % vocab;
            let bit = |w: usize| u32::from(token / 32 == w) << (token % 32);
            (0..words).map(bit).collect()
        }
        _ if i.is_multiple_of(2) => vec![0; words],
        _ => vec![u32::MAX; words - 1],
    };
    if i % 9 != 8 && !vocab.is_multiple_of(32) {
        mask[words - 1] |= u32::MAX << (vocab % 32);
    }
    Some(mask)
}

/// A row says nothing of what a mask that allows all changes: the same bits with it as without; and rows that share a mask
/// draw by it.
#[test]
fn a_mask_that_allows_all_is_none_and_rows_share_masks() {
    let mut rng = Rng::new(7);
    const VOCAB: usize = 331;
    let mut step = step();
    step.push_run(0, 0, &[0; 16]).unwrap();
    let all = step.push_mask(&[u32::MAX; VOCAB.div_ceil(32)]).unwrap();
    let even = step.push_mask(&[0x5555_5555; VOCAB.div_ceil(32)]).unwrap();
    let mut logits = Vec::new();
    for i in 0..16u32 {
        let mask = [None, Some(all), Some(even), Some(even)][i as usize % 4];
        let row = SampleRow {
            temperature: [0.0, 1.3][i as usize / 8],
            seed: 4,
            top: 3,
            mask,
            ..SampleRow::greedy(i / 4)
        };
        step.push_logits(i, &row, &[], &[]).unwrap();
        if i % 4 == 0 {
            logits.push(rng.normals(VOCAB));
        }
    }
    let rows: Vec<f32> = logits.iter().flat_map(|row| row.repeat(4)).collect();
    let out = call_all("sample/f32", &arguments(VOCAB, &rows, 16), &step);
    let (tokens, logprobs) = (u32s(&out[1]), u32s(&out[2]));
    for i in (0..16).step_by(4) {
        assert_eq!(
            (tokens[i], logprobs[i]),
            (tokens[i + 1], logprobs[i + 1]),
            "row {i}"
        );
        assert_eq!(tokens[i + 2], tokens[i + 3]);
        assert_eq!(tokens[i + 2] % 2, 0);
    }
}

#[test]
fn rows_that_cannot_be_used() {
    let vocab = 9;
    let sampled = SampleRow {
        temperature: 1.0,
        top: 3,
        ..SampleRow::greedy(0)
    };
    let mut cases = Vec::new();
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 8] {
            let mut logits = vec![1.0; vocab];
            logits[at] = bad;
            cases.push(Case {
                logits,
                row: sampled,
                history: vec![],
                bias: vec![],
                mask: None,
            });
        }
    }
    for row in [
        sampled,
        SampleRow {
            top: 3,
            ..SampleRow::greedy(0)
        },
    ] {
        let ban = |n: u32| (0..n).map(|t| (t, f32::NEG_INFINITY)).collect::<Vec<_>>();
        for bias in [
            ban(8),
            ban(9),
            vec![(2, f32::NAN)],
            vec![(2, f32::INFINITY)],
        ] {
            cases.push(Case {
                logits: vec![0.5; vocab],
                row,
                history: vec![],
                bias,
                mask: None,
            });
        }
        // Nothing allowed; the one allowed token banned; a token that would be no number, masked and not.
        for (mask, bias) in [
            (0, vec![]),
            (!0u32 << 9, vec![]),
            (1 << 3, vec![(3, f32::NEG_INFINITY)]),
            (1 << 3, vec![(2, f32::INFINITY), (4, f32::NAN)]),
            (1 << 3, vec![(3, f32::INFINITY)]),
            (1 << 8 | 1 << 3, vec![(2, 100.0)]),
        ] {
            cases.push(Case {
                logits: vec![0.5; vocab],
                row,
                history: vec![],
                bias,
                mask: Some(vec![mask]),
            });
        }
        let forced = SampleRow {
            forced: Some(5),
            ..row
        };
        cases.push(Case {
            logits: vec![0.5; vocab],
            row: forced,
            history: vec![],
            bias: vec![],
            mask: Some(vec![0]),
        });
    }
    check(vocab, &cases);
}

#[test]
fn draws_follow_the_distribution() {
    // A row of a few tokens, drawn at many positions: shares within four standard deviations.
    let logits = vec![0.0, 1.0, 2.0, -1.0];
    let total: f64 = logits.iter().map(|l| f64::exp(*l)).sum();
    let n = 4000;
    let mut counts = [0u32; 4];
    for position in (0..n).step_by(16) {
        let mut step = step();
        step.push_run(0, 0, &[0; 16]).unwrap();
        for i in 0..16 {
            let row = SampleRow {
                temperature: 1.0,
                seed: 9,
                ..SampleRow::greedy(position + i)
            };
            step.push_logits(i, &row, &[], &[]).unwrap();
        }
        let logits: Vec<f32> = logits.iter().map(|l| *l as f32).collect();
        let args = arguments(4, &logits.repeat(16), 16);
        let backend = common::backends().pop().unwrap();
        for token in u32s(&common::call(&backend, "sample/f32", &args, &step)[1]) {
            counts[token as usize] += 1;
        }
    }
    for (count, l) in counts.iter().zip(&logits) {
        let p = l.exp() / total;
        let spread = (f64::from(n) * p * (1.0 - p)).sqrt();
        assert!(
            (f64::from(*count) - f64::from(n) * p).abs() < 4.0 * spread,
            "{counts:?}"
        );
    }
}
