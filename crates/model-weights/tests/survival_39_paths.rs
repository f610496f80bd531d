// SPDX-License-Identifier: MIT OR Apache-2.0
//! SURVIVAL 39: no path of a checkpoint leads out of it.

#![allow(clippy::expect_used, clippy::unwrap_used)] // helpers of tests

mod common;

use common::{CONFIG, Scratch, bytes_file};
use metrale_model_weights::{Checkpoint, WeightsError};

fn escapes(folder: &std::path::Path) -> String {
    match Checkpoint::open(folder).expect_err("a path led out of the checkpoint") {
        WeightsError::Escapes { why, .. } => why,
        e => panic!("{e}"),
    }
}

#[test]
fn survival_39_shard_index_path_traversal() {
    let folder = Scratch::new();
    folder.put("outside.safetensors", bytes_file(&[("a", &[1])]));
    folder.put("model/config.json", CONFIG);
    let absolute = folder.path().join("outside.safetensors");
    let names = [
        "../outside.safetensors",
        "./../outside.safetensors",
        "sub/../../outside.safetensors",
        absolute.to_str().unwrap(),
        "",
        "..",
        "a\\u0000b",
    ];
    for name in names {
        let index = format!(r#"{{"weight_map": {{"a": "{name}"}}}}"#);
        folder.put("model/model.safetensors.index.json", index);
        let why = escapes(&folder.path().join("model"));
        assert!(why.contains("no plain name"), "{name}: {why}");
    }
    folder.put("model/sub/in.safetensors", bytes_file(&[("a", &[1])]));
    folder.put(
        "model/model.safetensors.index.json",
        r#"{"weight_map": {"a": "sub/in.safetensors"}}"#,
    );
    Checkpoint::open(folder.path().join("model")).unwrap();
}

#[test]
fn survival_39_symlink_out_of_the_folder() {
    let folder = Scratch::new();
    folder.put("outside.safetensors", bytes_file(&[("a", &[1])]));
    folder.put("secret.json", r#"{"model_type": "x"}"#);
    folder.put("model/config.json", CONFIG);
    folder.link("model/model.safetensors", "../outside.safetensors");
    assert!(escapes(&folder.path().join("model")).contains("outside of the checkpoint folder"));
    folder.put("other/inside.safetensors", bytes_file(&[("a", &[1])]));
    folder.link("other/model.safetensors", "inside.safetensors");
    folder.link("other/config.json", "../secret.json");
    assert!(escapes(&folder.path().join("other")).contains("outside of the checkpoint folder"));
    std::fs::remove_file(folder.path().join("other/config.json")).unwrap();
    folder.put("other/config.json", CONFIG);
    Checkpoint::open(folder.path().join("other")).unwrap();
    // The folder itself may be reached by a link: the operator named it.
    folder.link("alias", "other");
    Checkpoint::open(folder.path().join("alias")).unwrap();
}

#[test]
fn survival_39_hub_cache_links_stay_in_its_blobs() {
    let cache = Scratch::new();
    let snapshot = "models--o--n/snapshots/abc";
    cache.put("models--o--n/blobs/1", CONFIG);
    cache.put("models--o--n/blobs/2", bytes_file(&[("a", &[1])]));
    cache.put("models--o--other/blobs/3", bytes_file(&[("a", &[1])]));
    cache.link(&format!("{snapshot}/config.json"), "../../blobs/1");
    cache.link(&format!("{snapshot}/model.safetensors"), "../../blobs/2");
    let folder = cache.path().join(snapshot);
    let checkpoint = Checkpoint::open(&folder).unwrap();
    assert_eq!(checkpoint.store.unwrap().tensors().len(), 1);

    std::fs::remove_file(folder.join("model.safetensors")).unwrap();
    cache.link(
        &format!("{snapshot}/model.safetensors"),
        "../../../models--o--other/blobs/3",
    );
    assert!(escapes(&folder).contains("outside of the checkpoint folder"));
}

#[test]
fn survival_39_only_regular_files_are_opened() {
    let folder = Scratch::new();
    std::fs::create_dir_all(folder.path().join("config.json")).unwrap();
    let e = Checkpoint::open(folder.path()).unwrap_err();
    assert!(matches!(e, WeightsError::NotAFile { .. }), "{e}");
    std::fs::create_dir_all(folder.path().join("m.gguf")).unwrap();
    let e = Checkpoint::open("/dev/null").unwrap_err();
    assert!(matches!(e, WeightsError::Unrecognised { .. }), "{e}");
}
