// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tiny checkpoints against Transformers, along every schedule; and what the bound can see.
//!
//! The bound is 8 times the largest difference between the reference computed in f32 and in f64 (scripts/refs): it is
//! derived from the reference alone. The second half of this file shows that it is tight enough to matter: each kind of
//! tensor and each architecture key, changed, breaks it.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use metrale_core::Elem;
use metrale_model_engine::verify::{self, Reference, Report};
use metrale_model_engine::{PlanOptions, Prepared};
use metrale_model_weights::{Checkpoint, StoredTensor};
use support::{Result, Setup, TempCopy, fixture, on_gpu, served};

/// Fixtures whose arithmetic is f32 from end to end.
const EXACT: &[&str] = &[
    "llama",
    "llama3-rope",
    "llama-tied",
    "llama-bias",
    "llama-hd64",
    "llama-sharded",
    "qwen3",
    "qwen3-tied",
    "qwen3-wide",
    "llama-gguf",
    "llama-tied-gguf",
    "llama3-rope-gguf",
    "qwen3-gguf",
    "qwen2",
    "mistral",
    "phi3",
    "granite",
    "olmo2",
    "gemma2",
    "gemma3",
    "qwen3-moe",
    "qwen2-gguf",
    "phi3-gguf",
    "granite-gguf",
    "olmo2-gguf",
    "gemma2-gguf",
    "gemma3-gguf",
    "qwen3-moe-gguf",
    "mixtral-gguf",
    "deepseek-v3-gguf",
    "mamba2-gguf",
    "mixtral",
    "gpt-oss",
    "deepseek-v3",
    "qwen3-next",
    "qwen3-5",
    "mamba2",
    "nemotron-h",
    "qwen3-fp8-block",
    "llama-fp8-channel",
    "llama-fp8-tensor",
];

fn run(
    checkpoint: &Path,
    reference: &Reference,
    change: impl FnOnce(&mut Setup),
) -> Result<Report> {
    let limits = verify::limits(reference);
    let mut setup = Setup::new(limits, verify::kv_blocks(&limits));
    change(&mut setup);
    let mut model = setup.load(checkpoint)?;
    let rounding = reference
        .f64_diff
        .ok_or("the reference has no f64 difference")?;
    let bound = verify::bound_of(model.plan(), reference, 8.0 * rounding);
    Ok(verify::verify(&mut model, reference, bound)?)
}

fn open(name: &str) -> Result<(PathBuf, Reference)> {
    // Copies in another form have the reference of what they were made from.
    let folder = fixture(name);
    let own = folder.join("ref.safetensors");
    let made = name.trim_end_matches("-gguf").trim_end_matches("-sharded");
    let other = fixture(made).join("ref.safetensors");
    let reference = Reference::read(if own.exists() { &own } else { &other })?;
    Ok((folder, reference))
}

