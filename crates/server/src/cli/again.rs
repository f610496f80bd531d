// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starting again with the socket kept: what is left to do when a device is lost or hangs, for its context cannot be mended
//! inside the process.
//!
//! The process replaces itself (exec) by the same program with the same arguments; the listening socket becomes its
//! standard input, so that no connection is refused meanwhile: those that come wait in the socket's queue.

use std::ffi::OsString;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use super::exit::{Exit, Failure};
use crate::assembly::Device;
use crate::engine_face::EngineState;
use crate::http::App;

/// Restarts in a row: a device that hangs each time is not mended by one more.
const MOST: u64 = 3;
/// Served for so long, a process counts as sound again.
const SOUND: Duration = Duration::from_secs(600);
/// Time for failed requests to be told.
const GRACE: Duration = Duration::from_secs(2);
/// How often the engine is looked at.
const LOOK: Duration = Duration::from_millis(100);

const FLAG: &str = "--inherit-listener";
/// The device that served is asked for by its name: `auto` would take another if it cannot be opened again.
const DEVICE: &str = "--device";

/// The listener that the process was given as standard input.
pub(super) fn inherited() -> io::Result<TcpListener> {
    let listener = TcpListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    // Standard input of another kind is no listener: it has no address.
    listener.local_addr()?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Waits until the engine of a loaded model is lost, or ends no step for twice `step_timeout` while sequences run; then
/// until its requests have been told, at most two seconds. Why it is lost. A server that drains is not started again.
pub(super) async fn lost(app: &Arc<App>, step_timeout: Duration) -> String {
    let (mut steps, mut since) = (0, Instant::now());
    let why = loop {
        sleep(LOOK).await;
        let Some(model) = app.slot.loaded() else {
            continue;
        };
        if let EngineState::Failed(why) = app.slot.state() {
            break why;
        }
        let stats = model.engine.stats();
        if stats.steps != steps || stats.running == 0 {
            (steps, since) = (stats.steps, Instant::now());
        }
        if since.elapsed() > 2 * step_timeout {
            break format!("no step has ended for {:?}", since.elapsed());
        }
    };
    // Whoever is not told by then is cut.
    let _ = timeout(GRACE, app.wait_idle()).await;
    if app.slot.draining() {
        std::future::pending::<()>().await;
    }
    why
}

/// Replaces the process. Returns only if that is not possible, or was done too often.
pub(super) fn start(
    listener: TcpListener,
    restarts: u64,
    ready_at: Instant,
    device: Option<Device>,
    why: &str,
) -> Failure {
    let restarts = match ready_at.elapsed() > SOUND {
        true => 0,
        false => restarts,
    };
    let failure = |what: String| Failure::text(Exit::Machine, what);
    if restarts >= MOST {
        return failure(format!(
            "the device was lost after {restarts} restarts in a row: {why}"
        ));
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(e) => {
            return failure(format!(
                "the program cannot be found to start it again: {e}"
            ));
        }
    };
    tracing::error!(
        why,
        restarts = restarts + 1,
        "starting again with the socket kept: device, weights, KV cache and prefixes are rebuilt"
    );
    let error = Command::new(program)
        .args(arguments(std::env::args_os().skip(1)))
        .args(device.map(|device| format!("{DEVICE}={device}")))
        .arg(FLAG)
        .arg((restarts + 1).to_string())
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .exec();
    failure(format!("the process could not be replaced: {error}"))
}

/// The arguments without those that a restart gives.
fn arguments(all: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut skip = false;
    for argument in all {
        if std::mem::take(&mut skip) {
            continue;
        }
        skip = argument == FLAG || argument == DEVICE;
        let one = argument.to_str().and_then(|a| a.strip_prefix(DEVICE));
        if !skip && !one.is_some_and(|rest| rest.starts_with('=')) {
            kept.push(argument);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_restart_gives_is_left_out() {
        let all = [
            "serve",
            "m",
            FLAG,
            "2",
            DEVICE,
            "auto",
            "--port",
            "0",
            "--device=cuda:1",
        ];
        let all = all.map(OsString::from);
        let want = ["serve", "m", "--port", "0"].map(OsString::from);
        assert_eq!(arguments(all.into_iter()), want);
    }
}
