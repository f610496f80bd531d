// SPDX-License-Identifier: MIT OR Apache-2.0
//! `met show`: what a checkpoint is, from its headers.

use std::collections::BTreeMap;
use std::fmt::Write;

use indicatif::HumanBytes;
use metrale_config::{ConfigSource, GenerationDefaults};
use metrale_model_weights::Checkpoint;

use super::exit::{Exit, Failure, OrExit};
use super::machine::Machine;
use super::model::{Located, Model};
use super::parser::Values;
use crate::tokenizer::Tokenizer;

/// Lines of the chat template that are shown without `--template`.
const TEMPLATE_LINES: usize = 6;

pub(super) fn show(values: &Values<'_>, machine: &Machine) -> Result<(), Failure> {
    let model = Model::parse(values.text("MODEL"))?;
    let located = model.local(machine)?.ok_or_else(|| {
        let name = values.text("MODEL").unwrap_or_default();
        Failure::text(
            Exit::NotFound,
            format!("{name} is not on this machine; fetch it with: met pull {name}"),
        )
    })?;
    let checkpoint = Checkpoint::open(&located.path).or_exit(Exit::Checkpoint)?;
    let text = if values.has("template") {
        template(&checkpoint)?
    } else {
        describe(&located, &checkpoint)
    };
    machine.console.print(&text)?;
    Ok(())
}

fn template(checkpoint: &Checkpoint) -> Result<String, Failure> {
    let template = checkpoint.config.chat_template("default");
    let template = template
        .ok_or_else(|| Failure::text(Exit::Checkpoint, "the checkpoint has no chat template"))?;
    Ok(format!("{}\n", template.text.trim_end_matches('\n')))
}

// Writing to a string cannot fail.
macro_rules! put {
    ($out:expr, $($rest:tt)*) => {{ let _ = writeln!($out, $($rest)*); }};
}

fn describe(located: &Located, checkpoint: &Checkpoint) -> String {
    let config = &checkpoint.config;
    let mut out = String::new();
    put!(out, "name          {}", located.name);
    put!(
        out,
        "path          {} ({})",
        checkpoint.path.display(),
        located.origin
    );
    let format = match config.source {
        ConfigSource::Hf => "Hugging Face folder",
        ConfigSource::Gguf => "GGUF",
    };
    put!(out, "format        {format}");
    put!(out, "architecture  {}", config.architecture);
    let stated = checkpoint
        .gguf
        .as_ref()
        .and_then(|h| h.get("general.license")?.as_str());
    let licence = located
        .licence
        .as_deref()
        .or(stated)
        .unwrap_or("not stated in the checkpoint");
    put!(out, "licence       {licence}");
    put!(
        out,
        "context       {}",
        config
            .context_length
            .map_or("not stated".into(), |n| format!("{n} tokens"))
    );
    put!(out, "sampling      {}", generation(&config.generation));
    put!(out, "tokenizer     {}", tokenizer(checkpoint));
    for template in &config.chat_templates {
        put!(
            out,
            "template      {} ({}, {} bytes)",
            template.name,
            template.origin,
            template.text.len()
        );
        let lines: Vec<&str> = template.text.lines().collect();
        for line in lines.iter().take(TEMPLATE_LINES) {
            put!(out, "  | {}", line.chars().take(100).collect::<String>());
        }
        if lines.len() > TEMPLATE_LINES {
            put!(
                out,
                "  | ... {} more lines: met show --template",
                lines.len() - TEMPLATE_LINES
            );
        }
    }
    if config.chat_templates.is_empty() {
        put!(
            out,
            "template      none: chat requests are refused, completions work"
        );
    }
    tensors(&mut out, checkpoint);
    out
}

fn generation(g: &GenerationDefaults) -> String {
    let number = |name: &str, value: Option<f64>| value.map(|v| format!("{name} {v}"));
    let all = [
        number("temperature", g.default_temperature()),
        number("top_p", g.top_p),
        g.top_k.map(|k| format!("top_k {k}")),
        number("min_p", g.min_p),
        number("repetition_penalty", g.repetition_penalty),
    ];
    let stated: Vec<String> = all.into_iter().flatten().collect();
    if stated.is_empty() {
        "the checkpoint states nothing".to_owned()
    } else {
        stated.join(", ")
    }
}

fn tokenizer(checkpoint: &Checkpoint) -> String {
    match Tokenizer::from_checkpoint(checkpoint) {
        Err(e) => format!("unusable: {e}"),
        Ok(t) => {
            let ends: Vec<String> = t
                .ends()
                .iter()
                .map(|id| format!("{id} {}", t.token_text(*id).unwrap_or("?")))
                .collect();
            format!(
                "{} tokens, {} of them control; ends at {}",
                t.vocab_size(),
                t.control_texts().count(),
                ends.join(", ")
            )
        }
    }
}

fn tensors(out: &mut String, checkpoint: &Checkpoint) {
    let Some(store) = &checkpoint.store else {
        put!(out, "tensors       none: a configuration only");
        return;
    };
    let mut by_type: BTreeMap<String, (usize, u64, u64)> = BTreeMap::new();
    for tensor in store.tensors() {
        let entry = by_type.entry(tensor.elem.to_string()).or_default();
        *entry = (
            entry.0 + 1,
            entry.1 + tensor.elems(),
            entry.2 + tensor.bytes,
        );
    }
    let elems: u64 = by_type.values().map(|(_, e, _)| e).sum();
    put!(
        out,
        "tensors       {} in {} file(s), {:.1} M values, {}",
        store.tensors().len(),
        store.files().len(),
        elems as f64 / 1e6,
        HumanBytes(store.total_bytes())
    );
    for (name, (count, elems, bytes)) in by_type {
        put!(
            out,
            "  {name:8} {count:5} tensors {:10.1} M values  {}",
            elems as f64 / 1e6,
            HumanBytes(bytes)
        );
    }
}
