// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes that follow from the options, the checkpoint and the machine.

use std::path::Path;
use std::time::UNIX_EPOCH;

use metrale_circuit::{KvFormats, Plan};
use metrale_config::ConfigSource;
use metrale_core::{Elem, KV_BLOCK, StepLimits};
use metrale_model_engine::engine::step_limits;
use metrale_model_engine::{KvPools, Prepared};
use metrale_scheduler::{LimitsError, PlannerLimits};
use serde_json::json;

use super::{Device, KvLayersError, LoadOptions, OpenDevice, Wanted, available_memory};
use crate::engine_face::Setting;

/// Memory that the KV pool takes at most when no size is given.
pub(super) struct Room {
    /// `None` where the system does not say.
    bytes: Option<u64>,
    /// What it is, for an error.
    what: &'static str,
}

impl Room {
    /// Beside others on this machine.
    pub(super) fn of_machine() -> Room {
        Room {
            bytes: available_memory().map(|free| free / 4),
            what: "a quarter of the free memory",
        }
    }

    /// As much as can be of use.
    pub(super) fn endless() -> Room {
        Room {
            bytes: Some(u64::MAX),
            what: "all that can be of use",
        }
    }

    /// On a device with `free` bytes, beside `rest` of weights and activations. A tenth is left to programs and others.
    pub(super) fn of_device(free: u64, rest: u64) -> Room {
        Room {
            bytes: Some((free / 10 * 9).saturating_sub(rest)),
            what: "nine tenths of the device's free memory, less weights and activations",
        }
    }
}

/// Options that do not go together with the checkpoint or the machine.
#[derive(Debug, thiserror::Error)]
pub enum SizeError {
    /// A context beyond the checkpoint's.
    #[error(
        "--max-seq-len {wanted} is more than the {context} tokens that the checkpoint was trained for; give at most {context}"
    )]
    Context {
        /// Tokens asked for.
        wanted: u32,
        /// Tokens of the checkpoint.
        context: u64,
    },
    /// Limits that contradict each other.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// Formats of layers that the model does not have.
    #[error(transparent)]
    KvLayers(#[from] KvLayersError),
    /// No size is given, and the system does not say what it has.
    #[error("the system does not say how much memory is free: give --kv-cache-bytes")]
    UnknownMemory,
    /// A given pool that holds nothing.
    #[error(
        "--kv-cache-bytes {room} holds {blocks} blocks of {block} bytes; give at least {least}"
    )]
    SmallPool {
        /// Bytes of the pool.
        room: u64,
        /// Blocks that it holds.
        blocks: u64,
        /// Bytes of one.
        block: u64,
        /// Bytes of the smallest pool.
        least: u64,
    },
    /// Nothing is given, and too little is free.
    #[error(
        "{what}, {room} bytes, is too little for the smallest KV pool of {least} bytes; free some, or give --kv-cache-bytes"
    )]
    LittleMemory {
        /// What the pool would be made of.
        what: &'static str,
        /// Bytes of the pool.
        room: u64,
        /// Bytes of the smallest pool.
        least: u64,
    },
    /// More than the machine has free.
    #[error(
        "the plan takes {total} bytes ({weights} in the weights arena, {pool} in the kv arena) and {free} are free: {remedy}"
    )]
    Plan {
        /// Bytes of the whole plan.
        total: u64,
        /// Bytes of weights.
        weights: u64,
        /// Bytes of the KV pool.
        pool: u64,
        /// Bytes that are free.
        free: u64,
        /// What would fit.
        remedy: String,
    },
    /// The plan fits, host memory for spilled KV does not beside it.
    #[error(
        "--kv-host-gb wants {host} bytes beside the {total} of the plan, and {free} are free: give --kv-host-gb {most:.3} at most, or free memory"
    )]
    Host {
        /// Bytes of host memory asked for.
        host: u64,
        /// Bytes of the whole plan.
        total: u64,
        /// Bytes that are free.
        free: u64,
        /// What would fit, in 10^9 bytes.
        most: f64,
    },
}

/// Blocks that a pool must hold at least.
pub(super) const LEAST_BLOCKS: u64 = 2;

pub(super) struct Sizes {
    pub(super) planner: PlannerLimits,
    pub(super) step: StepLimits,
    pub(super) kv: KvFormats,
}

/// The planner's limits where no flag gives others. A GPU reads its weights once for many rows, and takes longer for each step
/// that it is asked for than for a row more.
pub(crate) fn default_limits(class: &str) -> PlannerLimits {
    match class {
        "cpu" => PlannerLimits::default(),
        _ => PlannerLimits {
            max_num_seqs: 256,
            max_prefill_tokens: 2048,
            ..PlannerLimits::default()
        },
    }
}

