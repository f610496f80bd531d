// SPDX-License-Identifier: MIT OR Apache-2.0
//! `met circuit`: how a checkpoint is understood and planned, as text.

use metrale_circuit::{CircuitLibrary, Device, Plan, Workload};
use metrale_core::{KV_BLOCK, StepLimits};
use metrale_model_engine::{KvPools, PlanOptions, Prepared};
use metrale_model_weights::Checkpoint;
use metrale_scheduler::PlannerLimits;

use super::exit::{Exit, Failure, OrExit};
use super::machine::Machine;
use super::model::Model;
use super::options::{kv, kv_layers};
use super::parser::Values;
use crate::assembly::{kv_of, library};

pub(super) fn show(values: &Values<'_>, machine: &Machine) -> Result<(), Failure> {
    let prepared = prepared(values, machine, &library().or_exit(Exit::Failed)?)?;
    machine.console.print(&prepared.instance.show())?;
    Ok(())
}

pub(super) fn plan(values: &Values<'_>, machine: &Machine) -> Result<(), Failure> {
    let library = library().or_exit(Exit::Failed)?;
    let plan = planned(values, machine, &library)?;
    let rows = values.count("rows").unwrap_or(1);
    let sequences = rows.min(u64::from(plan.limits.slots));
    let workload = Workload {
        rows,
        logits_rows: sequences,
        sequences,
        context: values.count("context").unwrap_or(1024),
    };
    machine.console.print(&plan.show(&workload))?;
    let devices = library.devices().iter();
    let devices = names(devices.filter(|(_, d)| d.class == plan.class));
    if plan.device.is_none() && !devices.is_empty() {
        let what = format!("for times, name a device of the class with --device: {devices}");
        machine.console.note(&what);
    }
    Ok(())
}

pub(super) fn memory(values: &Values<'_>, machine: &Machine) -> Result<(), Failure> {
    let library = library().or_exit(Exit::Failed)?;
    let plan = planned(values, machine, &library)?;
    machine.console.print(&plan.memory_text())?;
    Ok(())
}

/// The checkpoint of a command line, opened and checked.
pub(super) fn prepared(
    values: &Values<'_>,
    machine: &Machine,
    library: &CircuitLibrary,
) -> Result<Prepared, Failure> {
    let name = values.text("CHECKPOINT").unwrap_or_default();
    let located = Model::parse(Some(name))?.local(machine)?.ok_or_else(|| {
        Failure::text(
            Exit::NotFound,
            format!("{name} is not on this machine; fetch it with: met pull {name}"),
        )
    })?;
    let checkpoint = Checkpoint::open(&located.path).or_exit(Exit::Checkpoint)?;
    Prepared::new(library, checkpoint, &values.texts("accept-key")).or_exit(Exit::Checkpoint)
}

fn planned(
    values: &Values<'_>,
    machine: &Machine,
    library: &CircuitLibrary,
) -> Result<Plan, Failure> {
    let mut prepared = prepared(values, machine, library)?;
    if values.text("quantization") == Some("fp8") {
        prepared.quantize_fp8().or_exit(Exit::Checkpoint)?;
    }
    let (class, device) = hardware(values, library)?;
    let limits = limits(values, prepared.instance.context());
    let all = kv(values).unwrap_or_else(|| kv_of(&prepared));
    let kv = kv_layers(values)?.formats(all, &prepared.instance);
    let kv = kv.or_exit(Exit::Usage)?;
    // As many blocks as every sequence at full length takes.
    let pools = KvPools::divide(&prepared.instance, &kv, &limits, None);
    let options = PlanOptions {
        class,
        device,
        kv,
        kv_blocks: pools.blocks,
        windows: pools.windows,
        snapshots: 0,
        limits,
        fuse: !values.has("unfused"),
    };
    prepared.plan(library, &options).or_exit(Exit::Checkpoint)
}

/// The class to plan for and the device of the roofline. `--hardware` may name a device too, or begin one's name (`h200`).
/// `None` is what stands for the class, if anything does.
fn hardware(
    values: &Values<'_>,
    library: &CircuitLibrary,
) -> Result<(String, Option<String>), Failure> {
    let wanted = values.text("hardware").unwrap_or("cpu");
    let stated = values.text("device").map(str::to_owned);
    let devices = library.devices().iter();
    if library.classes().any(|c| c == wanted) {
        let mut of_class = devices.filter(|(_, d)| d.class == wanted);
        let only = match (of_class.next(), of_class.next()) {
            (Some((name, _)), None) => Some(name.clone()),
            _ => None,
        };
        return Ok((wanted.to_owned(), stated.or(only)));
    }
    let named = |name: &str| {
        name == wanted
            || name
                .strip_prefix(wanted)
                .is_some_and(|r| r.starts_with('-'))
    };
    if let Some((name, device)) = devices.into_iter().find(|(name, _)| named(name)) {
        return Ok((device.class.clone(), stated.or_else(|| Some(name.clone()))));
    }
    let known: Vec<&str> = library.classes().collect();
    Err(Failure::text(
        Exit::Usage,
        format!(
            "no hardware class or device `{wanted}`; known classes are {}, and devices {}",
            known.join(", "),
            names(library.devices().iter())
        ),
    ))
}

/// Names of devices, as a list.
fn names<'a>(devices: impl Iterator<Item = (&'a String, &'a Device)>) -> String {
    let names: Vec<&str> = devices.map(|(name, _)| name.as_str()).collect();
    names.join(", ")
}

fn limits(values: &Values<'_>, context: u64) -> StepLimits {
    let default = PlannerLimits::default();
    let slots = values.count("max-num-seqs").unwrap_or(default.max_num_seqs);
    let rows = values
        .count::<u32>("max-prefill-tokens")
        .unwrap_or(default.max_prefill_tokens)
        .saturating_add(slots);
    let wanted = values
        .count::<u64>("rows")
        .and_then(|r| u32::try_from(r).ok())
        .unwrap_or(1);
    let context = u32::try_from(context).unwrap_or(u32::MAX);
    let tokens = values.count("max-seq-len").unwrap_or(context);
    StepLimits {
        rows: rows.max(wanted),
        logits_rows: default.max_logits_rows.max(slots),
        slots,
        blocks_per_slot: tokens.div_ceil(KV_BLOCK),
        tables: 1,
        history: default.max_history.max(tokens),
        bias: default.max_bias,
    }
}
