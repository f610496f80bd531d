// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values of a command line to the settings that they stand for.

use std::time::Duration;

use metrale_core::Elem;
use metrale_gpu_runtime::FaultPlan;
use metrale_gpu_runtime::Isa;
use metrale_scheduler::Policy;

use super::exit::{Exit, Failure, OrExit};
use super::machine::Machine;
use super::parser::Values;
use crate::api::limits::Limits;
use crate::assembly::{
    FAULTS, KvLayers, LoadOptions, SamplingFlags, Wanted, Weights, fault_plan, kv_type,
};
use crate::digits::whole;
use crate::http::HttpConfig;

/// A core's number is below this, as in the system's own sets of cores.
const CORES: usize = 1024;

/// The KV cache's element type, if it is given. The parser has checked its name.
pub(super) fn kv(values: &Values<'_>) -> Option<Elem> {
    values.text("kv-cache-dtype").and_then(kv_type)
}

/// The types of some layers' KV cache.
pub(super) fn kv_layers(values: &Values<'_>) -> Result<KvLayers, Failure> {
    let text = values.text("kv-cache-dtype-layers");
    text.map_or(Ok(KvLayers::default()), |t| t.parse().or_exit(Exit::Usage))
}

/// The cores of `--cpu-affinity`, as `0,2-4`, in order.
pub(super) fn affinity(values: &Values<'_>) -> Result<Vec<usize>, Failure> {
    let Some(text) = values.text("cpu-affinity") else {
        return Ok(Vec::new());
    };
    let wrong = || {
        let what =
            format!("--cpu-affinity is {text}; it is a list of cores such as 0,2-4, below {CORES}");
        Failure::text(Exit::Usage, what)
    };
    let core = |text: &str| -> Result<usize, Failure> {
        let core = whole(text).filter(|core: &usize| *core < CORES);
        core.ok_or_else(wrong)
    };
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (core(first)?, core(last)?);
        if first > last {
            return Err(wrong());
        }
        cores.extend(first..=last);
    }
    Ok(cores)
}

/// `METRALE_FAULT`, if it is set.
fn fault(machine: &Machine) -> Result<FaultPlan, Failure> {
    let Some(text) = machine.levers.fault() else {
        return Ok(FaultPlan::default());
    };
    fault_plan(text).ok_or_else(|| {
        let what = format!("METRALE_FAULT is {text}; it can be {FAULTS}");
        Failure::text(Exit::Usage, what)
    })
}

/// `METRALE_CPU_ISA`, if it is set. The registry has checked its value.
pub(super) fn isa(machine: &Machine) -> Result<Option<Isa>, Failure> {
    match machine.levers.cpu_isa() {
        None => Ok(None),
        Some(name) => Isa::by_name(name).map(Some).ok_or_else(|| {
            Failure::text(
                Exit::Machine,
                format!("METRALE_CPU_ISA is {name}, which this processor lacks; unset it"),
            )
        }),
    }
}

/// The flags of the groups `Weights`, `Device`, `Engine` and `Sampling defaults`; the path is to be set.
pub(super) fn load(values: &Values<'_>, machine: &Machine) -> Result<LoadOptions, Failure> {
    Ok(LoadOptions {
        sampling: SamplingFlags {
            temperature: values.number("temperature"),
            top_p: values.number("top-p"),
            top_k: values.number("top-k").map(|k| k.max(0.0) as u32),
            min_p: values.number("min-p"),
            repetition_penalty: values.number("repetition-penalty"),
            max_tokens: values.count("max-tokens"),
        },
        ..engine(values, machine)?
    })
}

/// The flags that the sizes of a plan follow from.
pub(super) fn sizes(values: &Values<'_>) -> Result<LoadOptions, Failure> {
    Ok(LoadOptions {
        kv: kv(values),
        kv_layers: kv_layers(values)?,
        kv_bytes: values.count("kv-cache-bytes"),
        max_seq_len: values.count("max-seq-len"),
        max_num_seqs: values.count("max-num-seqs"),
        max_prefill_tokens: values.count("max-prefill-tokens"),
        ..LoadOptions::new("")
    })
}

/// The same as [`load`] without the group `Sampling defaults`.
pub(super) fn engine(values: &Values<'_>, machine: &Machine) -> Result<LoadOptions, Failure> {
    let defaults = sizes(values)?;
    Ok(LoadOptions {
        device: values.device("device").unwrap_or(Wanted::Auto),
        threads: values.count("threads").unwrap_or(defaults.threads),
        affinity: affinity(values)?,
        isa: isa(machine)?,
        queue_len: values.count("queue-len").unwrap_or(defaults.queue_len),
        policy: values
            .text("policy")
            .and_then(Policy::named)
            .unwrap_or_default(),
        ngram: speculate(values)?,
        kv_host_bytes: values
            .number("kv-host-gb")
            .map_or(0, |gb| (gb * 1e9) as u64),
        step_timeout: values
            .count("step-timeout")
            .map_or(defaults.step_timeout, Duration::from_secs),
        fault: fault(machine)?,
        weights: match values.text("load-format") {
            Some("dummy") => Weights::Made(0),
            _ => Weights::Checkpoint,
        },
        quantize_fp8: values.text("quantization") == Some("fp8"),
        accept_keys: values.texts("accept-key"),
        ..defaults
    })
}

/// Tokens that are guessed.
fn speculate(values: &Values<'_>) -> Result<u32, Failure> {
    let how = values.text("speculate").unwrap_or("off");
    let most = how.strip_prefix("ngram:").and_then(whole);
    match (how, most) {
        ("off", _) => Ok(0),
        (_, Some(most @ 1..=16)) => Ok(most),
        _ => {
            let what = format!("--speculate {how}: give off, or ngram:K with K from 1 to 16");
            Err(Failure::text(Exit::Usage, what))
        }
    }
}

/// The flags of the group `Network`, without the address.
pub(super) fn http(values: &Values<'_>, name: &str) -> Result<HttpConfig, Failure> {
    let mut served_names = values.texts("served-model-name");
    if served_names.is_empty() {
        served_names.push(name.to_owned());
    }
    let mut limits = Limits::default();
    if let Some(queue) = values.count::<usize>("queue-len") {
        // All answers of a request wait together: more than the queue holds would be told to try again for ever.
        limits.choices = limits.choices.min(queue);
        limits.n = limits.n.min(u32::try_from(queue).unwrap_or(u32::MAX));
    }
    Ok(HttpConfig {
        limits,
        served_names,
        api_keys: api_keys(values)?,
        allowed_hosts: values.texts("allowed-host"),
        allowed_origins: values.texts("allowed-origin"),
        ..HttpConfig::default()
    })
}

fn api_keys(values: &Values<'_>) -> Result<Vec<String>, Failure> {
    let usage = |what: String| Failure::text(Exit::Usage, what);
    let mut keys = values.texts("api-key");
    if let Some(file) = values.path("api-key-file") {
        let shown = file.display();
        let text = std::fs::read_to_string(&file)
            .map_err(|e| usage(format!("--api-key-file {shown}: {e}")))?;
        let before = keys.len();
        keys.extend(
            text.lines()
                .map(str::trim)
                .filter(|l| !l.is_empty())
                .map(str::to_owned),
        );
        if keys.len() == before {
            // An empty file must not open the server.
            return Err(usage(format!("--api-key-file {shown} holds no key")));
        }
    }
    if keys.iter().any(|k| k.trim().is_empty()) {
        return Err(usage("--api-key: an empty key".into()));
    }
    Ok(keys)
}
