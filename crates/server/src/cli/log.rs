// SPDX-License-Identifier: MIT OR Apache-2.0
//! The log, on standard error. Prompts and answers never enter it.

use tracing::Level;

use super::exit::{Exit, Failure};
use super::machine::Machine;
use super::parser::Values;

/// Starts the log as the flags say; `level` holds without one.
pub(super) fn start(values: &Values<'_>, machine: &Machine, level: &str) -> Result<(), Failure> {
    let level = values.text("log-level").unwrap_or(level);
    let level: Level = level
        .parse()
        .map_err(|_| Failure::text(Exit::Usage, format!("--log-level {level}")))?;
    if level == Level::ERROR {
        machine.console.errors_only();
    }
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        // It would tell them on standard error, and panic where that is closed (`met serve 2>&1 | head`).
        .log_internal_errors(false)
        .with_target(false);
    let started = match values.text("log-format") {
        Some("json") => {
            machine.console.note_to_log();
            log.json().try_init()
        }
        _ => log.try_init(),
    };
    // Where tests run several commands in one process, the first log stays.
    if started.is_err() {
        tracing::debug!("a log is running already");
    }
    Ok(())
}
