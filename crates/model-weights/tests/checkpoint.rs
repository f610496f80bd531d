// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening checkpoints of every shape, on the tiny fixtures and on files made here.

#![allow(clippy::expect_used, clippy::unwrap_used)] // helpers of tests

mod common;

use common::gguf::Gguf;
use common::{CONFIG, Scratch, bytes_file, tiny};
use metrale_config::ConfigSource;
use metrale_core::numeric::dequantize;
use metrale_core::{Elem, Scalar};
use metrale_model_weights::{Checkpoint, WeightStore, WeightsError};

fn store(checkpoint: &Checkpoint) -> &WeightStore {
    checkpoint.store.as_ref().unwrap()
}

fn values(store: &WeightStore, name: &str) -> Vec<f32> {
    let tensor = store.get(name).unwrap();
    let mut out = vec![0.0; tensor.elems() as usize];
    dequantize(tensor.elem, &store.read(tensor).unwrap(), &mut out).unwrap();
    out
}

#[test]
fn a_hugging_face_folder() {
    let checkpoint = Checkpoint::open(tiny("llama3-rope")).unwrap();
    let config = &checkpoint.config;
    assert_eq!(
        (config.architecture.as_str(), config.source),
        ("llama", ConfigSource::Hf)
    );
    assert_eq!(config.class.as_deref(), Some("LlamaForCausalLM"));
    assert_eq!(
        (config.bos, config.eos.as_slice(), config.pad),
        (Some(1), [2].as_slice(), Some(0))
    );
    assert_eq!(
        (config.context_length, config.dtype),
        (Some(512), Some(Elem::BF16))
    );
    assert_eq!(config.flat["rope_parameters.factor"], Scalar::Float(8.0));
    assert_eq!(config.flat["hidden_size"], Scalar::Int(64));
    let template = &config.chat_template("default").unwrap();
    assert_eq!(template.origin, "tokenizer_config.json");
    assert!(template.text.contains("add_generation_prompt"));
    assert!(checkpoint.files.tokenizer.is_some() && checkpoint.files.chat_template.is_none());

    let store = store(&checkpoint);
    let k = store.get("model.layers.1.self_attn.k_proj.weight").unwrap();
    assert_eq!(
        (k.elem, k.shape.as_slice(), k.row_bytes()),
        (Elem::BF16, [32, 64].as_slice(), 128)
    );
    let norm = values(store, "model.norm.weight");
    assert!(
        norm.len() == 64 && norm.iter().all(|v| (0.1..3.0).contains(v)),
        "{norm:?}"
    );
    store.finish().unwrap();
}

#[test]
fn shards_hold_what_the_single_file_holds() {
    let (single, sharded) = (tiny("llama"), tiny("llama-sharded"));
    let (single, sharded) = (
        Checkpoint::open(single).unwrap(),
        Checkpoint::open(sharded).unwrap(),
    );
    let (a, b) = (store(&single), store(&sharded));
    assert_eq!((a.files().len(), b.files().len()), (1, 2));
    assert_eq!(a.tensors().len(), b.tensors().len());
    for tensor in a.tensors() {
        let other = b.get(&tensor.name).unwrap();
        assert_eq!((&tensor.shape, tensor.elem), (&other.shape, other.elem));
        assert_eq!(
            a.read(tensor).unwrap(),
            b.read(other).unwrap(),
            "{}",
            tensor.name
        );
    }
    // Sharding is no part of what a checkpoint is.
    assert_eq!(
        single.fingerprint().unwrap(),
        sharded.fingerprint().unwrap()
    );
}

