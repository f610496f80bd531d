// SPDX-License-Identifier: MIT OR Apache-2.0
//! `met doctor`: what stands in the way of serving on this machine, and what would mend it.

mod checks;
mod probe;

use std::fmt::Write;

use super::exit::{Exit, Failure};
use super::machine::Machine;
use super::parser::Values;

use self::checks::{Check, State};
use self::probe::System;

pub(super) fn doctor(values: &Values<'_>, machine: &Machine) -> Result<(), Failure> {
    let port = values.count("port").unwrap_or(8000);
    let checks = checks::all(machine, &System, port);
    machine.console.print(&text(&checks))?;
    if checks.iter().any(|c| c.state == State::Bad) {
        Err(Failure::told(Exit::Machine))
    } else {
        Ok(())
    }
}

fn text(checks: &[Check]) -> String {
    let mut out = String::new();
    for check in checks {
        let mark = match check.state {
            State::Good => "ok  ",
            State::Warning => "warn",
            State::Bad => "FAIL",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{mark} {:<10} {}", check.name, check.found);
        if let Some(remedy) = &check.remedy {
            let _ = writeln!(out, "{:15} -> {remedy}", "");
        }
    }
    out
}
