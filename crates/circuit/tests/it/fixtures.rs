// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every tiny checkpoint of `tests/fixtures`, written by Transformers and the `gguf` library, becomes an instance and a plan.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use metrale_circuit::{ConfigInput, Instance, Source, WeightKey, Workload};
use metrale_config::{GgufHeader, GgufLimits, flatten, gguf_config, json};
use metrale_core::Elem;

use crate::common::{library, request};

fn folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tiny");
    let mut folders: Vec<_> = fs::read_dir(root)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    folders.sort();
    folders
}

fn hf(path: &Path) -> Option<Instance> {
    let bytes = fs::read(path).ok()?;
    let document = json::parse(&bytes, &json::JsonLimits::default()).unwrap();
    let flat = flatten::flatten_json(&document).unwrap();
    let input = ConfigInput {
        flat: &flat,
        source: Source::Hf,
        nulls: None,
        tensors: None,
        accept: &[],
    };
    Some(
        library()
            .instantiate(&input)
            .unwrap_or_else(|e| panic!("{}: {e}", path.display())),
    )
}

/// The instance, and the formats of the file's tensors by GGUF name.
fn gguf(path: &Path) -> Option<(Instance, BTreeMap<String, Elem>)> {
    let bytes = fs::read(path).ok()?;
    let header =
        GgufHeader::from_bytes(&bytes, bytes.len() as u64, &GgufLimits::default()).unwrap();
    let config = gguf_config::from_gguf("model.gguf", &header).unwrap();
    let formats: BTreeMap<_, _> = header
        .tensors()
        .iter()
        .map(|t| (t.name.clone(), t.elem))
        .collect();
    let tensors: BTreeSet<String> = formats.keys().cloned().collect();
    let tensors = Some(&tensors);
    let input = ConfigInput {
        flat: &config.flat,
        source: Source::Gguf,
        nulls: None,
        tensors,
        accept: &[],
    };
    let instance = library().instantiate(&input);
    Some((
        instance.unwrap_or_else(|e| panic!("{}: {e}", path.display())),
        formats,
    ))
}

#[test]
fn every_configuration_plans() {
    let mut seen = 0;
    for folder in folders() {
        let spellings = ["config.json", "config.legacy.json"].map(|f| hf(&folder.join(f)));
        if let [Some(new), Some(old)] = &spellings {
            // Transformers 5 and 4 spell RoPE differently and mean the same.
            assert_eq!(new.params(), old.params(), "{}", folder.display());
        }
        let gguf = gguf(&folder.join("model.gguf")).map(|(instance, _)| instance);
        for instance in spellings.into_iter().flatten().chain(gguf) {
            let formats = instance.uniform_formats(Elem::F32);
            let constants = instance.weights().iter().filter(|w| w.constant);
            let values: BTreeMap<WeightKey, Vec<f32>> = constants
                .map(|w| (w.key.clone(), vec![1.0; w.elems() as usize]))
                .collect();
            let mut request = request(&formats);
            request.values = &values;
            library().plan(&instance, &request).unwrap();
            seen += 1;
        }
    }
    assert!(seen >= 20, "{seen} configurations");
}

#[test]
fn a_gguf_and_the_configuration_it_was_made_from_agree() {
    let tiny = |name: &str| folders().into_iter().find(|f| f.ends_with(name)).unwrap();
    for (from, to) in [
        ("llama", "llama-gguf"),
        ("llama-tied", "llama-tied-gguf"),
        ("qwen3", "qwen3-gguf"),
    ] {
        let hf = hf(&tiny(from).join("config.json")).unwrap();
        let (gguf, _) = gguf(&tiny(to).join("model.gguf")).unwrap();
        let shapes = |i: &Instance| {
            i.weights()
                .iter()
                .map(|w| (w.key.clone(), w.shape.clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(shapes(&hf), shapes(&gguf), "{from}");
        assert_eq!(hf.ops().len(), gguf.ops().len(), "{from}");
    }
}

/// Keys that a window hides are neither read nor multiplied: a layer of 8 tokens costs the same at any context from 8 on.
#[test]
fn context_beyond_a_window_costs_nothing() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tiny");
    let instance = hf(&root.join("gemma3/config.json")).unwrap();
    let formats = instance.uniform_formats(Elem::BF16);
    let plan = library().plan(&instance, &request(&formats)).unwrap();
    let attends = |name: &str| {
        let group = plan.groups.iter().find(|g| g.name == name).unwrap();
        move |context| {
            let w = Workload::decode(context);
            (group.cost.bytes(1, &w), group.cost.flops(1, &w))
        }
    };
    let (sliding, full) = (attends("L0.attention_ext.a"), attends("L1.attention.a"));
    // A key and a value of 2 heads of 16 in bf16; 4 heads multiply and add each once.
    let (bytes, flops) = (2 * 2 * 16 * 2, 4 * 4 * 16);
    let rows = sliding(0).0;
    for (context, reached) in [(0, 0), (7, 7), (8, 8), (9, 8), (300, 8)] {
        let want = |tokens: u64| (rows + tokens * bytes, tokens * flops);
        assert_eq!(sliding(context), want(reached), "{context} tokens");
        assert_eq!(full(context), want(context), "{context} tokens");
    }
}
