// SPDX-License-Identifier: MIT OR Apache-2.0
//! `met circuit`: how a checkpoint is understood and planned, as text.

use metrale_circuit::{CircuitLibrary, Device, Plan, Workload};
use metrale_model_engine::Prepared;
use metrale_model_weights::Checkpoint;

use super::exit::{Exit, Failure, OrExit};
use super::machine::Machine;
use super::model::Model;
use super::options::sizes;
use super::parser::Values;
use super::serve::blamed;
use crate::assembly::{Memory, Target, library, plan_on};

pub(super) fn show(values: &Values<'_>, machine: &Machine) -> Result<(), Failure> {
    let prepared = prepared(values, machine, &library().or_exit(Exit::Failed)?)?;
    machine.console.print(&prepared.instance.show())?;
    Ok(())
}

pub(super) fn plan(values: &Values<'_>, machine: &Machine) -> Result<(), Failure> {
    let library = library().or_exit(Exit::Failed)?;
    let rows = values.count("rows").unwrap_or(1);
    let device = values.text("device");
    let plan = planned(values, machine, &library, device, rows)?;
    let rows = u64::from(rows);
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
    let plan = planned(values, machine, &library, None, 1)?;
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
    device: Option<&str>,
    rows: u32,
) -> Result<Plan, Failure> {
    let mut prepared = prepared(values, machine, library)?;
    if values.text("quantization") == Some("fp8") {
        prepared.quantize_fp8().or_exit(Exit::Checkpoint)?;
    }
    let (class, device) = hardware(values, library, device)?;
    let stated = device.as_ref().and_then(|d| library.devices().get(d));
    let memory = stated.and_then(|d| d.memory_bytes);
    let target = Target {
        class,
        device,
        memory: memory.map_or(Memory::Endless, Memory::Device),
        rows,
        fuse: !values.has("unfused"),
    };
    let (plan, _) = plan_on(library, &prepared, &sizes(values)?, target).map_err(blamed)?;
    Ok(plan)
}

/// The class to plan for and the device of the roofline. Both flags may begin a device's name (`h200`).
/// `None` is what stands for the class, if anything does.
fn hardware(
    values: &Values<'_>,
    library: &CircuitLibrary,
    device: Option<&str>,
) -> Result<(String, Option<String>), Failure> {
    let begun = |text: &str| {
        let is = |name: &str| {
            let rest = name.strip_prefix(text);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        let named = library.devices().iter().find(|(name, _)| *name == text);
        named.or_else(|| library.devices().iter().find(|(name, _)| is(name)))
    };
    let stated = match device {
        None => None,
        Some(text) => Some(begun(text).ok_or_else(|| {
            let known = names(library.devices().iter());
            Failure::text(
                Exit::Usage,
                format!("--device {text}: kernels/DEVICES.toml has no such device; known: {known}"),
            )
        })?),
    };
    let of_device = stated.map(|(_, d)| d.class.as_str());
    let wanted = values.text("hardware").or(of_device).unwrap_or("cpu");
    let stated = stated.map(|(name, _)| name.clone());
    let devices = library.devices().iter();
    if library.classes().any(|c| c == wanted) {
        let mut of_class = devices.filter(|(_, d)| d.class == wanted);
        let only = match (of_class.next(), of_class.next()) {
            (Some((name, _)), None) => Some(name.clone()),
            _ => None,
        };
        return Ok((wanted.to_owned(), stated.or(only)));
    }
    if let Some((name, device)) = begun(wanted) {
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
