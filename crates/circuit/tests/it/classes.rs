// SPDX-License-Identifier: MIT OR Apache-2.0
//! Classes and manifests: inheritance, row ranges, and manifests that contradict themselves.

use metrale_circuit::{CircuitLibrary, LibraryError, Plan, PlanError};
use metrale_core::{Elem, RowRange};

use crate::common::{TINY_LLAMA, flat, hf, request};

/// The built-in tree with manifests added or replaced.
fn with(changes: &[(&str, &str)]) -> Result<CircuitLibrary, LibraryError> {
    let mut files: Vec<(&str, &str)> = metrale_kernel_tree::files().collect();
    files.retain(|(p, _)| changes.iter().all(|(c, _)| c != p));
    files.extend(changes);
    CircuitLibrary::new(files)
}

fn plan(library: &CircuitLibrary, class: &str) -> Result<Plan, PlanError> {
    let instance = hf(&flat(TINY_LLAMA)).unwrap();
    let formats = instance.uniform_formats(Elem::BF16);
    let mut request = request(&formats);
    request.class = class;
    library.plan(&instance, &request)
}

const TOY: &str = "[hardware]\nname = \"toy\"\ninherits = \"cpu\"\n";

#[test]
fn a_class_overrides_what_it_inherits() {
    let points = r#"
[[point]]
id = "linear/bf16"
spec = "chain256_f32"
elems = { w = "bf16", x = "f32", y = "f32" }
rows = [0, 4]
[[point]]
id = "linear/bf16_wide"
spec = "chain256_f32"
elems = { w = "bf16", x = "f32", y = "f32" }
rows = [5, 4294967295]
"#;
    let library = with(&[
        ("toy/HARDWARE.toml", TOY),
        ("toy/KERNEL_FAMILIES.toml", points),
    ])
    .unwrap();
    let toy = plan(&library, "toy").unwrap();
    let linear = toy
        .groups
        .iter()
        .find(|g| g.name == "L0.linear.qkv")
        .unwrap();
    let ranges: Vec<_> = linear
        .points
        .iter()
        .map(|(r, p)| (*r, p.as_str()))
        .collect();
    assert_eq!(
        ranges,
        [
            (RowRange { min: 0, max: 4 }, "linear/bf16"),
            (
                RowRange {
                    min: 5,
                    max: u32::MAX
                },
                "linear/bf16_wide"
            ),
        ]
    );
    // One spec: the same bits, so the same digest as the class it inherits from.
    assert_eq!(toy.digest, plan(&library, "cpu").unwrap().digest);
    assert!(
        toy.device.is_none()
            && toy
                .roofline_seconds(&metrale_circuit::Workload::decode(1))
                .is_none()
    );
}

#[test]
fn row_counts_may_neither_be_left_out_nor_change_the_spec() {
    let one = r#"
[[point]]
id = "linear/bf16"
spec = "chain256_f32"
elems = { w = "bf16", x = "f32", y = "f32" }
rows = [0, 4]
"#;
    let other_spec = format!(
        "{one}[[point]]\nid = \"linear/bf16_wide\"\nspec = \"a16_block32\"\nelems = {{ w = \"bf16\", x = \"f32\", y = \"f32\" }}\nrows = [5, 4294967295]\n"
    );
    for points in [one, &other_spec] {
        let library = with(&[
            ("toy/HARDWARE.toml", TOY),
            ("toy/KERNEL_FAMILIES.toml", points),
        ])
        .unwrap();
        let e = plan(&library, "toy").unwrap_err();
        assert!(
            matches!(&e, PlanError::Library { what } if what.contains("row counts")),
            "{e}"
        );
    }
}

#[test]
fn a_class_serves_what_it_says() {
    let library = with(&[(
        "toy/HARDWARE.toml",
        &format!("{TOY}[circuits]\nserves = [\"qwen3\"]\n"),
    )])
    .unwrap();
    let e = plan(&library, "toy").unwrap_err().to_string();
    assert!(
        e.contains("class toy does not serve family llama") && e.contains("qwen3"),
        "{e}"
    );
}

#[test]
fn broken_manifests_are_named() {
    let tree = |path: &str| metrale_kernel_tree::file(path).unwrap();
    let circuit = tree("circuits/llama/circuit.toml");
    let map = tree("circuits/llama/map.toml");
    let families = tree("circuits/FAMILIES.toml");
    let fusions = tree("cpu/FUSIONS.toml");
    for (path, text, word) in [
        (
            "circuits/llama/circuit.toml",
            circuit.replace("carry =", "cary ="),
            "cary",
        ),
        (
            "circuits/llama/circuit.toml",
            circuit.replace("heads % kv_heads", "heads % % kv"),
            "no expression",
        ),
        (
            "circuits/llama/circuit.toml",
            circuit.replace("rope_inv_freq", "rope_magic"),
            "rope_magic",
        ),
        (
            "circuits/llama/map.toml",
            map.replace("= \"hidden\"", "= \"hiden\""),
            "hiden",
        ),
        (
            "circuits/FAMILIES.toml",
            families.replace("[swiglu]", "[swigloo]"),
            "swigloo",
        ),
        (
            "circuits/FAMILIES.toml",
            families.replace("res rw", "res r"),
            "`res`",
        ),
        (
            "cpu/FUSIONS.toml",
            fusions.replace("0.res = 1.x", "0.res = 9.x"),
            "9.x",
        ),
        ("toy/HARDWARE.toml", TOY.replace("cpu", "tpu"), "tpu"),
        ("toy/HARDWARE.toml", TOY.replace("cpu", "toy"), "circle"),
    ] {
        let e = with(&[(path, &text)]).unwrap_err().to_string();
        assert!(e.contains(word), "{word}: {e}");
    }
    // Planning on a family whose circuit binds what is not there is refused as the tree's fault.
    let text = circuit.replace(
        "op = \"swiglu\"",
        "op = \"swiglu\"\nbind = { gu = \"gone\" }",
    );
    let library = with(&[("circuits/llama/circuit.toml", &text)]).unwrap();
    let config = flat(TINY_LLAMA);
    let input = metrale_circuit::ConfigInput {
        flat: &config,
        source: metrale_circuit::Source::Hf,
        nulls: None,
        tensors: None,
        accept: &[],
    };
    let e = library.instantiate(&input).unwrap_err().to_string();
    assert!(
        e.contains("no edge `gone`") && e.contains("report it"),
        "{e}"
    );
}
