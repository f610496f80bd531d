// SPDX-License-Identifier: MIT OR Apache-2.0
//! SURVIVAL 11 to 14, as far as they reach the sampler: hostile parameters give a typed error or a right token.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use metrale_core::{HistoryEntry, SampleRow};
use metrale_sampling::reference::{Status, distribution, sample};
use metrale_sampling::{Sampling, SamplingFields};

const X: [f32; 6] = [0.1, 3.0, -2.0, 3.0, 1.5, -40.0];

fn warm() -> SampleRow {
    SampleRow {
        temperature: 1.0,
        seed: 9,
        ..SampleRow::greedy(5)
    }
}

fn refused(change: impl FnOnce(&mut SamplingFields)) -> String {
    let mut fields = SamplingFields::default();
    change(&mut fields);
    Sampling::new(&fields, 1).unwrap_err().to_string()
}

#[test]
fn survival_11_top_k_at_its_edges() {
    assert_eq!(
        refused(|f| f.top_k = i64::MIN),
        "top_k is -9223372036854775808, but must be a whole number from -1 to 4294967295"
    );
    for top_k in [0, 6, u32::MAX] {
        let row = SampleRow { top_k, ..warm() };
        assert_eq!(distribution(&X, &row, &[], &[], None).unwrap().len(), 6);
    }
    let row = SampleRow { top_k: 1, ..warm() };
    assert_eq!(distribution(&X, &row, &[], &[], None), Some(vec![(1, 1.0)]));
}

#[test]
fn survival_12_more_alternatives_than_there_are_tokens() {
    for top in [6, 20, u32::MAX] {
        let got = sample(&X, &SampleRow { top, ..warm() }, &[], &[], None);
        let ids: Vec<u32> = got.top.iter().map(|t| t.0).collect();
        assert_eq!(ids, [1, 3, 4, 0, 2, 5]);
    }
    let many = vec![0.0; 100];
    assert_eq!(
        sample(&many, &SampleRow { top: 500, ..warm() }, &[], &[], None)
            .top
            .len(),
        20
    );
}

#[test]
fn survival_13_bias_for_tokens_that_do_not_exist() {
    let bias = [(6, 50.0), (u32::MAX, 50.0)];
    assert_eq!(
        sample(&X, &warm(), &[], &bias, None),
        sample(&X, &warm(), &[], &[], None)
    );
}

#[test]
fn survival_13_bias_of_minus_100_on_every_token_changes_nothing_but_rounding() {
    let all: Vec<(u32, f32)> = (0..6).map(|t| (t, -100.0)).collect();
    let plain = distribution(&X, &warm(), &[], &[], None).unwrap();
    let shifted = distribution(&X, &warm(), &[], &all, None).unwrap();
    for (a, b) in plain.iter().zip(&shifted) {
        assert_eq!(a.0, b.0);
        assert!((a.1 - b.1).abs() < 1e-5 * a.1);
    }
}

#[test]
fn survival_13_infinite_bias_bans_and_never_draws_a_nan() {
    let banned = [(1, f32::NEG_INFINITY), (3, f32::NEG_INFINITY)];
    let got = distribution(&X, &warm(), &[], &banned, None).unwrap();
    assert!(
        got.iter()
            .all(|(id, p)| !(banned.iter().any(|b| b.0 == *id) && *p > 0.0))
    );
    let greedy = sample(&X, &SampleRow::greedy(0), &[], &banned, None);
    assert_eq!((greedy.token, greedy.status), (4, Status::Ok));
    let all: Vec<(u32, f32)> = (0..6).map(|t| (t, f32::NEG_INFINITY)).collect();
    let none = sample(&X, &warm(), &[], &all, None);
    assert_eq!((none.status, none.token), (Status::Empty, 0));
    for bad in [f32::INFINITY, f32::NAN] {
        assert_eq!(
            sample(&X, &warm(), &[], &[(2, bad)], None).status,
            Status::NonFinite
        );
    }
}

#[test]
fn survival_14_temperature_at_its_edges() {
    assert_eq!(
        refused(|f| f.temperature = f64::NAN),
        "temperature is NaN, but must be a number from 0 to 10000"
    );
    refused(|f| f.temperature = f64::INFINITY);
    refused(|f| f.temperature = 1e30);
    for temperature in [1e-30, f64::MIN_POSITIVE, 5e-324, 0.0] {
        let fields = SamplingFields {
            temperature,
            ..SamplingFields::default()
        };
        let row = Sampling::new(&fields, 3).unwrap().encode(0, 0, None, 0);
        assert_eq!(sample(&X, &row, &[], &[], None).token, 1);
    }
    // The hottest that is allowed: flat, and still a distribution.
    let hot = distribution(
        &X,
        &SampleRow {
            temperature: 1e4,
            ..warm()
        },
        &[],
        &[],
        None,
    )
    .unwrap();
    assert!(hot.iter().all(|(_, p)| (p - 1.0 / 6.0).abs() < 1e-3));
    // The coldest that divides: the best token of logits as far apart as they come.
    let cold = SampleRow {
        temperature: 1e-5,
        ..warm()
    };
    let far = [-3e38, 3e38, 0.0];
    assert_eq!(sample(&far, &cold, &[], &[], None).token, 1);
}

#[test]
fn survival_14_min_p_above_one() {
    assert_eq!(
        refused(|f| f.min_p = 1.5),
        "min_p is 1.5, but must be a number from 0 to 1"
    );
    refused(|f| f.min_p = f64::NAN);
    let row = SampleRow {
        min_p: 1.0,
        ..warm()
    };
    // Both best ones pass: "at least".
    assert_eq!(
        distribution(&X, &row, &[], &[], None),
        Some(vec![(1, 0.5), (3, 0.5)])
    );
}

