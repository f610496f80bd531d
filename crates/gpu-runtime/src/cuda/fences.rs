// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fences of one stream: numbers that rise with the order of submission, each with an event until it is passed.

use std::collections::VecDeque;

use super::driver::{Event, Stream};
use super::fault;
use crate::error::DeviceFault;

/// Faults that are remembered for fences already passed.
const REMEMBERED: usize = 256;

/// Where the fault record of a submitted step lies: ring and slot.
pub(super) type Record = (u32, usize);

#[derive(Debug)]
struct Pending {
    fence: u64,
    event: Event,
    record: Option<Record>,
}

#[derive(Debug, Default)]
pub(super) struct Fences {
    last: u64,
    pending: VecDeque<Pending>,
    spare: Vec<Event>,
    faults: VecDeque<(u64, DeviceFault)>,
}

impl Fences {
    /// Marks the end of what the stream holds now.
    pub(super) fn push(
        &mut self,
        stream: &Stream,
        record: Option<Record>,
    ) -> Result<u64, DeviceFault> {
        let event = match self.spare.pop() {
            Some(event) => event,
            None => Event::new()?,
        };
        event.record(stream)?;
        self.last += 1;
        self.pending.push_back(Pending {
            fence: self.last,
            event,
            record,
        });
        Ok(self.last)
    }

    /// Whether a fence was ever handed out.
    pub(super) fn knows(&self, fence: u64) -> bool {
        fence <= self.last
    }

    /// Looks what has been passed. `read` gives the words of a fault record.
    pub(super) fn retire(
        &mut self,
        read: impl Fn(Record) -> Option<[u32; fault::RECORD_WORDS]>,
    ) -> Result<(), DeviceFault> {
        while let Some(front) = self.pending.front() {
            if !front.event.passed()? {
                break;
            }
            // The front was just seen.
            let Some(done) = self.pending.pop_front() else {
                break;
            };
            if let Some(fault) = done.record.and_then(&read).and_then(fault::read) {
                self.faults.push_back((done.fence, fault));
                if self.faults.len() > REMEMBERED {
                    self.faults.pop_front();
                }
            }
            self.spare.push(done.event);
        }
        Ok(())
    }

    /// Whether a fence has been passed, as of the last [`Fences::retire`].
    pub(super) fn passed(&self, fence: u64) -> bool {
        self.pending.front().is_none_or(|p| fence < p.fence)
    }

    /// The fault of the work before a fence.
    pub(super) fn fault(&self, fence: u64) -> Option<&DeviceFault> {
        self.faults
            .iter()
            .find(|(f, _)| *f == fence)
            .map(|(_, fault)| fault)
    }
}
