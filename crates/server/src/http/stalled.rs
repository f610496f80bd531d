// SPDX-License-Identifier: MIT OR Apache-2.0
//! A connection that is cut when its reader stops reading.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Bytes that a reader must take in the time of the limit, unless it takes all there are.
const PROGRESS: usize = 16 << 10;

/// Wraps a connection: a write that cannot make progress for `limit` fails with `TimedOut`.
pub(super) struct Stalled<T> {
    inner: T,
    limit: Duration,
    /// Set while a write waits for room.
    since: Option<Pin<Box<Sleep>>>,
    /// Bytes written since then.
    written: usize,
}

impl<T> Stalled<T> {
    /// Wraps `inner`.
    pub(super) fn new(inner: T, limit: Duration) -> Stalled<T> {
        Stalled {
            inner,
            limit,
            since: None,
            written: 0,
        }
    }

    /// Counts a write's progress, or waits for the limit.
    fn watch(
        &mut self,
        cx: &mut Context<'_>,
        wrote: Poll<io::Result<usize>>,
        wanted: usize,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(result) = wrote {
            let bytes = *result.as_ref().unwrap_or(&0);
            self.written += bytes;
            if bytes == wanted || self.written >= PROGRESS {
                self.since = None;
                self.written = 0;
            }
            return Poll::Ready(result);
        }
        let limit = self.limit;
        let since = self.since.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(since.as_mut().poll(cx));
        since.as_mut().reset(Instant::now() + limit);
        let what = format!("the client took less than {PROGRESS} bytes in {limit:?}");
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, what)))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Stalled<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Stalled<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.watch(cx, wrote, buf.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        let wanted = bufs.iter().map(|b| b.len()).sum();
        self.watch(cx, wrote, wanted)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
