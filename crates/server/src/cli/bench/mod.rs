// SPDX-License-Identifier: MIT OR Apache-2.0
//! `met bench`: what a model does on this machine, and what share of it that is.

mod start;

pub(super) use start::start;

use metrale_bench::{Need, Options, Registry, list};
use metrale_telemetry::EnergyMeter;

use super::exit::{Exit, Failure, OrExit};
use super::log;
use super::machine::Machine;
use super::model::Model;
use super::options;
use super::parser::Values;
use super::serve;
use crate::assembly::{Device, Measured};
use crate::hub::Progress;

pub(super) fn bench(values: &Values<'_>, machine: &Machine) -> Result<(), Failure> {
    log::start(values, machine, "warn")?;
    let wanted = wanted(values)?;
    let names = values.texts("only");
    let registry = Registry::builtin();
    let selected = registry
        .select(&names)
        .map_err(|what| Failure::text(Exit::Usage, what))?;
    let needs: Vec<Need> = selected.iter().flat_map(|p| p.needs(&wanted)).collect();
    let most = |of: fn(&Need) -> u32| needs.iter().map(of).max().unwrap_or(1);
    let mut load = options::engine(values, machine)?;
    load.max_num_seqs = load.max_num_seqs.or(Some(most(|n| n.sequences)));
    if load.max_seq_len.is_none() {
        load.max_seq_len = Some(most(|n| n.tokens).max(16));
    }
    load.stamps = values.has("idle-share");
    let on = load.open_device().map_err(|e| serve::blamed(e.into()))?;
    let located = Model::parse_for(values.text("MODEL"), load.weights)?
        .fetch(machine, values.has("accept-licence"))?;
    load.path = located.path;
    let opened = serve::open(load, on, machine)?;
    let meter = meter(opened.on.device, machine);
    let progress = |bytes| machine.console.advance(bytes);
    let measured = Measured::load(opened, &located.name, meter, progress);
    machine.console.end();
    let mut measured = measured.map_err(serve::blamed)?;
    let about = metrale_bench::Target::about(&measured);
    for need in needs {
        need.fit(about.context, about.kv_tokens)
            .or_exit(Exit::Usage)?;
    }
    let mut note = |what: &str| machine.console.note(&format!("measuring {what}"));
    let report = registry
        .run(&names, &mut measured, &wanted, &mut note)
        .or_exit(Exit::Failed)?;
    let json = values.text("format") == Some("json");
    let text = if json { report.json() } else { report.text() };
    machine.console.print(&text)?;
    Ok(())
}

/// The ladders of the command line.
fn wanted(values: &Values<'_>) -> Result<Options, Failure> {
    let default = Options::default();
    let rungs = |name: &str, otherwise: Vec<u32>| match values.text(name) {
        Some(text) => list(text).or_exit(Exit::Usage),
        None => Ok(otherwise),
    };
    Ok(Options {
        input: values.count("input").unwrap_or(default.input),
        output: values.count("output").unwrap_or(default.output),
        concurrency: rungs("concurrency", default.concurrency)?,
        prompts: rungs("prompts", default.prompts)?,
        repeats: values.count("repeats").unwrap_or(default.repeats),
        seed: values.count("seed").unwrap_or(default.seed),
    })
}

fn meter(device: Device, machine: &Machine) -> Result<EnergyMeter, String> {
    match device {
        Device::Cpu => Err("the energy of a processor is not measured".to_owned()),
        Device::Cuda(n) => EnergyMeter::open(n, machine.variable("CUDA_VISIBLE_DEVICES")),
    }
}