#[test]
fn a_gguf_holds_what_the_folder_holds() {
    let hf = Checkpoint::open(tiny("llama")).unwrap();
    let by_file = Checkpoint::open(tiny("llama-gguf/model.gguf")).unwrap();
    let by_folder = Checkpoint::open(tiny("llama-gguf")).unwrap();
    assert_eq!(by_file.config, by_folder.config);
    assert_eq!(
        by_file.fingerprint().unwrap(),
        by_folder.fingerprint().unwrap()
    );
    assert_ne!(by_file.fingerprint().unwrap(), hf.fingerprint().unwrap());

    let config = &by_file.config;
    assert_eq!(
        (config.architecture.as_str(), config.source),
        ("llama", ConfigSource::Gguf)
    );
    assert_eq!(
        (config.bos, config.eos.as_slice(), config.pad),
        (Some(1), [2].as_slice(), Some(0))
    );
    assert_eq!(config.flat["llama.block_count"], Scalar::Int(2));
    let tokens = by_file
        .gguf
        .as_ref()
        .unwrap()
        .get("tokenizer.ggml.tokens")
        .unwrap();
    assert_eq!(tokens.as_strings().unwrap().len(), 320);

    let (hf, gguf) = (store(&hf), store(&by_file));
    let pairs = [
        ("model.embed_tokens.weight", "token_embd.weight"),
        (
            "model.layers.0.mlp.down_proj.weight",
            "blk.0.ffn_down.weight",
        ),
        (
            "model.layers.1.self_attn.v_proj.weight",
            "blk.1.attn_v.weight",
        ),
        ("model.norm.weight", "output_norm.weight"),
    ];
    for (a, b) in pairs {
        assert_eq!(hf.get(a).unwrap().shape, gguf.get(b).unwrap().shape, "{a}");
        assert_eq!(values(hf, a), values(gguf, b), "{a}");
    }
}

#[test]
fn every_fixture_opens() {
    let mut opened = 0;
    for entry in std::fs::read_dir(tiny("")).unwrap() {
        let path = entry.unwrap().path();
        if path.join("meta.json").exists() {
            let checkpoint = Checkpoint::open(&path).unwrap();
            assert!(
                store(&checkpoint).total_bytes() > 20_000,
                "{}",
                path.display()
            );
            store(&checkpoint).finish().unwrap();
            opened += 1;
        }
    }
    assert!(opened >= 15, "{opened}");
}

#[test]
fn quantized_fixtures_have_whole_rows() {
    let checkpoint = Checkpoint::open(tiny("qwen3-gguf-q4_0")).unwrap();
    let store = store(&checkpoint);
    let quantized = store.tensors().iter().filter(|t| t.elem == Elem::Q4_0);
    let rows: u64 = quantized
        .map(|t| t.shape[0] * t.row_bytes() / t.bytes)
        .sum();
    assert_eq!(rows, 2 * 7 + 2, "one for each quantized tensor");
}

#[test]
fn a_folder_with_a_configuration_only() {
    let folder = Scratch::new();
    folder.put("config.json", CONFIG);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert!(checkpoint.store.is_none());
    let before = checkpoint.fingerprint().unwrap();
    folder.put("config.json", CONFIG.replace("4", "5"));
    assert_ne!(
        Checkpoint::open(folder.path())
            .unwrap()
            .fingerprint()
            .unwrap(),
        before
    );
}

#[test]
fn the_fingerprint_sees_names_shapes_and_heads() {
    let print = |tensors: &[(&str, &[u8])]| {
        let folder = Scratch::new();
        folder.put("config.json", CONFIG);
        folder.put("model.safetensors", bytes_file(tensors));
        Checkpoint::open(folder.path())
            .unwrap()
            .fingerprint()
            .unwrap()
    };
    let (head, mut tail) = (vec![1; 70_000], vec![1; 70_000]);
    tail[69_999] = 2;
    let base = print(&[("a", &head), ("b", &[1, 2])]);
    assert_eq!(
        base,
        print(&[("b", &[1, 2]), ("a", &head)]),
        "order in the file does not count"
    );
    assert_eq!(
        base,
        print(&[("a", &tail), ("b", &[1, 2])]),
        "bytes past 64 KiB do not count"
    );
    assert_ne!(base, print(&[("a", &head), ("b", &[1, 3])]));
    assert_ne!(base, print(&[("a", &head), ("c", &[1, 2])]));
    assert_ne!(base, print(&[("a", &head[..69_000]), ("b", &[1, 2])]));
}

