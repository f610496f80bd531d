// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes that follow from the options, the checkpoint and the machine.

use std::path::Path;
use std::time::UNIX_EPOCH;

use anyhow::{Result, bail};
use metrale_circuit::Plan;
use metrale_config::ConfigSource;
use metrale_core::{Elem, KV_BLOCK, StepLimits};
use metrale_model_engine::Prepared;
use metrale_scheduler::PlannerLimits;
use serde_json::json;

use super::{LoadOptions, available_memory};
use crate::engine_face::Setting;

/// Share of the free memory that the KV pool takes at most when no size is given.
const KV_SHARE: u64 = 4;

pub(super) struct Sizes {
    pub(super) planner: PlannerLimits,
    pub(super) step: StepLimits,
    pub(super) kv: Elem,
    pub(super) kv_blocks: u64,
}

pub(super) fn choose(options: &LoadOptions, prepared: &Prepared) -> Result<Sizes> {
    let context = prepared.instance.context();
    let max_seq_len = match options.max_seq_len {
        Some(wanted) if u64::from(wanted) > context => {
            bail!(
                "--max-seq-len {wanted} is more than the {context} tokens that the checkpoint was trained for"
            )
        }
        Some(wanted) => wanted,
        None => u32::try_from(context).unwrap_or(u32::MAX),
    };
    let seqs = options.max_num_seqs;
    let planner = PlannerLimits {
        max_num_seqs: seqs,
        max_prefill_tokens: options.max_prefill_tokens,
        max_rows: options.max_prefill_tokens.saturating_add(seqs),
        max_logits_rows: seqs.max(PlannerLimits::default().max_logits_rows),
        max_seq_len,
        max_history: PlannerLimits::default().max_history.max(max_seq_len),
        queue_len: options.queue_len,
        ..PlannerLimits::default()
    };
    planner.validate()?;
    let step = StepLimits {
        rows: planner.max_rows,
        logits_rows: planner.max_logits_rows,
        slots: seqs,
        blocks_per_slot: max_seq_len.div_ceil(KV_BLOCK),
        history: planner.max_history,
        bias: planner.max_bias,
    };
    let kv = options.kv.unwrap_or_else(|| kv_of(prepared));
    let kv_blocks = blocks(options, prepared, kv, &step)?;
    Ok(Sizes {
        planner,
        step,
        kv,
        kv_blocks,
    })
}

/// The checkpoint's own float type; f16 for a GGUF, whose weights have none.
fn kv_of(prepared: &Prepared) -> Elem {
    let config = &prepared.checkpoint.config;
    match (config.source, config.dtype) {
        (ConfigSource::Hf, Some(dtype @ (Elem::F32 | Elem::F16 | Elem::BF16))) => dtype,
        _ => Elem::F16,
    }
}

fn blocks(options: &LoadOptions, prepared: &Prepared, kv: Elem, step: &StepLimits) -> Result<u64> {
    let block = prepared.instance.kv_bytes_per_block(kv);
    let full = u64::from(step.slots) * u64::from(step.blocks_per_slot);
    let room = match (options.kv_bytes, available_memory()) {
        (Some(bytes), _) => bytes,
        (None, Some(free)) => free / KV_SHARE,
        (None, None) => {
            bail!("the system does not say how much memory is free: give --kv-cache-bytes")
        }
    };
    let blocks = full.min(room / block);
    if blocks < 2 {
        bail!(
            "a KV pool of {room} bytes holds {blocks} blocks of {block} bytes, at least 2 are needed"
        );
    }
    Ok(blocks)
}

/// Seconds since 1970 at which the checkpoint was last written; 0 where the system does not say.
pub(super) fn modified(path: &Path) -> u64 {
    let time = std::fs::metadata(path).and_then(|m| m.modified()).ok();
    time.and_then(|t| t.duration_since(UNIX_EPOCH).ok())
        .map_or(0, |d| d.as_secs())
}

/// What /serve-config shows beside the sampling defaults.
pub(super) fn settings(options: &LoadOptions, plan: &Plan, limits: &PlannerLimits) -> Vec<Setting> {
    let flag = |given: bool, otherwise: &str| if given { "flag" } else { otherwise }.to_owned();
    let setting = |name: &str, value, source| Setting {
        name: name.into(),
        value,
        source,
    };
    let defaults = LoadOptions::new("");
    vec![
        setting("hardware-class", json!(plan.class), "measured".into()),
        setting(
            "kv-cache-dtype",
            json!(plan.kv.name()),
            flag(options.kv.is_some(), "checkpoint"),
        ),
        setting(
            "kv-cache-tokens",
            json!(plan.kv_blocks * u64::from(KV_BLOCK)),
            flag(options.kv_bytes.is_some(), "measured"),
        ),
        setting(
            "max-seq-len",
            json!(limits.max_seq_len),
            flag(options.max_seq_len.is_some(), "checkpoint"),
        ),
        setting(
            "max-num-seqs",
            json!(limits.max_num_seqs),
            flag(limits.max_num_seqs != defaults.max_num_seqs, "default"),
        ),
        setting(
            "max-prefill-tokens",
            json!(limits.max_prefill_tokens),
            flag(
                limits.max_prefill_tokens != defaults.max_prefill_tokens,
                "default",
            ),
        ),
        setting(
            "queue-len",
            json!(limits.queue_len),
            flag(limits.queue_len != defaults.queue_len, "default"),
        ),
    ]
}