pub(super) fn choose(
    options: &LoadOptions,
    prepared: &Prepared,
    class: &str,
) -> Result<Sizes, SizeError> {
    let defaults = default_limits(class);
    let context = prepared.instance.context();
    let max_seq_len = match options.max_seq_len {
        Some(wanted) if u64::from(wanted) > context => {
            return Err(SizeError::Context { wanted, context });
        }
        Some(wanted) => wanted,
        None => u32::try_from(context).unwrap_or(u32::MAX),
    };
    let seqs = options.max_num_seqs.unwrap_or(defaults.max_num_seqs);
    let max_prefill_tokens = options
        .max_prefill_tokens
        .unwrap_or(defaults.max_prefill_tokens);
    let planner = PlannerLimits {
        max_num_seqs: seqs,
        max_prefill_tokens,
        max_rows: max_prefill_tokens.saturating_add(seqs),
        max_logits_rows: seqs.max(defaults.max_logits_rows),
        max_seq_len,
        max_history: defaults.max_history.max(max_seq_len),
        max_drafts: options.ngram,
        queue_len: options.queue_len,
        policy: options.policy,
        ..defaults
    };
    planner.validate()?;
    let step = step_limits(&planner);
    let all = options.kv.unwrap_or_else(|| kv_of(prepared));
    let kv = options.kv_layers.formats(all, &prepared.instance)?;
    Ok(Sizes { planner, step, kv })
}

/// The checkpoint's own float type; f16 for a GGUF, whose weights have none.
fn kv_of(prepared: &Prepared) -> Elem {
    let config = &prepared.checkpoint.config;
    match (config.source, config.dtype) {
        (ConfigSource::Hf, Some(dtype @ (Elem::F32 | Elem::F16 | Elem::BF16))) => dtype,
        _ => Elem::F16,
    }
}

impl Sizes {
    /// Pools as large as can be of use: for the size of all that is no pool.
    pub(super) fn most_pools(&self, prepared: &Prepared) -> KvPools {
        KvPools::divide(&prepared.instance, &self.kv, &self.step, None)
    }

    /// The KV pools: what every sequence at full length needs, at most what the given size or `room` holds.
    pub(super) fn kv_pools(
        &self,
        options: &LoadOptions,
        prepared: &Prepared,
        room: Room,
    ) -> Result<KvPools, SizeError> {
        let (given, what) = (options.kv_bytes, room.what);
        let room = given.or(room.bytes).ok_or(SizeError::UnknownMemory)?;
        let pools = KvPools::divide(&prepared.instance, &self.kv, &self.step, Some(room));
        let (blocks, block) = (pools.blocks, pools.block_bytes);
        let least = LEAST_BLOCKS.saturating_mul(block);
        if blocks >= LEAST_BLOCKS {
            return Ok(pools);
        }
        Err(match given {
            None => SizeError::LittleMemory { what, room, least },
            Some(_) => SizeError::SmallPool {
                room,
                blocks,
                block,
                least,
            },
        })
    }
}

/// Seconds since 1970 at which the checkpoint was last written; 0 where the system does not say.
pub(super) fn modified(path: &Path) -> u64 {
    let time = std::fs::metadata(path).and_then(|m| m.modified()).ok();
    time.and_then(|t| t.duration_since(UNIX_EPOCH).ok())
        .map_or(0, |d| d.as_secs())
}

/// What /serve-config shows beside the sampling defaults.
pub(super) fn settings(
    options: &LoadOptions,
    plan: &Plan,
    limits: &PlannerLimits,
    on: &OpenDevice,
) -> Vec<Setting> {
    let flag = |given: bool, otherwise: &str| if given { "flag" } else { otherwise }.to_owned();
    let setting = |name: &str, value, source| Setting {
        name: name.into(),
        value,
        source,
    };
    let defaults = LoadOptions::new("");
    let mut settings = vec![
        setting(
            "device",
            json!(on.backend.device().name),
            flag(options.device != Wanted::Auto, "measured"),
        ),
        setting("hardware-class", json!(plan.class), "measured".into()),
        setting(
            "kv-cache-dtype",
            json!(plan.kv.plain()),
            flag(options.kv.is_some(), "checkpoint"),
        ),
        setting(
            "kv-cache-dtype-layers",
            json!(plan.kv.others()),
            flag(!options.kv_layers.is_empty(), "default"),
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
            flag(options.max_num_seqs.is_some(), "default"),
        ),
        setting(
            "max-prefill-tokens",
            json!(limits.max_prefill_tokens),
            flag(options.max_prefill_tokens.is_some(), "default"),
        ),
        setting(
            "queue-len",
            json!(limits.queue_len),
            flag(limits.queue_len != defaults.queue_len, "default"),
        ),
        setting(
            "policy",
            json!(limits.policy.name()),
            flag(limits.policy != defaults.policy, "default"),
        ),
        setting(
            "speculate",
            match options.ngram {
                0 => json!("off"),
                most => json!(format!("ngram:{most}")),
            },
            flag(options.ngram > 0, "default"),
        ),
        setting(
            "kv-host-gb",
            json!(options.kv_host_bytes as f64 / 1e9),
            flag(options.kv_host_bytes > 0, "default"),
        ),
    ];
    if on.device == Device::Cpu {
        let host = options.host();
        let given = host.threads != 0 || !host.affinity.is_empty();
        settings.push(setting(
            "threads",
            json!(host.team()),
            flag(given, "measured"),
        ));
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_keeps_a_tenth() {
        let room = |free, rest| Room::of_device(free, rest).bytes;
        assert_eq!(room(1000, 300), Some(600));
        assert_eq!(room(1000, 901), Some(0));
    }
}
