// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inverse frequencies against Hugging Face Transformers (`tests/goldens/make_inv_freq.py`).

use metrale_core::{Elem, Scalar};

use crate::common::{TINY_LLAMA, flat, hf, library, request};

/// The constant of the tiny llama with the golden's RoPE.
fn ours(kind: &str, numbers: &[f64]) -> Vec<f32> {
    let [dim, theta, factor, low, high, original] = numbers[..] else {
        panic!("six numbers")
    };
    let mut config = flat(TINY_LLAMA);
    let mut set = |key: &str, value: Scalar| config.insert(key.to_owned(), value);
    set("head_dim", Scalar::Int(dim as i64));
    set("max_position_embeddings", Scalar::Int(131_072));
    set("rope_parameters.rope_type", Scalar::Str(kind.to_owned()));
    set("rope_parameters.rope_theta", Scalar::Float(theta));
    if kind != "default" {
        set("rope_parameters.factor", Scalar::Float(factor));
    }
    if kind == "llama3" {
        set("rope_parameters.low_freq_factor", Scalar::Float(low));
        set("rope_parameters.high_freq_factor", Scalar::Float(high));
        set(
            "rope_parameters.original_max_position_embeddings",
            Scalar::Int(original as i64),
        );
    }
    let instance = hf(&config).unwrap();
    let formats = instance.uniform_formats(Elem::BF16);
    let plan = library().plan(&instance, &request(&formats)).unwrap();
    let span = plan.memory.find("inv_freq").unwrap();
    plan.constants
        .iter()
        .find(|c| c.span == span)
        .unwrap()
        .data
        .clone()
}

#[test]
fn inverse_frequencies_are_those_of_transformers() {
    let mut cases = 0;
    for line in include_str!("../goldens/inv_freq.txt")
        .lines()
        .filter(|l| !l.starts_with('#'))
    {
        let words: Vec<&str> = line.split(' ').collect();
        let numbers: Vec<f64> = words[1..7].iter().map(|w| w.parse().unwrap()).collect();
        let ours = ours(words[0], &numbers);
        let theirs = words[7..]
            .iter()
            .map(|w| f32::from_bits(u32::from_str_radix(w, 16).unwrap()));
        assert_eq!(ours.len(), theirs.len(), "{line}");
        for (i, (a, b)) in ours.iter().zip(theirs).enumerate() {
            // The same steps in the same order; only the power may round otherwise, since theirs is an f32 function.
            let ulps = a.to_bits().abs_diff(b.to_bits());
            assert!(ulps <= 1, "{} {i}: {a} {b}", words[0]);
        }
        cases += 1;
    }
    assert_eq!(cases, 7);
}
