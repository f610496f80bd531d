// SPDX-License-Identifier: MIT OR Apache-2.0
//! How packed tensors lie: one layout each, whoever reads it.
//!
//! A point may want a matrix in a layout of its own beside the format's. A tensor that two ops use (a tied embedding) is
//! packed once, so its layout is one that a point of every reader takes: the first in the order of preference. A fusion
//! may ask for another layout of a tensor that nothing else reads.

use std::collections::BTreeMap;

use super::Job;
use super::lower::Run;
use crate::class::Point;

/// By the packed tensor: the indices of its weights, aliases resolved.
#[derive(Debug, Default)]
pub(super) struct Layouts(BTreeMap<Vec<u32>, Readers>);

#[derive(Debug)]
struct Readers {
    /// Layouts that every reader takes, the best first; `None` is the format's own.
    common: Vec<Option<String>>,
    count: usize,
}

impl Layouts {
    /// Notes a run and the points that could carry it out, in order of preference.
    pub(super) fn reader(&mut self, job: Job<'_>, run: &Run, candidates: &[usize]) {
        for (name, ids) in matrices(job, run) {
            let mut takes: Vec<Option<String>> = Vec::new();
            for point in candidates {
                let layout = job.class.points[*point].layouts.get(name).cloned();
                if !takes.contains(&layout) {
                    takes.push(layout);
                }
            }
            match self.0.get_mut(ids) {
                Some(readers) => {
                    readers.common.retain(|l| takes.contains(l));
                    readers.count += 1;
                }
                None => {
                    let readers = Readers {
                        common: takes,
                        count: 1,
                    };
                    self.0.insert(ids.clone(), readers);
                }
            }
        }
    }

    /// Whether a point reads the run's matrices as they lie; `alone` lets it choose where it is the only reader.
    pub(super) fn suits(&self, job: Job<'_>, run: &Run, point: &Point, alone: bool) -> bool {
        matrices(job, run).all(|(name, ids)| {
            let wants = point.layouts.get(name);
            match self.0.get(ids) {
                Some(readers) if alone && readers.count == 1 => true,
                Some(readers) => readers.common.first().is_none_or(|l| l.as_ref() == wants),
                None => true,
            }
        })
    }
}

/// The run's operands of rank two.
fn matrices<'a>(
    job: Job<'a>,
    run: &'a Run,
) -> impl Iterator<Item = (&'a String, &'a Vec<u32>)> + 'a {
    let rank = move |ids: &Vec<u32>| {
        let first = ids.first().map(|id| &job.instance.weights[*id as usize]);
        first.map_or(0, |w| w.shape.len())
    };
    let all = run.weights.iter().filter(move |(_, ids)| rank(ids) > 1);
    all.map(|(name, ids)| (name, ids))
}
