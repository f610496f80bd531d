// SPDX-License-Identifier: MIT OR Apache-2.0
//! The repository's own kernel tree, as far as no compiler is needed.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use metrale_closure::Tree;
use metrale_config::levers::{LEVERS, LeverKind};

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn root() -> PathBuf {
    here().join("../../kernels")
}

/// Ids of the points that a class's `KERNEL_FAMILIES.toml` states, its ancestors' included.
fn stated(tree: &Tree, class: &str) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    for link in tree.chain(class).unwrap() {
        let path = root().join(link.name).join("KERNEL_FAMILIES.toml");
        let Ok(text) = std::fs::read_to_string(path) else {
            continue;
        };
        let file: toml::Table = toml::from_str(&text).unwrap();
        let of = |point: &toml::Value| point["id"].as_str().unwrap().to_owned();
        let own: Vec<String> = file["point"].as_array().unwrap().iter().map(of).collect();
        // Those of a family once more as those of another.
        for like in file
            .get("like")
            .and_then(|l| l.as_array())
            .into_iter()
            .flatten()
        {
            let text = |field: &str| like[field].as_str().unwrap();
            let except = like["except"].as_array().unwrap();
            let names = own
                .iter()
                .filter_map(|id| id.strip_prefix(&format!("{}/", text("of"))));
            let taken = names.filter(|n| except.iter().all(|e| e.as_str() != Some(n)));
            ids.extend(taken.map(|n| format!("{}/{n}", text("family"))));
        }
        ids.extend(own);
    }
    ids
}

#[test]
fn every_point_that_a_compiled_class_states_has_code_and_the_other_way_round() {
    let tree = Tree::new(root());
    let compiled: Vec<_> = tree
        .classes()
        .unwrap()
        .into_iter()
        .filter(|c| c.target == "cuda")
        .collect();
    assert!(compiled.len() >= 4);
    for class in compiled {
        let target = tree.resolve(&class.name, None).unwrap();
        let with_code: BTreeSet<String> = target.points.keys().cloned().collect();
        assert_eq!(stated(&tree, &class.name), with_code, "{}", class.name);
    }
}

#[test]
fn every_entry_and_its_includes_are_there() {
    let tree = Tree::new(root());
    let target = tree.resolve("gb10", None).unwrap();
    for (id, p) in &target.points {
        let closure = target.closure(&p.point.file).unwrap();
        assert!(closure.names().any(|n| n == p.point.file));
        let text = std::fs::read_to_string(root().join(&p.layer).join(&p.point.file)).unwrap();
        assert!(
            text.contains(&p.point.entry),
            "{id}: no entry {} in {}",
            p.point.entry,
            p.point.file
        );
    }
    let used: BTreeSet<String> = target
        .sources()
        .iter()
        .flat_map(|s| {
            target
                .closure(s)
                .unwrap()
                .names()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect();
    for (name, _) in target.files() {
        assert!(used.contains(name), "{name}: no point reaches it");
    }
}

#[test]
fn the_build_reads_the_levers_that_the_registry_lists() {
    let text = std::fs::read_to_string(here().join("build.rs")).unwrap();
    let listed = LEVERS
        .iter()
        .filter(|l| l.kind == LeverKind::Build)
        .map(|l| l.name);
    for name in listed {
        let read = match name.strip_prefix("METRALE_TARGET_") {
            Some(part) => text.contains(&format!("\"{part}\"")),
            None => text.contains(&format!("lever(\"{name}\")")),
        };
        assert!(read, "{name} is listed and build.rs does not read it");
    }
    let mut rest = text.as_str();
    while let Some((_, after)) = rest.split_once("lever(\"METRALE_") {
        let name = after.split('"').next().unwrap();
        assert!(
            LEVERS.iter().any(|l| l.name == format!("METRALE_{name}")),
            "METRALE_{name}"
        );
        rest = after;
    }
}
