// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reference against distributions that Transformers computed (`goldens/make_sampling_goldens.py`).

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use metrale_core::{HistoryEntry, SampleRow};
use metrale_sampling::reference::{distribution, sample};
use serde_json::Value;

fn cases() -> Vec<Value> {
    serde_json::from_str(include_str!("goldens/transformers.json")).unwrap()
}

fn floats(value: &Value) -> Vec<f64> {
    let values = value.as_array().unwrap().iter();
    values.map(|v| v.as_f64().unwrap()).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    let values = value.as_array().unwrap().iter();
    values.map(|v| v.as_u64().unwrap() as u32).collect()
}

fn history(case: &Value) -> Vec<HistoryEntry> {
    let (prompt, output) = (ids(&case["prompt"]), ids(&case["output"]));
    let mut tokens = [prompt.clone(), output.clone()].concat();
    tokens.sort_unstable();
    tokens.dedup();
    let entry = |token| HistoryEntry {
        token,
        output_count: output.iter().filter(|t| **t == token).count() as u32,
        in_prompt: prompt.contains(&token),
    };
    tokens.into_iter().map(entry).collect()
}

fn row(case: &Value) -> SampleRow {
    let get = |name: &str, off: f64| case[name].as_f64().unwrap_or(off) as f32;
    SampleRow {
        temperature: get("temperature", 1.0),
        top_k: case["top_k"].as_u64().unwrap_or(0) as u32,
        top_p: get("top_p", 1.0),
        min_p: get("min_p", 0.0),
        repetition: get("repetition", 1.0),
        presence: get("presence", 0.0),
        frequency: get("frequency", 0.0),
        seed: 42,
        ..SampleRow::greedy(0)
    }
}

fn bias(case: &Value) -> Vec<(u32, f32)> {
    let entries = case["bias"].as_array().into_iter().flatten();
    entries
        .map(|e| (e[0].as_u64().unwrap() as u32, e[1].as_f64().unwrap() as f32))
        .collect()
}

fn logits(case: &Value) -> Vec<f32> {
    floats(&case["logits"]).iter().map(|v| *v as f32).collect()
}

/// Logits reach 20 in size: an f32 rounding is 1e-6 of it, three of them and the one of exp change a probability by less
/// than 1e-5 of itself.
const RELATIVE: f64 = 1e-5;
/// Weights below the smallest normal f32 are 0.
const ABSOLUTE: f64 = f32::MIN_POSITIVE as f64;

#[test]
fn every_parameter_gives_the_distribution_of_transformers() {
    for case in cases() {
        let name = case["name"].as_str().unwrap();
        let got = distribution(
            &logits(&case),
            &row(&case),
            &history(&case),
            &bias(&case),
            None,
        )
        .unwrap();
        let want = floats(&case["probs"]);
        let kept = want.iter().filter(|p| **p > 0.0).count();
        assert_eq!(got.len(), kept, "{name}: tokens kept");
        for (token, p) in &got {
            let want = want[*token as usize];
            assert!(
                (p - want).abs() <= RELATIVE * want + ABSOLUTE,
                "{name}: token {token}: {p}, not {want}"
            );
        }
        assert!(got.is_sorted_by(|a, b| a.1 >= b.1), "{name}: best first");
    }
}

#[test]
fn logprobs_are_those_of_the_raw_logits_whatever_else_is_asked() {
    for case in cases() {
        let ask = SampleRow {
            top: 20,
            ..row(&case)
        };
        let got = sample(&logits(&case), &ask, &history(&case), &bias(&case), None);
        let want = floats(&case["logprobs"]);
        let close = |token: u32, logprob: f32| {
            let want = want[token as usize];
            // Below 2^5 in size, four roundings of half an ulp (2^-19) each.
            assert!(
                (f64::from(logprob) - want).abs() < 8e-6,
                "token {token}: {logprob}, not {want}"
            );
        };
        close(got.token, got.logprob);
        assert_eq!(got.top.len(), 20);
        let mut best = want.clone();
        best.sort_by(|a, b| b.total_cmp(a));
        for (i, (token, logprob)) in got.top.iter().enumerate() {
            close(*token, *logprob);
            assert_eq!(want[*token as usize], best[i], "alternative {i}");
        }
    }
}

/// Draws follow the golden distribution: Pearson's chi-square over positions, over choices and over seeds, each of which
/// alone has to be a good source.
#[test]
fn draws_follow_the_distribution() {
    type Set = fn(&mut SampleRow, u32);
    const DRAWS: u32 = 4_000;
    for case in cases() {
        let name = case["name"].as_str().unwrap();
        let (x, h, b) = (logits(&case), history(&case), bias(&case));
        let want = floats(&case["probs"]);
        let coordinates: [(&str, Set); 3] = [
            ("position", |r, i| r.position = i),
            ("choice", |r, i| r.choice = i),
            ("seed", |r, i| r.seed = u64::from(i)),
        ];
        for (what, set) in coordinates {
            let mut seen = vec![0u32; x.len()];
            for i in 0..DRAWS {
                let mut row = row(&case);
                set(&mut row, i);
                seen[sample(&x, &row, &h, &b, None).token as usize] += 1;
            }
            let (chi, freedom) = chi_square(&seen, &want, DRAWS);
            let limit = quantile(freedom);
            assert!(
                chi < limit,
                "{name} over {what}: {chi} of {freedom} degrees, limit {limit}"
            );
        }
    }
}

/// Pearson's statistic and its degrees of freedom; what is expected less than five times is counted as one kind.
fn chi_square(seen: &[u32], probs: &[f64], draws: u32) -> (f64, f64) {
    let (mut chi, mut kinds, mut rest) = (0.0, 0, (0.0, 0.0));
    for (seen, p) in seen.iter().zip(probs) {
        let expected = p * f64::from(draws);
        if *p == 0.0 {
            assert_eq!(*seen, 0, "a token was drawn that is not kept");
        } else if expected < 5.0 {
            rest = (rest.0 + f64::from(*seen), rest.1 + expected);
        } else {
            chi += (f64::from(*seen) - expected).powi(2) / expected;
            kinds += 1;
        }
    }
    if rest.1 > 0.0 {
        chi += (rest.0 - rest.1).powi(2) / rest.1.max(1.0);
        kinds += 1;
    }
    (chi, f64::from(kinds - 1))
}

/// The value that chi-square exceeds once in 10^5 (Wilson and Hilferty's approximation, z = 4.265).
fn quantile(freedom: f64) -> f64 {
    if freedom == 0.0 {
        return f64::EPSILON;
    }
    let a = 2.0 / (9.0 * freedom);
    freedom * (1.0 - a + 4.265 * a.sqrt()).powi(3)
}
