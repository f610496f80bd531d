// SPDX-License-Identifier: MIT OR Apache-2.0
//! What ends the server: the first SIGTERM or SIGINT drains it, the second stops it.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::http::Signals;

/// Takes the process's signals. Must be called inside the runtime.
pub(super) fn install() -> io::Result<Signals> {
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let (count, seen) = watch::channel(0u32);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            count.send_modify(|n| *n += 1);
        }
    });
    let after = |n: u32| {
        let mut seen = seen.clone();
        async move {
            if seen.wait_for(|count| *count >= n).await.is_err() {
                // The counting task is gone: no signal comes any more.
                std::future::pending::<()>().await;
            }
        }
    };
    Ok(Signals {
        drain: Box::pin(after(1)),
        stop: Box::pin(after(2)),
        ..Signals::never()
    })
}
