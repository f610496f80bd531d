// SPDX-License-Identifier: MIT OR Apache-2.0
//! A forward-only reader that knows where it is and how much there can be.

use std::fmt;
use std::io::{ErrorKind, Read};

use super::{GgufError, GgufLimits};

/// Memory taken per step when a declared length is read: growth follows bytes that really came.
const CHUNK: usize = 64 << 10;

/// What is being read, rendered only if an error needs it.
#[derive(Clone, Copy)]
pub(super) enum At<'a> {
    /// A fixed field of the header.
    Field(&'static str),
    /// Metadata key number n.
    Key(u64),
    /// The value of a key.
    Value(&'a str),
    /// Element n of an array value.
    Element(&'a str, u64),
    /// Entry n of the tensor table, its name not yet known.
    Entry(u64),
    /// The entry of a named tensor.
    Tensor(&'a str),
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Field(name) => f.write_str(name),
            At::Key(n) => write!(f, "metadata key number {n}"),
            At::Value(key) => write!(f, "the value of key `{key}`"),
            At::Element(key, n) => write!(f, "element {n} of key `{key}`"),
            At::Entry(n) => write!(f, "entry {n} of the tensor table"),
            At::Tensor(name) => write!(f, "tensor `{name}`"),
        }
    }
}

/// Reads little-endian fields from `inner`, never past `file_len` or the header limit.
pub(super) struct Cursor<'l, R> {
    inner: R,
    buffer: Vec<u8>,
    taken: usize,
    offset: u64,
    file_len: u64,
    pub(super) limits: &'l GgufLimits,
}

impl<'l, R: Read> Cursor<'l, R> {
    pub(super) fn new(inner: R, file_len: u64, limits: &'l GgufLimits) -> Self {
        Self {
            inner,
            buffer: Vec::new(),
            taken: 0,
            offset: 0,
            file_len,
            limits,
        }
    }

    /// Bytes read so far.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Checks that `bytes` more can exist, before anything is allocated for them.
    pub(super) fn need(&self, bytes: u64, at: At<'_>) -> Result<(), GgufError> {
        let end = self.offset.checked_add(bytes);
        if end.is_none_or(|end| end > self.file_len) {
            return Err(GgufError::Truncated {
                what: at.to_string(),
                offset: self.offset,
                needs: bytes,
                file_len: self.file_len,
            });
        }
        if end.is_some_and(|end| end > self.limits.header_bytes) {
            return Err(self.limit(at, bytes, self.limits.header_bytes, "header_bytes"));
        }
        Ok(())
    }

    /// Refuses `value` if it is above `limit`.
    pub(super) fn within(
        &self,
        value: u64,
        limit: u64,
        field: &'static str,
        at: At<'_>,
    ) -> Result<(), GgufError> {
        if value > limit {
            Err(self.limit(at, value, limit, field))
        } else {
            Ok(())
        }
    }

    fn limit(&self, at: At<'_>, value: u64, limit: u64, field: &'static str) -> GgufError {
        GgufError::Limit {
            what: at.to_string(),
            offset: self.offset,
            value,
            limit,
            field,
        }
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self, at: At<'_>) -> Result<[u8; N], GgufError> {
        self.need(N as u64, at)?;
        let mut out = [0; N];
        self.fill(&mut out, at)?;
        Ok(out)
    }

    pub(super) fn u32(&mut self, at: At<'_>) -> Result<u32, GgufError> {
        self.array(at).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, at: At<'_>) -> Result<u64, GgufError> {
        self.array(at).map(u64::from_le_bytes)
    }

    /// A string's bytes: a length of eight bytes, then as many, into `out` (cleared first).
    pub(super) fn string(
        &mut self,
        out: &mut Vec<u8>,
        limit: u64,
        field: &'static str,
        at: At<'_>,
    ) -> Result<(), GgufError> {
        let len = self.u64(at)?;
        self.need(len, at)?;
        self.within(len, limit, field, at)?;
        out.clear();
        let mut left = len;
        while left > 0 {
            let step = left.min(CHUNK as u64) as usize;
            let filled = out.len();
            out.resize(filled + step, 0);
            self.fill(&mut out[filled..], at)?;
            left -= step as u64;
        }
        Ok(())
    }

    /// `count` fixed-size elements, decoded by `read`.
    pub(super) fn elements<T, const N: usize>(
        &mut self,
        count: u64,
        at: At<'_>,
        read: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, GgufError> {
        self.need(count.saturating_mul(N as u64), at)?;
        let mut out = Vec::new();
        let mut chunk = vec![0; (CHUNK / N).min(count as usize) * N];
        let mut left = count as usize;
        while left > 0 {
            let step = left.min(CHUNK / N);
            self.fill(&mut chunk[..step * N], at)?;
            out.reserve(step);
            let (parts, _) = chunk[..step * N].as_chunks::<N>();
            out.extend(parts.iter().map(|part| read(*part)));
            left -= step;
        }
        Ok(out)
    }

    /// Fills `out`; the caller has asked `need`. A reader that ends early is a truncated file too.
    fn fill(&mut self, out: &mut [u8], at: At<'_>) -> Result<(), GgufError> {
        let mut done = 0;
        while done < out.len() {
            if self.taken == self.buffer.len() {
                self.refill(out.len() - done, at)?;
            }
            let step = (out.len() - done).min(self.buffer.len() - self.taken);
            out[done..done + step].copy_from_slice(&self.buffer[self.taken..self.taken + step]);
            self.taken += step;
            done += step;
            self.offset += step as u64;
        }
        Ok(())
    }

    fn refill(&mut self, wanted: usize, at: At<'_>) -> Result<(), GgufError> {
        self.buffer.resize(CHUNK, 0);
        self.taken = 0;
        let read = loop {
            match self.inner.read(&mut self.buffer) {
                Ok(n) => break n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(source) => {
                    self.buffer.clear();
                    return Err(GgufError::Io {
                        offset: self.offset,
                        source,
                    });
                }
            }
        };
        self.buffer.truncate(read);
        if read == 0 {
            return Err(GgufError::Truncated {
                what: at.to_string(),
                offset: self.offset,
                needs: wanted as u64,
                file_len: self.offset,
            });
        }
        Ok(())
    }
}
