// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weights that no file holds: their bits are a function of the seed alone, and their spread is what a model needs.

use std::path::PathBuf;

use anyhow::{Context, Result};
use metrale_core::Elem;
use metrale_gpu_runtime::{Isa, Loc};
use metrale_server::assembly::{LoadOptions, Weights, open};

/// Packed weights by name, and the digest of the plan.
type Made = (Vec<(String, Elem, Vec<u8>)>, String);

fn config(fixture: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/tiny")
        .join(fixture)
}

fn made(fixture: &str, weights: Weights, threads: usize, isa: Option<Isa>) -> Result<Made> {
    let opened = open(LoadOptions {
        weights,
        threads,
        isa,
        kv_bytes: Some(1 << 20),
        ..LoadOptions::new(config(fixture))
    })?;
    let mut told = 0;
    let model = opened.model(|bytes| told += bytes)?;
    assert_eq!(told, opened.weight_bytes(), "what was promised was made");
    let (device, plan) = (model.device(), model.plan());
    let read = |slot: &metrale_circuit::WeightSlot| {
        let span = plan.memory.span(slot.span);
        let mut bytes = vec![0; span.bytes as usize];
        let start = Loc {
            span: slot.span,
            offset: 0,
        };
        device.backend.read(device.arenas, start, &mut bytes)?;
        Ok((span.name.clone(), slot.elem, bytes))
    };
    let weights = plan.weights.iter().map(read).collect::<Result<Vec<_>>>()?;
    Ok((weights, plan.digest.to_string()))
}

#[test]
fn equal_seeds_give_equal_bits_and_others_do_not() -> Result<()> {
    for fixture in ["llama", "qwen3-tied"] {
        let first = made(fixture, Weights::Made(1), 1, None)?;
        assert_eq!(
            made(fixture, Weights::Made(1), 3, Some(Isa::PORTABLE))?,
            first
        );
        let other = made(fixture, Weights::Made(2), 1, None)?;
        let read = made(fixture, Weights::Checkpoint, 1, None)?;
        assert_eq!(first.0.len(), read.0.len());
        for (a, (b, c)) in first.0.iter().zip(other.0.iter().zip(&read.0)) {
            assert_eq!((&a.0, a.2.len()), (&b.0, c.2.len()));
            assert_ne!(a.2, b.2, "{}", a.0);
            assert_ne!(a.2, c.2, "{}", a.0);
        }
        assert!(
            first.1 != other.1 && first.1 != read.1,
            "digests tell weights apart"
        );
        let mut all: Vec<_> = first.0.iter().map(|(_, _, bytes)| bytes).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), first.0.len(), "no two weights are alike");
    }
    Ok(())
}

/// Values of a weight that is packed as it is read: of vectors and of matrices that class cpu keeps in rows.
fn values(weights: &[(String, Elem, Vec<u8>)], name: &str) -> Result<Vec<f64>> {
    let found = weights.iter().find(|w| w.0 == name);
    let (_, elem, bytes) = found.with_context(|| {
        format!(
            "no {name}: {:?}",
            weights.iter().map(|w| &w.0).collect::<Vec<_>>()
        )
    })?;
    // A bf16 is the upper half of an f32.
    Ok(match elem {
        Elem::BF16 => bytes
            .chunks_exact(2)
            .map(|b| f64::from(f32::from_le_bytes([0, 0, b[0], b[1]])))
            .collect(),
        _ => bytes
            .chunks_exact(4)
            .map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            .collect(),
    })
}

#[test]
fn matrices_are_spread_by_their_rows_and_norms_lie_near_one() -> Result<()> {
    let (weights, _) = made("llama", Weights::Made(0), 1, None)?;
    let values = |name: &str| values(&weights, name);
    let moments = |v: &[f64]| {
        let mean = v.iter().sum::<f64>() / v.len() as f64;
        let squares = v.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
        (mean, (squares / v.len() as f64).sqrt())
    };
    let (mean, deviation) = moments(&values("L0.down_proj")?);
    let wanted = 1.0 / 96f64.sqrt();
    assert!(mean.abs() < 0.05 * wanted && (deviation / wanted - 1.0).abs() < 0.05);
    let largest = values("L0.down_proj")?
        .into_iter()
        .fold(0.0, |m: f64, v| m.max(v.abs()));
    assert!(largest < 3.5 * wanted, "bounded");
    let (mean, deviation) = moments(&values("L1.post_norm")?);
    assert!(
        (mean - 1.0).abs() < 0.05 && deviation < 0.1,
        "{mean} {deviation}"
    );
    Ok(())
}

/// Routers of made weights do not collapse: rows of theirs are as long as each other and point apart, so that inputs that a norm
/// has scaled go to all experts, none to be had by most of them.
#[test]
fn routers_of_made_weights_use_all_experts() -> Result<()> {
    for (fixture, seed) in [("qwen3-moe", 0), ("mixtral", 1), ("deepseek-v3", 2)] {
        let (weights, _) = made(fixture, Weights::Made(seed), 1, None)?;
        let (hidden, experts, top_k) = (64, 8, 2);
        let routers = weights.iter().filter(|w| w.0.ends_with("router"));
        let names: Vec<&str> = routers.map(|w| w.0.as_str()).collect();
        assert!(names.len() >= 2, "{fixture}: {names:?}");
        for name in names {
            // Class cpu packs eight rows as one group, value by value.
            let router = values(&weights, name)?;
            assert_eq!(router.len(), experts * hidden, "{fixture} {name}");
            let lengths = (0..experts).map(|e| {
                let row = (0..hidden).map(|i| router[i * experts + e]);
                row.map(|v| v * v).sum::<f64>().sqrt()
            });
            let lengths: Vec<f64> = lengths.collect();
            assert!(
                lengths.iter().all(|l| (0.7..1.4).contains(l)),
                "{lengths:?}"
            );
            let mut chosen = vec![0; experts];
            let mut word = 1u32;
            let inputs = 1000;
            for _ in 0..inputs {
                let x: Vec<f64> = (0..hidden)
                    .map(|_| {
                        word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        // Of unit variance.
                        (f64::from(word) / 4_294_967_296.0 - 0.5) * 12f64.sqrt()
                    })
                    .collect();
                let logit = |e: usize| {
                    (0..hidden)
                        .map(|i| router[i * experts + e] * x[i])
                        .sum::<f64>()
                };
                let mut best: Vec<usize> = (0..experts).collect();
                best.sort_by(|a, b| logit(*b).total_cmp(&logit(*a)));
                best[..top_k].iter().for_each(|e| chosen[*e] += 1);
            }
            // A quarter of the inputs each, if all were alike.
            assert!(
                chosen.iter().all(|n| (inputs / 8..inputs / 2).contains(n)),
                "{fixture} {name}: {chosen:?}"
            );
        }
    }
    Ok(())
}
