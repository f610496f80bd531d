// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sampling parameters of one request: checked once, then carried to the rows that draw.

use std::fmt;

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

/// The values that a field may have: of a request, of a flag, of a checkpoint's settings alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The field, as the APIs spell it.
    pub field: &'static str,
    /// The smallest.
    pub least: f64,
    /// The largest.
    pub most: f64,
    /// Whether the smallest is itself too small.
    pub above: bool,
    /// Whether whole numbers alone will do.
    pub whole: bool,
}

impl Range {
    const fn new(field: &'static str, least: f64, most: f64) -> Range {
        Range {
            field,
            least,
            most,
            above: false,
            whole: false,
        }
    }

    /// Whether `value` lies within.
    ///
    /// # Errors
    /// [`InvalidSampling`] if not; a NaN lies in no range.
    pub fn check(&self, value: f64) -> Result<(), InvalidSampling> {
        let inside = (self.least..=self.most).contains(&value);
        let open = self.above && value == self.least;
        let broken = self.whole && value.fract() != 0.0;
        match inside && !open && !broken {
            true => Ok(()),
            false => Err(InvalidSampling {
                range: *self,
                value: value.to_string(),
            }),
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.whole {
            "a whole number"
        } else {
            "a number"
        };
        match self.above {
            true => write!(f, "{what} above {}, at most {}", self.least, self.most),
            false => write!(f, "{what} from {} to {}", self.least, self.most),
        }
    }
}

impl SamplingFields {
    /// Beyond the largest, every distribution over f32 logits is flat.
    pub const TEMPERATURE: Range = Range::new("temperature", 0.0, 1e4);
    /// Of `top_p`.
    pub const TOP_P: Range = Range {
        above: true,
        ..Range::new("top_p", 0.0, 1.0)
    };
    /// Of `min_p`.
    pub const MIN_P: Range = Range::new("min_p", 0.0, 1.0);
    /// Of `top_k`.
    pub const TOP_K: Range = Range {
        whole: true,
        ..Range::new("top_k", -1.0, u32::MAX as f64)
    };
    /// Of `repetition_penalty`.
    pub const REPETITION_PENALTY: Range = Range::new("repetition_penalty", 0.01, 100.0);
    /// Of `presence_penalty`.
    pub const PRESENCE_PENALTY: Range = Range::new("presence_penalty", -2.0, 2.0);
    /// Of `frequency_penalty`.
    pub const FREQUENCY_PENALTY: Range = Range::new("frequency_penalty", -2.0, 2.0);
}

/// A field outside its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{} is {value}, but must be {range}", range.field)]
pub struct InvalidSampling {
    /// The range, with the field's name.
    pub range: Range,
    /// What was given.
    pub value: String,
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

impl Sampling {
    /// Checks `fields`. `seed` drives the counter generator; a request without one takes a fresh random one.
    ///
    /// A temperature in (0, 1e-5) is greedy: the quotient would overflow before it changed the order.
    ///
    /// # Errors
    /// [`InvalidSampling`] names the first field outside its range.
    pub fn new(fields: &SamplingFields, seed: u64) -> Result<Sampling, InvalidSampling> {
        let f = fields;
        SamplingFields::TEMPERATURE.check(f.temperature)?;
        SamplingFields::TOP_P.check(f.top_p)?;
        SamplingFields::MIN_P.check(f.min_p)?;
        // In its own digits: an f64 holds not all of them.
        let exact = |e| InvalidSampling {
            value: f.top_k.to_string(),
            ..e
        };
        SamplingFields::TOP_K.check(f.top_k as f64).map_err(exact)?;
        SamplingFields::REPETITION_PENALTY.check(f.repetition_penalty)?;
        SamplingFields::PRESENCE_PENALTY.check(f.presence_penalty)?;
        SamplingFields::FREQUENCY_PENALTY.check(f.frequency_penalty)?;
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
    /// whatever the logits say; `top` alternatives are reported, at most [`SampleRow::MAX_TOP`]. It has no mask.
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
            mask: None,
        }
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
            with(|f| f.temperature = f64::NAN).unwrap_err().range.field,
            "temperature"
        );
        assert_eq!(
            with(|f| f.temperature = 1e30).unwrap_err().range.field,
            "temperature"
        );
        assert_eq!(
            with(|f| f.temperature = -1e-9).unwrap_err().range.field,
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
        assert_eq!(with(|f| f.min_p = 1.5).unwrap_err().range.field, "min_p");
        assert_eq!(with(|f| f.top_p = 0.0).unwrap_err().range.field, "top_p");
        assert_eq!(with(|f| f.top_p = 1.01).unwrap_err().range.field, "top_p");
        let tiny = with(|f| f.top_p = 1e-300).unwrap().encode(0, 0, None, 0);
        assert!(tiny.top_p > 0.0);
    }

    #[test]
    fn survival_11_negative_top_k() {
        assert_eq!(with(|f| f.top_k = -2).unwrap_err().range.field, "top_k");
        assert_eq!(
            with(|f| f.top_k = i64::MAX).unwrap_err().range.field,
            "top_k"
        );
        assert_eq!(
            with(|f| f.top_k = -1).unwrap().encode(0, 0, None, 0).top_k,
            0
        );
    }

    #[test]
    fn a_range_says_itself_what_it_takes() {
        let said = |range: Range, value| range.check(value).unwrap_err().to_string();
        assert_eq!(
            said(SamplingFields::TOP_P, 0.0),
            "top_p is 0, but must be a number above 0, at most 1"
        );
        assert_eq!(
            said(SamplingFields::TOP_K, 1.5),
            "top_k is 1.5, but must be a whole number from -1 to 4294967295"
        );
        assert_eq!(SamplingFields::TOP_K.check(-1.0), Ok(()));
        assert_eq!(SamplingFields::TEMPERATURE.check(1e4), Ok(()));
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
