// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a download tells of itself.

/// Told of a download's course. The command line draws bars; tests count.
pub trait Progress: Sync {
    /// A file begins: `done` of `total` bytes are there already.
    fn begin(&self, what: &str, total: Option<u64>, done: u64);
    /// `bytes` more have come.
    fn advance(&self, bytes: u64);
    /// The file has ended, well or not.
    fn end(&self);
    /// Something worth a line: a retry, a wait for another process.
    fn note(&self, what: &str);
}

/// Says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _: &str, _: Option<u64>, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn note(&self, _: &str) {}
}
