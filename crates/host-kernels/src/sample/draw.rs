// SPDX-License-Identifier: MIT OR Apache-2.0
//! Filters and the draw, over candidates that are put in order only as far as they are looked at.

use std::cmp::Ordering;

use metrale_core::SampleRow;
use metrale_core::rng::uniform;

use super::sums::sum8;
use crate::isa::{Isa, on_isa};

/// Steps 6 and 7; `None` if the temperature made every weight NaN.
pub(super) fn draw(
    isa: Isa,
    (y, best): (&[f32], f32),
    w: &[f32],
    row: &SampleRow,
    order: &mut Vec<(f32, u32)>,
) -> Option<u32> {
    let mut candidates = Ordered::new(y, w, best, row.temperature, order);
    let limit = if row.top_k == 0 {
        y.len()
    } else {
        (row.top_k as usize).min(y.len())
    };
    let mut total = if limit < y.len() {
        candidates.sum(limit)
    } else {
        on_isa!(isa, sum8, (w: &[f32] = w) -> f64)
    };
    let mut kept = limit;
    if row.top_p < 1.0 || row.min_p > 0.0 {
        let nucleus = f64::from(row.top_p) * total;
        let (mut sum, mut i) = (0.0, 0);
        while i < limit
            && let Some(w) = candidates.weight(i)
            && (i == 0 || row.top_p >= 1.0 || sum < nucleus)
            && w >= row.min_p
        {
            sum += f64::from(w);
            i += 1;
        }
        if i < limit {
            kept = i.max(1);
            total = candidates.sum(kept);
        }
    }
    let target = f64::from(uniform(row.seed, row.choice, row.position, 0)) * total;
    let (mut sum, mut last) = (0.0, 0);
    for i in 0..kept {
        let Some(w) = candidates.weight(i) else { break };
        sum += f64::from(w);
        if sum > target {
            return candidates.token(i);
        }
        if w == 0.0 {
            // The sum grows no more.
            break;
        }
        last = i;
    }
    candidates.token(last)
}

/// Candidates in order, sorted band by band as they are asked for.
struct Ordered<'a> {
    y: &'a [f32],
    w: &'a [f32],
    sorted: &'a mut Vec<(f32, u32)>,
    best: f32,
    temperature: f32,
    /// Width of the next band, in temperatures.
    width: f32,
    /// Every candidate with `y` at or above it is in `sorted`.
    floor: f32,
    complete: bool,
}

impl<'a> Ordered<'a> {
    fn new(
        y: &'a [f32],
        w: &'a [f32],
        best: f32,
        temperature: f32,
        sorted: &'a mut Vec<(f32, u32)>,
    ) -> Ordered<'a> {
        sorted.clear();
        let (floor, width) = (f32::INFINITY, 4.0);
        Ordered {
            y,
            w,
            sorted,
            best,
            temperature,
            width,
            floor,
            complete: false,
        }
    }

    /// The weight of candidate `i`; `None` past the last.
    fn weight(&mut self, i: usize) -> Option<f32> {
        while i >= self.sorted.len() && !self.complete {
            self.grow();
        }
        self.sorted.get(i).map(|(_, id)| self.w[*id as usize])
    }

    /// Sum of the first `n` weights, in order.
    fn sum(&mut self, n: usize) -> f64 {
        let mut sum = 0.0;
        for i in 0..n {
            match self.weight(i) {
                Some(w) => sum += f64::from(w),
                None => break,
            }
        }
        sum
    }

    fn token(&mut self, i: usize) -> Option<u32> {
        self.weight(i)?;
        Some(self.sorted[i].1)
    }

    /// The next band: 4, 8, 16 and 32 temperatures below the best, then all the rest.
    fn grow(&mut self) {
        let upper = self.floor;
        self.complete = self.width > 32.0;
        self.floor = if self.complete {
            f32::NEG_INFINITY
        } else {
            self.best - self.width * self.temperature
        };
        self.width *= 2.0;
        let begin = self.sorted.len();
        for (id, y) in self.y.iter().enumerate() {
            if *y >= self.floor && (*y < upper || upper == f32::INFINITY) {
                self.sorted.push((*y, id as u32));
            }
        }
        self.sorted[begin..].sort_unstable_by(|a, b| before(*a, *b));
    }
}

/// Whether `a` stands before `b` in the order; no value is NaN.
fn before(a: (f32, u32), b: (f32, u32)) -> Ordering {
    b.0.partial_cmp(&a.0)
        .unwrap_or(Ordering::Equal)
        .then(a.1.cmp(&b.1))
}
