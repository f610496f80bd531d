// SPDX-License-Identifier: MIT OR Apache-2.0
//! `met verify`: a checkpoint's logits against a reference.

use std::fmt::Write;
use std::sync::Arc;

use metrale_circuit::{CircuitLibrary, Plan};
use metrale_core::Elem;
use metrale_gpu_runtime::{CudaOptions, HostOptions};
use metrale_model_engine::verify::{self, Reference, Report};
use metrale_model_engine::{PlanOptions, Prepared, load};

use super::circuit::prepared;
use super::exit::{Exit, Failure, OrExit};
use super::machine::Machine;
use super::options;
use super::parser::Values;
use crate::assembly::{self, Wanted};
use crate::hub::Progress;

/// The bound, as a multiple of what rounding alone did to the reference (f32 against f64).
const ROUNDINGS: f32 = 8.0;

pub(super) fn verify(values: &Values<'_>, machine: &Machine) -> Result<(), Failure> {
    let file = values
        .path("reference")
        .ok_or_else(|| Failure::text(Exit::Usage, "met verify needs --reference FILE"))?;
    let reference = Reference::read(&file).or_exit(Exit::Usage)?;
    let stated = values.number("bound").map(|b| b as f32);
    let library = assembly::library().or_exit(Exit::Failed)?;
    let prepared = prepared(values, machine, &library)?;
    let report = run(values, machine, &library, prepared, &reference, stated)?;
    machine.console.print(&text(&report))?;
    if report.passed() {
        Ok(())
    } else {
        Err(Failure::told(Exit::Failed))
    }
}

fn run(
    values: &Values<'_>,
    machine: &Machine,
    library: &CircuitLibrary,
    prepared: Prepared,
    reference: &Reference,
    stated: Option<f32>,
) -> Result<Report, Failure> {
    let host = HostOptions {
        threads: values.count("threads").unwrap_or(0),
        isa: options::isa(machine)?,
        ..HostOptions::default()
    };
    let wanted = values.device("device").unwrap_or(Wanted::Auto);
    let on = wanted
        .open(host, CudaOptions::default())
        .or_exit(Exit::Machine)?;
    let limits = verify::limits(reference);
    let all = options::kv(values).unwrap_or(Elem::F32);
    let kv = options::kv_layers(values)?.formats(all, &prepared.instance);
    let kv = kv.or_exit(Exit::Usage)?;
    let planned = on.planned(|on| {
        let options = PlanOptions {
            class: on.backend.device().class.clone(),
            device: None,
            kv: kv.clone(),
            kv_blocks: verify::kv_blocks(&limits),
            windows: Vec::new(),
            snapshots: 0,
            limits,
            fuse: true,
        };
        on.device
            .planned(prepared.plan(library, &options).map_err(Into::into))
    });
    let (on, plan) = planned.or_exit(Exit::Checkpoint)?;
    if let Some(why) = on.passed_over.as_ref().filter(|why| !why.nothing_there()) {
        let what = "the processor computes, not the GPU; --device names one";
        machine.console.note(&format!("{what}: {}", why.why()));
    }
    let device = on.backend.device();
    let computes = format!("{} (class {}) computes", device.name, device.class);
    machine.console.note(&computes);
    let plan = Arc::new(plan);
    let bound = stated.unwrap_or_else(|| derived(&prepared, &plan, reference, machine));
    let total = prepared.checkpoint.store.as_ref().map(|s| s.total_bytes());
    machine.console.begin("weights", total, 0);
    let model = load(&prepared, plan, on.backend, |bytes| {
        machine.console.advance(bytes)
    });
    machine.console.end();
    verify::verify(&mut model.or_exit(Exit::Checkpoint)?, reference, bound).or_exit(Exit::Failed)
}

/// The bound that follows from the reference and the plan.
fn derived(prepared: &Prepared, plan: &Plan, reference: &Reference, machine: &Machine) -> f32 {
    let exact = reference
        .f64_diff
        .map(|d| d * ROUNDINGS)
        .unwrap_or_else(|| {
            let what = "the reference does not record its rounding: the bound is an estimate";
            machine.console.note(what);
            verify::estimated_bound(&prepared.instance, reference)
        });
    let bound = verify::bound_of(plan, reference, exact);
    if bound > exact {
        machine.console.note(&format!(
            "activations or the KV cache are rounded more coarsely than f32: the bound is {:.0} times that of f32",
            bound / exact
        ));
    }
    bound
}

fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "{:<28} {:>12} {:>12} {:>16}",
        "schedule", "largest diff", "mean diff", "rows that differ"
    );
    for s in &report.schedules {
        let _ = writeln!(
            out,
            "{:<28} {:>12.3e} {:>12.3e} {:>16}",
            s.name, s.max_diff, s.mean_diff, s.rows_differing
        );
    }
    let _ = writeln!(
        out,
        "greedy: {} of {} tokens agree",
        report.greedy_equal, report.greedy_compared
    );
    let verdict = if report.passed() { "agrees" } else { "DIFFERS" };
    let _ = writeln!(out, "{verdict} (bound {:.3e})", report.bound);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrale_model_engine::verify::ScheduleReport;

    #[test]
    fn a_report_is_a_table_with_a_verdict() {
        let schedule = |name: &str, max_diff, rows_differing| ScheduleReport {
            name: name.into(),
            max_diff,
            mean_diff: 1e-7,
            rows_differing,
        };
        let mut report = Report {
            schedules: vec![schedule("whole", 2e-6, 0), schedule("chunks of 7", 2e-6, 0)],
            greedy_compared: 8,
            greedy_equal: 8,
            bound: 1e-5,
        };
        assert!(text(&report).ends_with("greedy: 8 of 8 tokens agree\nagrees (bound 1.000e-5)\n"));
        report.schedules[1].rows_differing = 1;
        assert!(text(&report).contains("DIFFERS"));
    }
}
