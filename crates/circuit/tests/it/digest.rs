// SPDX-License-Identifier: MIT OR Apache-2.0
//! The digest: what changes bits changes it, what does not leaves it.

use crate::common::{KV_F32, LIMITS, TINY_LLAMA, flat, hf, library, request, scalar};
use metrale_circuit::{CircuitLibrary, Digest, PlanRequest};
use metrale_core::{Elem, StepLimits};

fn digest_of(config: &str, change: impl FnOnce(&mut PlanRequest<'_>)) -> Digest {
    let instance = hf(&flat(config)).unwrap();
    let formats = instance.uniform_formats(Elem::BF16);
    let mut request = request(&formats);
    change(&mut request);
    library().plan(&instance, &request).unwrap().digest
}

#[test]
fn schedule_and_capacity_leave_it() {
    let base = digest_of(TINY_LLAMA, |_| {});
    let limits = StepLimits {
        rows: 512,
        logits_rows: 64,
        slots: 3,
        blocks_per_slot: 7,
        tables: 1,
        history: 1,
        bias: 1,
        mask_words: 0,
    };
    assert_eq!(digest_of(TINY_LLAMA, |r| r.limits = limits), base);
    assert_eq!(digest_of(TINY_LLAMA, |r| r.kv_blocks = 9), base);
    assert_eq!(
        digest_of(TINY_LLAMA, |r| r.device = Some("cpu-server")),
        base
    );
    assert_eq!(digest_of(TINY_LLAMA, |r| r.fuse = false), base);
    assert_eq!(LIMITS.rows, 64);
}

#[test]
fn formats_checkpoint_and_params_change_it() {
    let base = digest_of(TINY_LLAMA, |_| {});
    assert_ne!(digest_of(TINY_LLAMA, |r| r.kv = &KV_F32), base);
    assert_ne!(digest_of(TINY_LLAMA, |r| r.checkpoint = "other"), base);
    for (from, to) in [
        ("rms_norm_eps = 0.000001", "rms_norm_eps = 0.00001"),
        ("rope_theta = 10000.0", "rope_theta = 10001.0"),
        ("num_key_value_heads = 2", "num_key_value_heads = 4"),
        ("attention_bias = false", "attention_bias = true"),
    ] {
        assert_ne!(
            digest_of(&TINY_LLAMA.replace(from, to), |_| {}),
            base,
            "{to}"
        );
    }
    let instance = hf(&flat(TINY_LLAMA)).unwrap();
    let formats = instance.uniform_formats(Elem::F16);
    assert_ne!(
        library()
            .plan(&instance, &request(&formats))
            .unwrap()
            .digest,
        base
    );
}

#[test]
fn a_word_of_a_spec_changes_it() {
    let files = metrale_kernel_tree::files().map(|(path, text)| match path {
        "circuits/FAMILIES.toml" => (
            path,
            text.replace("absolute multiples of 256", "absolute multiples of 512"),
        ),
        _ => (path, text.to_owned()),
    });
    let other = CircuitLibrary::new(files).unwrap();
    let instance = hf(&flat(TINY_LLAMA)).unwrap();
    let formats = instance.uniform_formats(Elem::BF16);
    let plan = other.plan(&instance, &request(&formats)).unwrap();
    assert_ne!(plan.digest, digest_of(TINY_LLAMA, |_| {}));
    assert_eq!(plan.digest.short().len(), 16);
}

#[test]
fn the_order_and_ignored_keys_of_the_file_leave_it() {
    let base = digest_of(TINY_LLAMA, |_| {});
    let mut config = flat(TINY_LLAMA);
    config.insert("initializer_range".into(), scalar("0.7"));
    config.remove("use_cache");
    let instance = hf(&config).unwrap();
    let formats = instance.uniform_formats(Elem::BF16);
    assert_eq!(
        library()
            .plan(&instance, &request(&formats))
            .unwrap()
            .digest,
        base
    );
}
