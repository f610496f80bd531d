// SPDX-License-Identifier: MIT OR Apache-2.0
//! When each program began and ended, by the device's own clock: a small launch before the first kernel of a program
//! and one behind its last write into a ring on the device (`instruments.cu`). What lies between the end of one program and
//! the begin of the next is time in which no kernel ran.
//!
//! A stamp costs about a microsecond, which counts as busy: programs are stamped only where [`CudaOptions`] asks.
//!
//! [`CudaOptions`]: super::CudaOptions

use cudarc::driver::sys;
use metrale_kernels::Target;

use super::bind::Resolved;
use super::driver::{DeviceMemory, Stream, check};
use super::launch::launch_one;
use super::state::State;
use crate::backend::Stamp;
use crate::error::DeviceFault;

/// Programs that the ring holds: `STAMPS` of the kernel.
const STAMPS: u64 = 16384;
/// Words before the entries, and words of an entry.
const WORDS: usize = 3;

/// The ring and the kernel that writes it.
#[derive(Debug)]
pub(super) struct Stamps {
    ring: DeviceMemory,
    kernel: Resolved,
    /// Programs that were read.
    read: u64,
}

impl Stamps {
    pub(super) fn new(state: &mut State, target: &'static Target) -> Result<Stamps, DeviceFault> {
        let kernel = state.instrument(target, "stamp/clock")?;
        let bytes = (WORDS as u64 + WORDS as u64 * STAMPS) * 8;
        let ring = DeviceMemory::new(bytes, &state.stream, &state.allocations)?;
        Ok(Stamps {
            ring,
            kernel,
            read: 0,
        })
    }

    /// Launches, or records, the stamp of a begin or an end.
    pub(super) fn launch(&self, end: bool, step: u64, stream: &Stream) -> Result<(), DeviceFault> {
        launch_one(&self.kernel, &[self.ring.at, u64::from(end), step], stream)
    }

    /// The programs that have ended since this was last asked; of more than the ring holds, the last. Who calls has waited
    /// for the stream.
    pub(super) fn take(&mut self) -> Result<Vec<Stamp>, DeviceFault> {
        let mut words = vec![0u64; self.ring.bytes as usize / 8];
        // SAFETY: `words` has as many bytes as the ring.
        check("reading stamps", unsafe {
            sys::cuMemcpyDtoH_v2(
                words.as_mut_ptr().cast(),
                self.ring.at,
                self.ring.bytes as usize,
            )
        })?;
        let stamps = entries(&words, self.read);
        self.read = words[0];
        Ok(stamps)
    }
}

/// The entries of a ring from the `read`-th program on.
fn entries(words: &[u64], read: u64) -> Vec<Stamp> {
    let count = words[0];
    let first = read.max(count.saturating_sub(STAMPS));
    (first..count)
        .map(|i| {
            let at = WORDS + WORDS * (i % STAMPS) as usize;
            Stamp {
                begin: words[at],
                end: words[at + 1],
                rows: words[at + 2] as u32,
                logits_rows: (words[at + 2] >> 32) as u32,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(count: u64) -> Vec<u64> {
        let mut words = vec![0; WORDS + WORDS * STAMPS as usize];
        words[0] = count;
        for i in 0..count {
            let at = WORDS + WORDS * (i % STAMPS) as usize;
            words[at..at + 3].copy_from_slice(&[10 * i, 10 * i + 7, i & 0xff | 5 << 32]);
        }
        words
    }

    #[test]
    fn a_ring_is_read_once_and_in_order() {
        let stamps = entries(&ring(5), 2);
        let begins: Vec<u64> = stamps.iter().map(|s| s.begin).collect();
        assert_eq!(begins, [20, 30, 40]);
        let last = stamps[2];
        assert_eq!((last.end, last.rows, last.logits_rows), (47, 4, 5));
        assert_eq!(entries(&ring(5), 5), []);
        let lapped = entries(&ring(STAMPS + 3), 1);
        assert_eq!((lapped.len() as u64, lapped[0].begin), (STAMPS, 30));
    }

    /// The number of entries stands in the kernel and in the manifest too.
    #[test]
    fn the_kernel_has_the_same_ring() {
        let kernel = include_str!("../../../../kernels/gb10/common/instruments.cu");
        assert!(kernel.contains(&format!("STAMPS = {STAMPS};")));
        let manifest = include_str!("../../../../kernels/gb10/common/KERNEL.toml");
        let bytes = (WORDS + WORDS * STAMPS as usize) * 8;
        assert!(manifest.contains(&format!("needs.ring = \"{bytes}\"")));
    }
}
