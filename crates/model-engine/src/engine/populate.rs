// SPDX-License-Identifier: MIT OR Apache-2.0
//! Populating the KV pool: the pages of a reserved pool cost their first touch, which is paid here, block by block and
//! in order, on a thread of its own. Admission counts populated blocks only, so a step never pays it. The pools of windows are
//! not populated: each of their blocks is touched once, by the first row that is written there.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use metrale_gpu_runtime::{DeviceFault, Loc};

use crate::model::{Reserved, TransformerModel};

/// Blocks touched before the count is raised: 16 blocks are 256 tokens, 12 MB of SmolLM2's f32 pool.
const PIECE: u64 = 16;

/// The thread that populates a pool; dropping it stops it.
pub struct Populator {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Populator {
    /// Populates the first piece before it returns, and the rest in the background; raises `populated` as it goes.
    pub(super) fn start(
        model: &TransformerModel,
        populated: Arc<AtomicU32>,
    ) -> io::Result<Populator> {
        let work = Work {
            device: Arc::clone(model.device()),
            populated,
        };
        let stop = Arc::new(AtomicBool::new(false));
        if !work.device.backend.device().lazy_memory {
            // A GPU's memory is there once it is reserved, zeroed.
            let all = work.device.plan.kv_blocks as u32;
            work.populated.store(all, Ordering::Release);
            return Ok(Populator { stop, thread: None });
        }
        work.piece(0);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("met-populate".into())
            .spawn(move || work.rest(&stopped))?;
        Ok(Populator {
            stop,
            thread: Some(thread),
        })
    }

    /// Returns once the pool is populated, or stays as it is.
    pub fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            // It has nothing to report: a write that failed left its blocks unpopulated.
            let _ = thread.join();
        }
    }
}

impl Drop for Populator {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wait();
    }
}

struct Work {
    device: Arc<Reserved>,
    populated: Arc<AtomicU32>,
}

impl Work {
    fn rest(&self, stop: &AtomicBool) {
        let mut first = PIECE;
        while first < self.device.plan.kv_blocks
            && !stop.load(Ordering::Relaxed)
            && self.piece(first)
        {
            first += PIECE;
        }
    }

    /// Zeroes blocks `first..first + PIECE` of every layer of the first group and raises the count. False if the device refused: the pool
    /// then stays at what it is.
    fn piece(&self, first: u64) -> bool {
        let last = (first + PIECE).min(self.device.plan.kv_blocks);
        let done = self.zero(first, last);
        if let Err(fault) = &done {
            tracing::error!(%fault, blocks = first, "the KV pool stays at its populated part");
            return false;
        }
        self.populated.store(last as u32, Ordering::Release);
        true
    }

    fn zero(&self, first: u64, last: u64) -> Result<(), DeviceFault> {
        let mut zeros = Vec::new();
        for (span, block) in &self.device.plan.kv_groups[0].streams {
            zeros.resize(((last - first) * block) as usize, 0);
            self.device.backend.write(
                self.device.arenas,
                Loc {
                    span: *span,
                    offset: first * block,
                },
                &zeros,
            )?;
        }
        Ok(())
    }
}