/// SURVIVAL 44: a NaN or an infinity among the logits.
#[test]
fn survival_44_logits_that_are_no_numbers_have_a_status() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = X;
        x[4] = bad;
        for row in [
            warm(),
            SampleRow::greedy(0),
            SampleRow {
                forced: Some(2),
                ..warm()
            },
        ] {
            let got = sample(&x, &row, &[], &[], None);
            assert_eq!((got.status, got.token), (Status::NonFinite, 0));
            assert!(got.logprob.is_nan());
        }
    }
}

/// SURVIVAL 17, the sampler's part: the draw is a function of seed, choice and position.
#[test]
fn survival_17_equal_coordinates_draw_equal_tokens() {
    let x: Vec<f32> = (0..200).map(|i| ((i * 37) % 101) as f32 / 40.0).collect();
    let draw = |seed, choice, position| {
        let row = SampleRow {
            seed,
            choice,
            ..warm()
        };
        sample(&x, &SampleRow { position, ..row }, &[], &[], None).token
    };
    let text: Vec<u32> = (0..64).map(|p| draw(7, 0, p)).collect();
    assert_eq!(text, (0..64).map(|p| draw(7, 0, p)).collect::<Vec<_>>());
    for (seed, choice) in [(8, 0), (7, 1), (7 | 1 << 32, 0)] {
        let other: Vec<u32> = (0..64).map(|p| draw(seed, choice, p)).collect();
        let same = text.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(
            same < 16,
            "{same} of 64 tokens equal under seed {seed}, choice {choice}"
        );
    }
}

#[test]
fn a_forced_token_is_taken_and_its_logprob_reported() {
    let row = SampleRow {
        forced: Some(5),
        top: 2,
        ..warm()
    };
    let got = sample(&X, &row, &[], &[(5, f32::NEG_INFINITY)], None);
    assert_eq!((got.token, got.status, got.top.len()), (5, Status::Ok, 2));
    assert!((-44.0..-43.0).contains(&got.logprob));
}

/// SURVIVAL 13 for masks: what is not allowed has probability 0 under every parameter, and nothing brings it back.
#[test]
fn survival_13_a_masked_token_is_never_drawn() {
    let mask = [0b01_0101]; // 0, 2 and 4
    let entry = |token| HistoryEntry {
        token,
        output_count: 3,
        in_prompt: true,
    };
    let rows = [
        warm(),
        SampleRow { top_k: 2, ..warm() },
        SampleRow {
            top_p: 0.999,
            ..warm()
        },
        SampleRow {
            min_p: 1e-9,
            ..warm()
        },
        SampleRow {
            temperature: 1e4,
            repetition: 0.1,
            presence: -2.0,
            frequency: -2.0,
            ..warm()
        },
    ];
    for bias in [vec![], vec![(1, 100.0), (3, f32::INFINITY), (5, f32::NAN)]] {
        for row in rows {
            let history = [entry(1), entry(3)];
            let got = distribution(&X, &row, &history, &bias, Some(&mask)).unwrap();
            let drawn: Vec<_> = got.iter().filter(|(_, p)| *p > 0.0).collect();
            assert!(drawn.iter().all(|(t, _)| t % 2 == 0), "{row:?}: {drawn:?}");
            let total: f64 = drawn.iter().map(|(_, p)| p).sum();
            assert!((total - 1.0).abs() < 1e-12);
            let cold = SampleRow {
                temperature: 0.0,
                ..row
            };
            assert_eq!(sample(&X, &cold, &history, &bias, Some(&mask)).token, 4);
        }
    }
    // Filters count what is allowed: the first two are 4 and 0.
    let two = distribution(&X, &rows[1], &[], &[], Some(&mask)).unwrap();
    assert_eq!(two.iter().map(|(t, _)| *t).collect::<Vec<_>>(), [4, 0]);
}

#[test]
fn a_mask_leaves_logprobs_raw_and_forced_tokens_forced() {
    let row = SampleRow { top: 2, ..warm() };
    let free = sample(&X, &row, &[], &[], None);
    let got = sample(&X, &row, &[], &[], Some(&[1 << 2]));
    assert_eq!((got.token, &got.top), (2, &free.top));
    assert!((-6.0..-5.0).contains(&got.logprob), "{}", got.logprob);
    let all = sample(&X, &row, &[], &[], Some(&[u32::MAX, u32::MAX]));
    assert_eq!(all, free);
    for mask in [&[][..], &[0], &[!0 << 6], &[0, u32::MAX]] {
        let none = sample(&X, &row, &[], &[], Some(mask));
        assert_eq!((none.status, none.token), (Status::Empty, 0));
        assert_eq!(none.top, free.top);
        let forced = SampleRow {
            forced: Some(5),
            ..row
        };
        let got = sample(&X, &forced, &[], &[], Some(mask));
        assert_eq!((got.status, got.token), (Status::Ok, 5));
    }
}

#[test]
fn greedy_takes_the_lowest_id_among_equals_after_penalties() {
    let entry = HistoryEntry {
        token: 1,
        output_count: 2,
        in_prompt: false,
    };
    let row = SampleRow {
        frequency: 0.5,
        ..SampleRow::greedy(0)
    };
    assert_eq!(sample(&X, &SampleRow::greedy(0), &[], &[], None).token, 1);
    assert_eq!(sample(&X, &row, &[entry], &[], None).token, 3);
}
