// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tests/configs`: well-known checkpoints instantiate with the published number of parameters and plan to the published size,
//! or are refused by name.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use metrale_circuit::{ConfigInput, Instance, Refusal, Source};
use metrale_config::{flatten, json};
use metrale_core::{ArenaKind, Elem};
use serde::Deserialize;

use crate::common::{library, request};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    name: String,
    #[allow(dead_code)] // for people
    source: String,
    billions: f64,
    gigabytes: Option<f64>,
    refused: Option<String>,
}

fn instance(path: &Path) -> Result<Instance, Refusal> {
    let document = json::parse(&fs::read(path).unwrap(), &json::JsonLimits::default()).unwrap();
    let flat = flatten::flatten_json(&document).unwrap();
    library().instantiate(&ConfigInput {
        flat: &flat,
        source: Source::Hf,
        nulls: None,
        tensors: None,
        accept: &[],
    })
}

#[test]
fn sizes_are_the_published_ones_or_the_refusal_names_why() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/configs");
    let table = fs::read_to_string(root.join("known.toml")).unwrap();
    let known: BTreeMap<String, Known> = toml::from_str(&table).unwrap();
    assert!(known.len() >= 25, "{}", known.len());
    for (file, known) in known {
        let made = instance(&root.join(format!("{file}.json")));
        let instance = match (made, &known.refused) {
            (Ok(instance), None) => instance,
            (Err(e), Some(word)) => {
                assert!(e.to_string().contains(word), "{}: {e}", known.name);
                continue;
            }
            (Ok(_), Some(word)) => panic!("{}: taken, for all of {word}", known.name),
            (Err(e), None) => panic!("{}: {e}", known.name),
        };
        let billions = instance.weight_elems() as f64 / 1e9;
        assert!(
            (billions / known.billions - 1.0).abs() < 0.006,
            "{}: {billions} billion parameters, published {}",
            known.name,
            known.billions
        );
        let mut formats = instance.uniform_formats(Elem::BF16);
        if instance.param("mxfp4", None) == Some(metrale_circuit::Value::Bool(true)) {
            let stacks = instance.weights().iter().filter(|w| w.shape.len() == 3);
            formats.extend(stacks.map(|w| (w.key.clone(), Elem::Mxfp4)));
        }
        let plan = library().plan(&instance, &request(&formats)).unwrap();
        let bytes = plan.memory.arena_bytes(ArenaKind::Weights) as f64 / 1e9;
        let published = known.gigabytes.unwrap_or(2.0 * known.billions);
        assert!(
            (bytes / published - 1.0).abs() < 0.03,
            "{}: {bytes} GB planned, {published} published",
            known.name
        );
    }
}
