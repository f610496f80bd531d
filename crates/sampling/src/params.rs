// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sampling parameters of one request: checked once, then carried to the rows that draw.

use metrale_core::SampleRow;

/// What a caller asks for, unchecked. [`Default`] is OpenAI's: temperature 1, nothing else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingFields {
    /// 0 = greedy, else the logits are divided by it.
    pub temperature: f64,
    /// Nucleus mass in (0, 1]; 1 = off.
    pub top_p: f64,
    /// Smallest probability relative to the largest, in [0, 1]; 0 = off.
    pub min_p: f64,
    /// Largest number of candidates; 0 or -1 = off.
    pub top_k: i64,
    /// Multiplicative penalty over prompt and output tokens, above 0; 1 = off (CTRL, arXiv 1909.05858).
    pub repetition_penalty: f64,
    /// Subtracted once for tokens of the output, in [-2, 2].
    pub presence_penalty: f64,
    /// Subtracted per occurrence in the output, in [-2, 2].
    pub frequency_penalty: f64,
}

impl Default for SamplingFields {
    fn default() -> Self {
        SamplingFields {
            temperature: 1.0,
            top_p: 1.0,
            min_p: 0.0,
            top_k: 0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
        }
    }
}

/// A field outside its range: the request's fault.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field} is {value}, but must be {wanted}")]
pub struct InvalidSampling {
    /// The field, as the APIs spell it.
    pub field: &'static str,
    /// What was given.
    pub value: String,
    /// The range.
    pub wanted: &'static str,
}

/// Checked sampling parameters, in the types that the device reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    temperature: f32,
    top_p: f32,
    min_p: f32,
    top_k: u32,
    repetition: f32,
    presence: f32,
    frequency: f32,
    seed: u64,
}

/// Smallest temperature that divides; below it the answer is greedy in every digit that f32 logits hold.
const COLDEST: f32 = 1e-5;
/// Largest temperature: beyond it every distribution over f32 logits is flat.
const HOTTEST: f64 = 1e4;

impl Sampling {
    /// Checks `fields`. `seed` drives the counter generator; a request without one takes a fresh random one.
    ///
    /// A temperature in (0, 1e-5) is greedy: the quotient would overflow before it changed the order.
    ///
    /// # Errors
    /// [`InvalidSampling`] names the first field outside its range.
    pub fn new(fields: &SamplingFields, seed: u64) -> Result<Sampling, InvalidSampling> {
        let f = fields;
        within(
            "temperature",
            f.temperature,
            0.0,
            HOTTEST,
            "a number from 0 (greedy) to 10000",
        )?;
        within("top_p", f.top_p, 0.0, 1.0, "a number above 0, at most 1")?;
        if f.top_p == 0.0 {
            return Err(invalid("top_p", f.top_p, "a number above 0, at most 1"));
        }
        within("min_p", f.min_p, 0.0, 1.0, "a number from 0 to 1")?;
        within(
            "repetition_penalty",
            f.repetition_penalty,
            0.01,
            100.0,
            "a number from 0.01 to 100",
        )?;
        within(
            "presence_penalty",
            f.presence_penalty,
            -2.0,
            2.0,
            "a number from -2 to 2",
        )?;
        within(
            "frequency_penalty",
            f.frequency_penalty,
            -2.0,
            2.0,
            "a number from -2 to 2",
        )?;
        if f.top_k < -1 || f.top_k > i64::from(u32::MAX) {
            return Err(invalid(
                "top_k",
                f.top_k,
                "a count, or 0 or -1 for no limit",
            ));
        }
        let temperature = f.temperature as f32;
        Ok(Sampling {
            temperature: if temperature < COLDEST {
                0.0
            } else {
                temperature
            },
            // The smallest f32 above 0 still keeps the best token.
            top_p: (f.top_p as f32).max(f32::MIN_POSITIVE),
            min_p: f.min_p as f32,
            top_k: f.top_k.max(0) as u32,
            repetition: f.repetition_penalty as f32,
            presence: f.presence_penalty as f32,
            frequency: f.frequency_penalty as f32,
            seed,
        })
    }

