// SPDX-License-Identifier: MIT OR Apache-2.0
//! Constants that circuits compute from their params: pure functions, f32 out.

use crate::config_map::Params;
use crate::expr::Value;
use crate::instance::ConstantDecl;

/// The makers that a circuit may name.
pub(crate) const MAKERS: [&str; 1] = ["rope_inv_freq"];

/// Runs the maker of a constant of `instance`; `None` if there is none of that name, or a param it reads is missing.
pub(crate) fn constant(decl: &ConstantDecl, params: &Params) -> Option<Vec<f32>> {
    let mut params = params.clone();
    params.extend(decl.params.clone());
    make(&decl.make, &params)
}

fn make(name: &str, params: &Params) -> Option<Vec<f32>> {
    match name {
        "rope_inv_freq" => rope_inv_freq(params),
        _ => None,
    }
}

/// Inverse frequencies of rotary embedding, `[rot / 2]`.
///
/// As Hugging Face Transformers publishes them: `1 / theta^(2i / rot)`, tensors in f32 (the power is taken in f64 of the f32
/// exponent and rounded once, so that no platform's `powf` enters), Python scalars in f64 that become f32 where they meet
/// a tensor. `linear` divides by the factor (arXiv 2306.15595); `llama3` keeps wavelengths below `original / high`,
/// divides those above `original / low` and interpolates between (Llama 3.1 release).
fn rope_inv_freq(p: &Params) -> Option<Vec<f32>> {
    let rot = count(p, "rot")?;
    let theta = float(p, "rope_theta")?;
    let factor = float(p, "rope_factor")? as f32;
    let plain = |i: u64| {
        let exponent = (2 * i) as f32 / rot as f32;
        1.0 / (libm::pow(theta, f64::from(exponent)) as f32)
    };
    let plain: Vec<f32> = (0..rot / 2).map(plain).collect();
    match p.get("rope_kind")? {
        Value::Text(kind) if kind == "default" => Some(plain),
        Value::Text(kind) if kind == "linear" => {
            Some(plain.into_iter().map(|f| f / factor).collect())
        }
        Value::Text(kind) if kind == "yarn" => yarn(p, &plain),
        Value::Text(kind) if kind == "llama3" => {
            let ramp = Llama3 {
                factor,
                low: float(p, "rope_low")?,
                high: float(p, "rope_high")?,
                original: count(p, "rope_original")? as f64,
            };
            Some(plain.into_iter().map(|f| ramp.scale(f)).collect())
        }
        _ => None,
    }
}

/// YaRN, arXiv 2309.00071: dimensions that turn more than `beta_fast` times within the original context stay, those that turn
/// less than `beta_slow` times are stretched by the factor, a linear ramp over dimensions between. `truncate` puts the ramp's
/// ends on whole dimensions.
fn yarn(p: &Params, plain: &[f32]) -> Option<Vec<f32>> {
    let (rot, theta) = (count(p, "rot")? as f64, float(p, "rope_theta")?);
    let (factor, original) = (float(p, "rope_factor")?, count(p, "rope_original")? as f64);
    let dim = |turns: f64| {
        rot * libm::log(original / (turns * 2.0 * std::f64::consts::PI)) / (2.0 * libm::log(theta))
    };
    let (mut low, mut high) = (
        dim(float(p, "rope_beta_fast")?),
        dim(float(p, "rope_beta_slow")?),
    );
    if p.get("rope_truncate")? == &Value::Bool(true) {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, mut high) = (low.max(0.0) as f32, high.min(rot - 1.0) as f32);
    if low == high {
        high += 0.001;
    }
    let scaled = plain.iter().enumerate().map(|(i, freq)| {
        let ramp = ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
        let keep = 1.0 - ramp;
        freq / factor as f32 * (1.0 - keep) + freq * keep
    });
    Some(scaled.collect())
}

struct Llama3 {
    factor: f32,
    low: f64,
    high: f64,
    original: f64,
}

impl Llama3 {
    fn scale(&self, freq: f32) -> f32 {
        let wavelength = (2.0 * std::f64::consts::PI) as f32 / freq;
        if wavelength < (self.original / self.high) as f32 {
            return freq;
        }
        if wavelength > (self.original / self.low) as f32 {
            return freq / self.factor;
        }
        let smooth =
            (self.original as f32 / wavelength - self.low as f32) / (self.high - self.low) as f32;
        (1.0 - smooth) * freq / self.factor + smooth * freq
    }
}

fn count(p: &Params, name: &str) -> Option<u64> {
    match p.get(name)? {
        Value::Count(c) => Some(*c),
        _ => None,
    }
}

fn float(p: &Params, name: &str) -> Option<f64> {
    match p.get(name)? {
        Value::Float(f) => Some(*f),
        Value::Count(c) => Some(*c as f64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(kind: &str, factor: f64) -> Params {
        let mut p = Params::new();
        p.insert("rot".into(), Value::Count(128));
        p.insert("rope_theta".into(), Value::Float(500_000.0));
        p.insert("rope_kind".into(), Value::Text(kind.into()));
        p.insert("rope_factor".into(), Value::Float(factor));
        p.insert("rope_low".into(), Value::Float(1.0));
        p.insert("rope_high".into(), Value::Float(4.0));
        p.insert("rope_original".into(), Value::Count(8192));
        p
    }

    #[test]
    fn default_and_linear() {
        let plain = make("rope_inv_freq", &params("default", 8.0)).unwrap();
        assert_eq!((plain.len(), plain[0]), (64, 1.0));
        // 500000^(-1/2) and 500000^(-126/128)
        assert!((f64::from(plain[32]) - 1.414_213_6e-3).abs() < 1e-9);
        assert!(
            (f64::from(plain[63]) / 2.455_140_8e-6 - 1.0).abs() < 1e-6,
            "{}",
            plain[63]
        );
        let linear = make("rope_inv_freq", &params("linear", 4.0)).unwrap();
        assert_eq!(linear[5], plain[5] / 4.0);
    }

    #[test]
    fn llama3_keeps_the_fast_stretches_the_slow_and_ramps_between() {
        let plain = make("rope_inv_freq", &params("default", 8.0)).unwrap();
        let scaled = make("rope_inv_freq", &params("llama3", 8.0)).unwrap();
        let wavelength = |f: f32| 2.0 * std::f64::consts::PI / f64::from(f);
        let mut kinds = [0; 3];
        for (p, s) in plain.iter().zip(&scaled) {
            if wavelength(*p) < 2048.0 {
                assert_eq!(p, s);
                kinds[0] += 1;
            } else if wavelength(*p) > 8192.0 {
                assert_eq!(p / 8.0, *s);
                kinds[1] += 1;
            } else {
                assert!(*s < *p && *s > p / 8.0);
                kinds[2] += 1;
            }
        }
        assert!(kinds.iter().all(|k| *k > 0), "{kinds:?}");
    }
}
