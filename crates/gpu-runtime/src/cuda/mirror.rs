// SPDX-License-Identifier: MIT OR Apache-2.0
//! A host copy of the small outputs (tokens, log-probabilities, alternatives, status).
//!
//! The engine reads them a few bytes at a time, row by row. Each such read would cost a trip over the bus, about 10 us; the
//! first one after a step fetches all small outputs together, and the others find them here.

use cudarc::driver::sys;
use metrale_core::{ArenaKind, MemoryPlan, SpanId};

use super::driver::{Pinned, Stream, check};
use crate::error::DeviceFault;

/// Spans above this are read as they are asked for (rows of logits).
const SMALL: u64 = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct Mirror {
    host: Option<Pinned>,
    /// Span, its first byte in the copy, its bytes.
    spans: Vec<(SpanId, usize, usize)>,
    fresh: bool,
}

impl Mirror {
    pub(super) fn new(plan: &MemoryPlan) -> Result<Mirror, DeviceFault> {
        let mut spans = Vec::new();
        let mut at = 0;
        for (i, span) in plan.spans.iter().enumerate() {
            if span.arena == ArenaKind::Outputs && (1..=SMALL).contains(&span.bytes) {
                let bytes = span.bytes as usize;
                spans.push((SpanId(i as u32), at, bytes));
                at += bytes.next_multiple_of(16);
            }
        }
        let host = if at > 0 {
            Some(Pinned::new(at / 4)?)
        } else {
            None
        };
        Ok(Mirror {
            host,
            spans,
            fresh: false,
        })
    }

    /// Says that the device may have written since.
    pub(super) fn forget(&mut self) {
        self.fresh = false;
    }

    /// Reads bytes of a small output. `Ok(false)` if the span is none, or the range leaves it. `address` gives spans'
    /// places on the device. Waits for the stream if the copy is not fresh.
    pub(super) fn read(
        &mut self,
        span: SpanId,
        offset: u64,
        out: &mut [u8],
        stream: &Stream,
        address: impl Fn(SpanId) -> Option<u64>,
    ) -> Result<bool, DeviceFault> {
        let Some((_, at, bytes)) = self.spans.iter().find(|(s, ..)| *s == span) else {
            return Ok(false);
        };
        let Some(host) = &self.host else {
            return Ok(false);
        };
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > *bytes as u64) {
            return Ok(false);
        }
        if !self.fresh {
            for (span, at, bytes) in &self.spans {
                let Some(from) = address(*span) else { continue };
                let to = host.address(at / 4) as *mut std::ffi::c_void;
                // SAFETY: the copy was laid out for every small span; nothing reads it before the wait below.
                let copied = unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, *bytes, stream.0) };
                check("reading the outputs", copied)?;
            }
            stream.synchronize()?;
            self.fresh = true;
        }
        let begin = at + offset as usize;
        out.copy_from_slice(&host.bytes()[begin..begin + out.len()]);
        Ok(true)
    }
}