    /// Greedy, no penalties.
    #[must_use]
    pub fn greedy() -> Sampling {
        Sampling {
            temperature: 0.0,
            top_p: 1.0,
            min_p: 0.0,
            top_k: 0,
            repetition: 1.0,
            presence: 0.0,
            frequency: 0.0,
            seed: 0,
        }
    }

    /// Whether rows must carry the token history.
    #[must_use]
    pub fn needs_history(&self) -> bool {
        self.repetition != 1.0 || self.presence != 0.0 || self.frequency != 0.0
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The row of the step block that draws the token at `position` for choice `choice`; `forced` takes that token
    /// whatever the logits say; `top` alternatives are reported, at most [`SampleRow::MAX_TOP`].
    #[must_use]
    pub fn encode(&self, choice: u32, position: u32, forced: Option<u32>, top: u32) -> SampleRow {
        SampleRow {
            temperature: self.temperature,
            top_p: self.top_p,
            min_p: self.min_p,
            top_k: self.top_k,
            repetition: self.repetition,
            presence: self.presence,
            frequency: self.frequency,
            seed: self.seed,
            choice,
            position,
            forced,
            top: top.min(SampleRow::MAX_TOP),
        }
    }
}

fn within(
    field: &'static str,
    value: f64,
    low: f64,
    high: f64,
    wanted: &'static str,
) -> Result<(), InvalidSampling> {
    // A NaN is in no range.
    if (low..=high).contains(&value) {
        Ok(())
    } else {
        Err(invalid(field, value, wanted))
    }
}

fn invalid(
    field: &'static str,
    value: impl std::fmt::Display,
    wanted: &'static str,
) -> InvalidSampling {
    InvalidSampling {
        field,
        value: value.to_string(),
        wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut SamplingFields)) -> Result<Sampling, InvalidSampling> {
        let mut fields = SamplingFields::default();
        change(&mut fields);
        Sampling::new(&fields, 1)
    }

    #[test]
    fn survival_14_temperatures_at_the_edges() {
        assert_eq!(
            with(|f| f.temperature = f64::NAN).unwrap_err().field,
            "temperature"
        );
        assert_eq!(
            with(|f| f.temperature = 1e30).unwrap_err().field,
            "temperature"
        );
        assert_eq!(
            with(|f| f.temperature = -1e-9).unwrap_err().field,
            "temperature"
        );
        for cold in [0.0, 1e-30, 5e-324, 1e-6] {
            let row = with(|f| f.temperature = cold)
                .unwrap()
                .encode(0, 0, None, 0);
            assert_eq!(row.temperature, 0.0, "{cold}");
        }
    }

    #[test]
    fn survival_14_min_p_and_top_p_outside_their_ranges() {
        assert_eq!(with(|f| f.min_p = 1.5).unwrap_err().field, "min_p");
        assert_eq!(with(|f| f.top_p = 0.0).unwrap_err().field, "top_p");
        assert_eq!(with(|f| f.top_p = 1.01).unwrap_err().field, "top_p");
        let tiny = with(|f| f.top_p = 1e-300).unwrap().encode(0, 0, None, 0);
        assert!(tiny.top_p > 0.0);
    }

    #[test]
    fn survival_11_negative_top_k() {
        assert_eq!(with(|f| f.top_k = -2).unwrap_err().field, "top_k");
        assert_eq!(with(|f| f.top_k = i64::MAX).unwrap_err().field, "top_k");
        assert_eq!(
            with(|f| f.top_k = -1).unwrap().encode(0, 0, None, 0).top_k,
            0
        );
    }

    #[test]
    fn penalties_ask_for_history() {
        assert!(!with(|_| ()).unwrap().needs_history());
        assert!(with(|f| f.presence_penalty = 0.1).unwrap().needs_history());
        assert!(
            with(|f| f.repetition_penalty = 1.1)
                .unwrap()
                .needs_history()
        );
    }
}