#[test]
fn templates_come_in_order_of_precedence() {
    let folder = Scratch::new();
    folder.put("config.json", CONFIG);
    let list = r#"{"chat_template": [{"name": "default", "template": "A"}, {"name": "rag", "template": "B"}]}"#;
    folder.put("tokenizer_config.json", list);
    let text = |name: &str| {
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        checkpoint
            .config
            .chat_template(name)
            .map(|t| t.text.clone())
    };
    assert_eq!(text("default").as_deref(), Some("A"));
    folder.put("chat_template.json", r#"{"chat_template": "C"}"#);
    assert_eq!(text("default").as_deref(), Some("C"));
    folder.put("chat_template.jinja", "D");
    folder.put("additional_chat_templates/tool_use.jinja", "E");
    assert_eq!(text("default").as_deref(), Some("D"));
    assert_eq!(text("tool_use").as_deref(), Some("E"));
    assert_eq!(text("rag").as_deref(), Some("B"));
}

#[test]
fn a_split_gguf_is_one_store() {
    let folder = Scratch::new();
    let part = |n: u16, tensors: u32| {
        Gguf::new()
            .entry("split.no", 2, &n.to_le_bytes())
            .entry("split.count", 2, &2u16.to_le_bytes())
            .entry("split.tensors.count", 5, &tensors.to_le_bytes())
    };
    let first = folder.put(
        "m-00001-of-00002.gguf",
        part(0, 2)
            .tensor("a", &[2], 0, &1.5f32.to_le_bytes().repeat(2))
            .bytes(),
    );
    let second = part(1, 2)
        .tensor("b", &[1], 0, &2.5f32.to_le_bytes())
        .bytes();
    assert!(matches!(
        Checkpoint::open(&first).unwrap_err(),
        WeightsError::Io { path, .. } if path.ends_with("m-00002-of-00002.gguf")
    ));
    let other = folder.put("m-00002-of-00002.gguf", &second);
    for path in [first.as_path(), folder.path()] {
        let checkpoint = Checkpoint::open(path).unwrap();
        assert_eq!(values(store(&checkpoint), "a"), [1.5, 1.5]);
        assert_eq!(values(store(&checkpoint), "b"), [2.5]);
    }
    let why = |path| match Checkpoint::open(path).unwrap_err() {
        WeightsError::GgufSplit { why, .. } => why,
        e => panic!("{e}"),
    };
    assert!(why(&other).contains("open the first"));
    folder.put("m-00001-of-00002.gguf", part(0, 9).bytes());
    assert!(why(&first).contains("first announces 9"));
    folder.put("m-00002-of-00002.gguf", part(0, 2).bytes());
    assert!(why(&first).contains("should be part 1"));
    let renamed = folder.put("renamed.gguf", part(0, 2).bytes());
    assert!(why(&renamed).contains("give the files back their names"));
}

#[test]
fn what_is_no_checkpoint_is_refused_by_name() {
    let folder = Scratch::new();
    let why = |path: &std::path::Path| Checkpoint::open(path).unwrap_err().to_string();
    assert!(why(folder.path()).ends_with("the folder has neither config.json nor a GGUF file"));
    let file = folder.put("notes.txt", "x");
    assert!(why(&file).ends_with("expected a .gguf file or a folder with config.json"));
    assert!(why(&folder.path().join("absent")).contains("absent"));
    folder.put("a.gguf", Gguf::new().bytes());
    folder.put("b.gguf", Gguf::new().bytes());
    assert!(why(folder.path()).contains("(a.gguf, b.gguf, ...)"));
    folder.put("config.json", CONFIG);
    folder.put("x-00001-of-00002.safetensors", bytes_file(&[]));
    folder.put("x-00002-of-00002.safetensors", bytes_file(&[]));
    assert!(why(folder.path()).contains("model.safetensors.index.json"));
}
