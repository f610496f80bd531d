// SPDX-License-Identifier: MIT OR Apache-2.0
//! GGUF metadata and tensor names to params.

use std::collections::{BTreeMap, BTreeSet};

use metrale_circuit::{Instance, PlanError, Refusal, Value, WeightKey};
use metrale_core::Elem;

use crate::common::{flat, gguf, library, request, scalar};

const TINY: &str = r#"
general.architecture = "llama"
general.name = "tiny"
llama.block_count = 4
llama.context_length = 512
llama.embedding_length = 64
llama.feed_forward_length = 96
llama.attention.head_count = 4
llama.attention.head_count_kv = 2
llama.attention.key_length = 16
llama.attention.value_length = 16
llama.attention.layer_norm_rms_epsilon = 0.000001
llama.rope.freq_base = 10000.0
llama.rope.dimension_count = 16
llama.vocab_size = 320
"#;

fn with_tensors(names: &[&str]) -> Instance {
    let tensors: BTreeSet<String> = names.iter().map(|n| (*n).to_owned()).collect();
    gguf(&flat(TINY), &tensors).unwrap()
}

#[test]
fn tensors_decide_what_the_metadata_leaves_open() {
    let tied = with_tensors(&["token_embd.weight"]);
    assert_eq!(tied.params()["tied"], Value::Bool(true));
    let bare = with_tensors(&["token_embd.weight", "output.weight"]);
    assert_eq!(bare.params()["tied"], Value::Bool(false));
    assert!(!bare.weights().iter().any(|w| w.key.name.contains("bias")));
    let biased = with_tensors(&["output.weight", "blk.0.attn_q.bias"]);
    let biases: BTreeSet<_> = biased
        .weights()
        .iter()
        .map(|w| &w.key.name)
        .filter(|n| n.contains("bias"))
        .collect();
    assert_eq!(
        biases.into_iter().collect::<Vec<_>>(),
        ["k_bias", "q_bias", "v_bias"]
    );
}

#[test]
fn the_token_list_gives_the_vocabulary_where_the_key_is_absent() {
    let mut config = flat(TINY);
    config.insert("vocab_size".into(), scalar("999"));
    assert_eq!(gguf(&config, &BTreeSet::new()).unwrap().vocab(), 320);
    config.remove("llama.vocab_size");
    assert_eq!(gguf(&config, &BTreeSet::new()).unwrap().vocab(), 999);
    config.remove("vocab_size");
    let refusal = gguf(&config, &BTreeSet::new()).unwrap_err();
    assert!(
        matches!(refusal, Refusal::Missing { keys, .. } if keys == ["llama.vocab_size", "vocab_size"])
    );
}

#[test]
fn unequal_key_and_value_heads_are_refused() {
    let mut config = flat(TINY);
    config.insert("llama.attention.value_length".into(), scalar("32"));
    let refusal = gguf(&config, &BTreeSet::new()).unwrap_err();
    assert!(matches!(refusal, Refusal::Conflict { .. }), "{refusal}");
}

#[test]
fn experts_make_another_family_of_the_same_architecture() {
    let no_tensors = BTreeSet::new();
    let mut config = flat(TINY);
    config.insert("llama.expert_count".into(), scalar("0"));
    assert_eq!(gguf(&config, &no_tensors).unwrap().family(), "llama");
    config.insert("llama.expert_count".into(), scalar("8"));
    let refusal = gguf(&config, &no_tensors).unwrap_err().to_string();
    assert!(refusal.contains("llama.expert_used_count"), "{refusal}");
    config.insert("llama.expert_used_count".into(), scalar("2"));
    let mixtral = gguf(&config, &no_tensors).unwrap();
    assert_eq!(mixtral.family(), "mixtral");
    let experts = mixtral
        .weights()
        .iter()
        .find(|w| w.key.name == "gate_exps")
        .unwrap();
    assert_eq!(experts.shape, [8, 96, 64]);
    // The rest of what says expert is not known here.
    config.insert("llama.expert_shared_count".into(), scalar("1"));
    let refusal = gguf(&config, &no_tensors).unwrap_err().to_string();
    assert!(refusal.contains("llama.expert_shared_count"), "{refusal}");
}

/// Files from before keys and values of latent attention were stored apart have no key for a head's columns.
#[test]
fn an_older_file_of_latent_attention_is_refused_by_the_key_it_lacks() {
    let mut config = flat(&TINY.replace("llama", "deepseek2"));
    for (key, value) in [
        ("attention.head_count_kv", "1"),
        ("attention.kv_lora_rank", "32"),
        ("leading_dense_block_count", "1"),
        ("expert_count", "8"),
        ("expert_used_count", "2"),
        ("expert_shared_count", "1"),
        ("expert_feed_forward_length", "32"),
        ("expert_weights_scale", "2.5"),
    ] {
        config.insert(format!("deepseek2.{key}"), scalar(value));
    }
    let refusal = gguf(&config, &BTreeSet::new()).unwrap_err().to_string();
    assert!(
        refusal.contains("deepseek2.attention.key_length_mla"),
        "{refusal}"
    );
    config.insert("deepseek2.attention.key_length_mla".into(), scalar("24"));
    let made = gguf(&config, &BTreeSet::new()).unwrap();
    assert_eq!(made.params()["nope"], Value::Count(8));
    assert_eq!(made.params()["groups"], Value::Count(1));
    config.insert("deepseek2.expert_gating_func".into(), scalar("1"));
    let refusal = gguf(&config, &BTreeSet::new()).unwrap_err().to_string();
    assert!(refusal.contains("expert_gating_func"), "{refusal}");
}

#[test]
fn rope_freqs_divide_the_frequencies() {
    let instance = with_tensors(&["output.weight", "rope_freqs.weight"]);
    let key = WeightKey {
        name: "rope_freqs".into(),
        layer: None,
    };
    let decl = instance.weights().iter().find(|w| w.key == key).unwrap();
    assert!(decl.constant && decl.shape == [8]);
    let formats = instance.uniform_formats(Elem::F32);
    let values = BTreeMap::from([(key.clone(), vec![2.0; 8])]);
    let mut request = request(&formats);
    let missing = library().plan(&instance, &request).unwrap_err();
    assert_eq!(
        missing,
        PlanError::Values {
            key,
            want: 8,
            have: 0
        }
    );
    request.values = &values;
    let plan = library().plan(&instance, &request).unwrap();
    let span = plan.memory.find("inv_freq").unwrap();
    let inv_freq = &plan.constants.iter().find(|c| c.span == span).unwrap().data;
    assert_eq!((inv_freq.len(), inv_freq[0]), (8, 0.5));
    // It is no packed tensor.
    assert!(
        !plan
            .weights
            .iter()
            .any(|w| w.parts.iter().any(|p| p.key.name == "rope_freqs"))
    );
}
