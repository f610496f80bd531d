// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs: launches captured once from a stream into a graph, and replayed whole. A point that allows it starts while
//! the launch before it ends: the capture makes such an edge of it.

use cudarc::driver::sys;
use metrale_core::{StepCounts, StepLimits};

use super::bind::{Bound, RowsOf};
use super::driver::{Stream, check};
use super::stamps::Stamps;
use crate::error::DeviceFault;

/// A recorded program.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) arenas: u32,
    graph: sys::CUgraphExec,
    bucket: u32,
    /// Whether its launches run over rows, over logits rows.
    counts: (bool, bool),
}

// SAFETY: a graph is launched and destroyed under the backend's lock.
unsafe impl Send for Recorded {}

impl Recorded {
    /// Captures launches in order: each depends on the one before, as in a stream. `stamps` come with the address of the step
    /// block.
    pub(super) fn capture(
        arenas: u32,
        launches: &[&Bound],
        bucket: u32,
        limits: &StepLimits,
        stream: &Stream,
        stamps: Option<(&Stamps, u64)>,
    ) -> Result<Recorded, DeviceFault> {
        let mut ready = Vec::new();
        let mut counts = (false, false);
        for bound in launches {
            let rows_of = bound.rows_of();
            counts.0 |= rows_of == RowsOf::Step;
            counts.1 |= rows_of == RowsOf::Logits;
            let Some(point) = bound.point(bucket) else {
                return Err(DeviceFault::rejected(format!(
                    "{}: no point of the launch takes {bucket} rows",
                    bound.name()
                )));
            };
            ready.push((bound, point));
        }
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive and not capturing: this is the only place that starts, and it ends below.
        check("starting a capture", unsafe {
            sys::cuStreamBeginCapture_v2(stream.0, mode)
        })?;
        let stamp = |end| stamps.map_or(Ok(()), |(s, step)| s.launch(end, step, stream));
        let mut launched = stamp(false);
        for (bound, point) in ready {
            if launched.is_ok() {
                launched = bound.launch(point, bucket, limits, stream);
            }
        }
        let launched = launched.and_then(|()| stamp(true));
        let mut graph = std::ptr::null_mut();
        // SAFETY: ends the capture started above, whatever became of the launches.
        let ended = check("ending a capture", unsafe {
            sys::cuStreamEndCapture(stream.0, &mut graph)
        });
        launched?;
        ended?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph was just captured; it is only a template, and destroyed once the program exists.
        let made = unsafe {
            let made = sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0);
            sys::cuGraphDestroy(graph);
            made
        };
        check("making a program", made)?;
        let recorded = Recorded {
            arenas,
            graph: exec,
            bucket,
            counts,
        };
        // So that the first replay costs what the others do.
        // SAFETY: both are alive.
        check("uploading a program", unsafe {
            sys::cuGraphUpload(exec, stream.0)
        })?;
        stream.synchronize()?;
        Ok(recorded)
    }

    /// Whether the program was recorded for steps of that size.
    pub(super) fn fits(&self, step: StepCounts) -> Result<(), DeviceFault> {
        let over = |uses: bool, count: u32| uses && count > self.bucket;
        if over(self.counts.0, step.rows) || over(self.counts.1, step.logits_rows) {
            return Err(DeviceFault::rejected(format!(
                "the program was recorded for {} rows, and the step has {} and {} logits rows",
                self.bucket, step.rows, step.logits_rows
            )));
        }
        Ok(())
    }

    /// Whether it works on rows, and so reads their ids.
    pub(super) fn runs_rows(&self) -> bool {
        self.counts.0
    }

    /// Whether it works on logits rows, and so leaves outputs.
    pub(super) fn samples(&self) -> bool {
        self.counts.1
    }

    pub(super) fn launch(&self, stream: &Stream) -> Result<(), DeviceFault> {
        // SAFETY: both are alive.
        check("starting a program", unsafe {
            sys::cuGraphLaunch(self.graph, stream.0)
        })
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // SAFETY: made by `capture`; who drops it has waited for its launches.
        unsafe { sys::cuGraphExecDestroy(self.graph) };
    }
}