#[test]
fn every_exact_fixture_is_within_its_bound_along_every_schedule() {
    // All of them, so that a run on a machine that is lent by the minute names each that fails.
    let mut failed = Vec::new();
    for name in served(EXACT) {
        let (folder, reference) = open(name).unwrap();
        let report = run(&folder, &reference, |_| ()).unwrap();
        assert_eq!(report.schedules.len(), 5);
        let differences = report.schedules.iter().map(|s| s.max_diff);
        let largest = differences.fold(0.0, f32::max);
        println!(
            "{name}: {largest:.2e} of {:.2e}, {} greedy",
            report.bound, report.greedy_compared
        );
        // A GPU computes in bf16 in places: the bound is wide there, and few margins are clear of it.
        assert!(
            on_gpu() || report.greedy_compared >= 8,
            "{name}: the margins of the fixture are too small to compare"
        );
        if !report.passed() {
            failed.push((name, report));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// KV pools in formats with scales, everywhere or in some layers: within the bound of their roundings, which follows from the
/// format alone, and off by more than f32 is.
#[test]
fn kv_formats_are_within_the_bound_of_their_roundings() {
    if on_gpu() {
        return;
    }
    // None with routers: which experts are the best changes at once, and no bound of roundings holds beyond that.
    for name in [
        "llama", "qwen3", "qwen2", "mistral", "granite", "gemma2", "gemma3",
    ] {
        let (folder, reference) = open(name).unwrap();
        let exact = run(&folder, &reference, |_| ()).unwrap().bound;
        for kv in [Elem::I8, Elem::F8E4M3] {
            let all = run(&folder, &reference, |s| s.kv = kv.into()).unwrap();
            assert!(all.passed(), "{name} {kv}: {all:#?}");
            let mixed = |s: &mut Setup| s.kv.layers = [(1, kv)].into();
            let mixed = run(&folder, &reference, mixed).unwrap();
            assert!(mixed.passed(), "{name} {kv} in layer 1: {mixed:#?}");
            for report in [all, mixed] {
                let differences = report.schedules.iter().map(|s| s.max_diff);
                let least = differences.fold(f32::INFINITY, f32::min);
                assert!(least > exact, "{name} {kv}: the format has no effect");
            }
        }
    }
}

/// Quantized weights: activations have fifteen bits there, and the bound is that of such a rounding (with eight bits the
/// difference would be 128 times as large, and beyond it). It still tells these weights from those they were made from.
#[test]
fn quantized_fixtures_are_within_the_bound_of_their_activations() {
    // A GPU multiplies MXFP4 alone of these, exactly: within the bound of its other roundings.
    if on_gpu() {
        for name in served(&["gpt-oss-mxfp4", "gpt-oss-gguf"]) {
            let (folder, reference) = open(name).unwrap();
            let report = run(&folder, &reference, |_| ()).unwrap();
            assert!(report.passed(), "{name}: {report:#?}");
        }
        return;
    }
    for (name, original) in [
        ("llama-gguf-q8_0", "llama"),
        ("qwen3-gguf-q4_0", "qwen3"),
        ("gpt-oss-mxfp4", "gpt-oss"),
        ("gpt-oss-gguf", "mixtral-gguf"),
    ] {
        let (folder, reference) = open(name).unwrap();
        let report = run(&folder, &reference, |_| ()).unwrap();
        // How many greedy steps are clear of this bound is the fixture's affair: the logits of all tokens are what is held.
        assert!(report.passed(), "{name}: {report:#?}");
        let least = |report: &Report| {
            let differences = report.schedules.iter().map(|s| s.max_diff);
            differences.fold(f32::INFINITY, f32::min)
        };
        assert!(
            128.0 * least(&report) > report.bound,
            "{name}: the bound would let eight bits pass: {report:#?}"
        );
        let (_, other) = open(original).unwrap();
        let crossed = run(&folder, &other, |_| ()).unwrap();
        assert!(least(&crossed) > crossed.bound, "{name}: {crossed:#?}");
    }
}

/// Reference files of other hands do not record their rounding: the estimate must not refuse what is right, nor pass what
/// the recorded bound would see.
#[test]
fn the_estimated_bound_is_near_the_recorded_one() {
    // It is one of f32 arithmetic.
    if on_gpu() {
        return;
    }
    let library = support::library().unwrap();
    for name in served(EXACT) {
        let (folder, reference) = open(name).unwrap();
        let prepared = Prepared::new(&library, Checkpoint::open(&folder).unwrap(), &[]).unwrap();
        let recorded = 8.0 * reference.f64_diff.unwrap();
        let estimate = verify::estimated_bound(&prepared.instance, &reference);
        // Transformers evaluates the delta rule in chunks, with an inverse of its own: its rounding says nothing of the
        // recurrent form. There the estimate must hold what we compute.
        let least = match name {
            "qwen3-5" | "qwen3-next" => {
                let report = run(&folder, &reference, |_| ()).unwrap();
                let differences = report.schedules.iter().map(|s| s.max_diff);
                differences.fold(0.0, f32::max)
            }
            _ => recorded,
        };
        assert!(
            least < estimate && estimate < 8.0 * recorded,
            "{name}: {estimate} {recorded}"
        );
    }
}

/// Tensor cores that multiply e4m3 by e4m3: what the reference records of such roundings takes the place of their estimate,
/// which is looser but not by much. Class cpu takes f32 activations, and its bound stays.
#[test]
fn the_bound_of_fp8_activations_is_what_the_reference_records_of_them() {
    let library = support::library().unwrap();
    let (folder, mut reference) = open("qwen3-fp8-block").unwrap();
    let limits = verify::limits(&reference);
    let prepared = Prepared::new(&library, Checkpoint::open(&folder).unwrap(), &[]).unwrap();
    let setup = Setup::new(limits, verify::kv_blocks(&limits));
    let planned = |class: &str| {
        let options = PlanOptions {
            class: class.into(),
            device: None,
            kv: Elem::F32.into(),
            limits,
            kv_blocks: setup.kv_blocks,
            windows: Vec::new(),
            snapshots: 0,
            fuse: true,
        };
        prepared.plan(&library, &options).unwrap()
    };
    let (cpu, hopper) = (planned("cpu"), planned("hopper"));
    let exact = 8.0 * reference.f64_diff.unwrap();
    assert_eq!(verify::bound_of(&cpu, &reference, exact), exact);
    let recorded = verify::bound_of(&hopper, &reference, exact);
    assert!(recorded >= 2.0 * reference.f8_diff.unwrap());
    reference.f8_diff = None;
    let estimate = verify::bound_of(&hopper, &reference, exact);
    assert!(
        (recorded..4.0 * recorded).contains(&estimate),
        "{estimate} {recorded}"
    );
}

#[test]
fn an_unfused_plan_is_within_the_bound_too() {
    for name in ["llama", "qwen3"] {
        let (folder, reference) = open(name).unwrap();
        let report = run(&folder, &reference, |setup| setup.fuse = false).unwrap();
        assert!(report.passed(), "{name}: {report:#?}");
    }
}

#[test]
fn older_configurations_say_the_same() {
    for name in ["llama", "llama3-rope", "qwen3"] {
        let (folder, reference) = open(name).unwrap();
        let copy = TempCopy::of(&folder).unwrap();
        fs::copy(
            folder.join("config.legacy.json"),
            copy.path().join("config.json"),
        )
        .unwrap();
        assert!(
            run(copy.path(), &reference, |_| ()).unwrap().passed(),
            "{name}"
        );
    }
}

#[test]
fn each_kind_of_tensor_breaks_the_bound_when_it_is_dropped() {
    // What the bound of f32 can see, and quantized weights: affairs of class cpu.
    if on_gpu() {
        return;
    }
    for name in [
        "llama",
        "llama-bias",
        "qwen3",
        "qwen2",
        "phi3",
        "olmo2",
        "gemma3",
        "mixtral",
        "gpt-oss",
        "deepseek-v3",
        "qwen3-next",
        "mamba2",
        "nemotron-h",
    ] {
        let (folder, reference) = open(name).unwrap();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let store = checkpoint.store.as_ref().unwrap();
        // The last layer that has a kind of tensor stands for all of them, and one expert for all.
        let kind = |t: &&StoredTensor| -> String {
            let numbers = t
                .name
                .split('.')
                .map(|w| w.parse::<u32>().map_or(w, |_| "#"));
            numbers.collect::<Vec<_>>().join(".")
        };
        let mut kinds: BTreeMap<String, &StoredTensor> = BTreeMap::new();
        kinds.extend(store.tensors().iter().map(|t| (kind(&t), t)));
        let mut count = 0;
        for tensor in kinds.into_values() {
            let copy = TempCopy::of(&folder).unwrap();
            let path = copy.path().join(store.path_of(tensor).file_name().unwrap());
            let mut bytes = fs::read(&path).unwrap();
            // A norm weight of zero would silence the layer; one is what a dropped norm amounts to.
            let norm = tensor.name.contains("norm");
            for value in bytes[tensor.offset as usize..(tensor.offset + tensor.bytes) as usize]
                .chunks_exact_mut(2)
            {
                value.copy_from_slice(if norm { &[0x80, 0x3f] } else { &[0, 0] });
            }
            fs::write(&path, bytes).unwrap();
            let report = run(copy.path(), &reference, |_| ()).unwrap();
            let least = report
                .schedules
                .iter()
                .map(|s| s.max_diff)
                .fold(f32::INFINITY, f32::min);
            assert!(
                least > report.bound,
                "{name}: {} dropped, and the difference is only {least}",
                tensor.name
            );
            count += 1;
        }
        assert!(
            count >= 9,
            "{name}: only {count} kinds of tensors were tried"
        );
    }
}

#[test]
fn each_architecture_key_breaks_the_bound_when_it_changes() {
    // What the bound of f32 can see, and quantized weights: affairs of class cpu.
    if on_gpu() {
        return;
    }
    let changes = [
        (
            "llama",
            "\"rms_norm_eps\": 1e-06",
            "\"rms_norm_eps\": 1e-03",
        ),
        (
            "llama",
            "\"rope_theta\": 10000.0",
            "\"rope_theta\": 20000.0",
        ),
        ("llama3-rope", "\"factor\": 8.0", "\"factor\": 4.0"),
        (
            "llama3-rope",
            "\"low_freq_factor\": 1.0",
            "\"low_freq_factor\": 2.0",
        ),
        (
            "llama3-rope",
            "\"high_freq_factor\": 4.0",
            "\"high_freq_factor\": 8.0",
        ),
        (
            "llama3-rope",
            "\"original_max_position_embeddings\": 64",
            "\"original_max_position_embeddings\": 32",
        ),
        (
            "llama3-rope",
            "\"rope_type\": \"llama3\"",
            "\"rope_type\": \"default\"",
        ),
        (
            "qwen3",
            "\"rms_norm_eps\": 1e-06",
            "\"rms_norm_eps\": 1e-03",
        ),
        ("mistral", "\"sliding_window\": 8", "\"sliding_window\": 9"),
        (
            "phi3",
            "\"partial_rotary_factor\": 1.0",
            "\"partial_rotary_factor\": 0.75",
        ),
        (
            "granite",
            "\"attention_multiplier\": 0.2",
            "\"attention_multiplier\": 0.25",
        ),
        (
            "granite",
            "\"residual_multiplier\": 0.5",
            "\"residual_multiplier\": 0.6",
        ),
        (
            "granite",
            "\"embedding_multiplier\": 3.0",
            "\"embedding_multiplier\": 2.0",
        ),
        (
            "granite",
            "\"logits_scaling\": 2.0",
            "\"logits_scaling\": 3.0",
        ),
        (
            "olmo2",
            "\"rms_norm_eps\": 1e-05",
            "\"rms_norm_eps\": 1e-03",
        ),
        (
            "gemma2",
            "\"attn_logit_softcapping\": 50.0",
            "\"attn_logit_softcapping\": 40.0",
        ),
        (
            "gemma2",
            "\"final_logit_softcapping\": 30.0",
            "\"final_logit_softcapping\": 20.0",
        ),
        (
            "gemma2",
            "\"query_pre_attn_scalar\": 16",
            "\"query_pre_attn_scalar\": 20",
        ),
        (
            "gemma3",
            "\"rope_theta\": 1000000.0",
            "\"rope_theta\": 500000.0",
        ),
        (
            "gemma3",
            "\"rope_theta\": 10000.0",
            "\"rope_theta\": 20000.0",
        ),
        (
            "qwen3-moe",
            "\"norm_topk_prob\": true",
            "\"norm_topk_prob\": false",
        ),
        (
            "mixtral",
            "\"num_experts_per_tok\": 2",
            "\"num_experts_per_tok\": 3",
        ),
        (
            "gpt-oss",
            "\"swiglu_alpha\": 1.702",
            "\"swiglu_alpha\": 1.8",
        ),
        ("gpt-oss", "\"truncate\": false", "\"truncate\": true"),
        (
            "deepseek-v3",
            "\"routed_scaling_factor\": 2.5",
            "\"routed_scaling_factor\": 2.0",
        ),
        ("deepseek-v3", "\"mscale\": 1.0", "\"mscale\": 0.9"),
        (
            "qwen3-next",
            "\"partial_rotary_factor\": 0.25",
            "\"partial_rotary_factor\": 0.5",
        ),
        (
            "nemotron-h",
            "\"routed_scaling_factor\": 1.5",
            "\"routed_scaling_factor\": 1.0",
        ),
        (
            "mamba2",
            "\"layer_norm_epsilon\": 1e-05",
            "\"layer_norm_epsilon\": 0.01",
        ),
        (
            "deepseek-v3",
            "\"mscale_all_dim\": 0.5",
            "\"mscale_all_dim\": 0.6",
        ),
        ("deepseek-v3", "\"topk_group\": 1", "\"topk_group\": 2"),
    ];
    for (name, from, to) in changes {
        let (folder, reference) = open(name).unwrap();
        let copy = TempCopy::of(&folder).unwrap();
        let path = copy.path().join("config.json");
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.contains(from),
            "{name}: the fixture does not say {from}:\n{text}"
        );
        fs::write(&path, text.replace(from, to)).unwrap();
        let report = run(copy.path(), &reference, |_| ()).unwrap();
        assert!(!report.passed(), "{name}: {to} changes nothing");
    }
}
