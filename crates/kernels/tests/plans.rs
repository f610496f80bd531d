// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plans of the GPU classes against the code that they have: every group of every plan has a kernel with the same
//! arguments, and every kernel serves a plan.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use metrale_circuit::{
    CircuitLibrary, ConfigInput, Instance, Plan, PlanRequest, Source, WeightKey,
};
use metrale_closure::Tree;
use metrale_config::{flatten, json};
use metrale_core::{Elem, FlatMap, Scalar, StepLimits, fp8};
use metrale_kernels::{Values, Var};

const LIMITS: StepLimits = StepLimits {
    rows: 64,
    logits_rows: 8,
    slots: 8,
    blocks_per_slot: 32,
    tables: 1,
    history: 1024,
    bias: 64,
    mask_words: 0,
};

fn library() -> CircuitLibrary {
    CircuitLibrary::new(metrale_kernel_tree::files()).unwrap()
}

/// Hidden and intermediate size, width of a head, vocabulary: what no fast kernel takes, what all of them take with either
/// width, columns that are no whole vectors, rows that only the wide norms take, and the products of real models.
const SHAPES: [[i64; 4]; 10] = [
    [64, 96, 16, 320],
    [128, 256, 128, 320],
    [512, 1024, 64, 320],
    [42, 96, 16, 320],
    [4608, 256, 128, 320],
    [4096, 12288, 128, 151_936],
    [4096, 2048, 128, 320],
    [5120, 1024, 128, 320],
    [4608, 2048, 128, 320],
    [2048, 8192, 64, 320],
];

/// Families that bring ops of their own (windows, caps, multipliers, norms of whole projections), and shapes for what serves
/// them: plain kernels, heads of 64, 128 and 256 columns on tensor cores, and the wide norms that add (behind a norm of what is
/// added; elsewhere the product adds).
const VARIANTS: [&str; 7] = [
    "qwen2",
    "mistral",
    "phi3",
    "granite",
    "olmo2",
    "gemma2",
    "gemma3_text",
];
const VARIANT_SHAPES: [[i64; 4]; 5] = [
    [64, 96, 16, 320],
    [512, 1024, 64, 320],
    [512, 1024, 128, 320],
    [1152, 1024, 256, 320],
    [4608, 256, 128, 320],
];

fn models() -> impl Iterator<Item = (&'static str, [i64; 4])> {
    let all = ["llama", "qwen3"].into_iter();
    let all = all.flat_map(|f| SHAPES.map(|s| (f, s)));
    let variants = VARIANTS.into_iter();
    all.chain(variants.flat_map(|f| VARIANT_SHAPES.map(|s| (f, s))))
}

/// A small configuration of a family; `qwen3` has norms of queries and keys.
fn instance(
    library: &CircuitLibrary,
    family: &str,
    [hidden, ffn, head_dim, vocab]: [i64; 4],
) -> Instance {
    let mut flat = FlatMap::new();
    flat.insert("model_type".into(), Scalar::Str(family.into()));
    let act = match family.starts_with("gemma") {
        true => "gelu_pytorch_tanh",
        false => "silu",
    };
    flat.insert("hidden_act".into(), Scalar::Str(act.into()));
    flat.insert("rms_norm_eps".into(), Scalar::Float(1e-6));
    for (key, value) in [
        ("vocab_size", vocab),
        ("hidden_size", hidden),
        ("intermediate_size", ffn),
        ("num_hidden_layers", 2),
        ("num_attention_heads", 4),
        ("num_key_value_heads", 2),
        ("head_dim", head_dim),
        ("max_position_embeddings", 512),
        ("rope_theta", 10_000),
    ] {
        flat.insert(key.into(), Scalar::Int(value));
    }
    if family == "mistral" {
        flat.insert("sliding_window".into(), Scalar::Int(100));
    }
    if family == "gemma3_text" {
        flat.insert("sliding_window_pattern".into(), Scalar::Int(2));
    }
    if ["phi3", "olmo2"].contains(&family) {
        flat.remove("head_dim");
        flat.insert("num_attention_heads".into(), Scalar::Int(hidden / head_dim));
        let kv_heads = (hidden / head_dim / 2).max(1);
        flat.insert("num_key_value_heads".into(), Scalar::Int(kv_heads));
    }
    instantiated(library, &flat)
}

fn instantiated(library: &CircuitLibrary, flat: &FlatMap) -> Instance {
    let input = ConfigInput {
        flat,
        source: Source::Hf,
        nulls: None,
        tensors: None,
        accept: &[],
    };
    library.instantiate(&input).unwrap()
}

/// Checkpoints of families with experts, latent attention or recurrent layers: their fixtures' configurations, and the format
/// of the experts' matrices where it is another than that of the rest.
const FIXTURES: [(&str, Option<Elem>); 9] = [
    ("qwen3-moe", None),
    ("mixtral", None),
    ("gpt-oss", None),
    ("gpt-oss-mxfp4", Some(Elem::Mxfp4)),
    ("deepseek-v3", None),
    ("qwen3-next", None),
    ("qwen3-5", None),
    ("mamba2", None),
    ("nemotron-h", None),
];

fn of_fixture(library: &CircuitLibrary, name: &str) -> Instance {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tiny");
    let text = std::fs::read(root.join(name).join("config.json")).unwrap();
    let document = json::parse(&text, &json::JsonLimits::default()).unwrap();
    let flat = flatten::flatten_json(&document).unwrap();
    instantiated(library, &flat)
}

/// Formats of a fixture's weights: `weights`, but for stacks of matrices.
fn formats_of(
    instance: &Instance,
    weights: Elem,
    experts: Option<Elem>,
) -> BTreeMap<WeightKey, Elem> {
    let mut formats = instance.uniform_formats(weights);
    let stacks = instance.weights().iter().filter(|w| w.shape.len() == 3);
    let stacks: Vec<_> = stacks
        .filter_map(|w| Some((w.key.clone(), experts?)))
        .collect();
    formats.extend(stacks);
    formats
}

fn plan(
    library: &CircuitLibrary,
    instance: &Instance,
    class: &str,
    (weights, stored): (Elem, Option<Elem>),
    kv: Elem,
    fuse: bool,
) -> Plan {
    let mut formats = instance.uniform_formats(weights);
    let mut from = BTreeMap::new();
    if fp8::scales(weights, 1).is_some() {
        // Checkpoints keep vectors, tables and the head as they are.
        for weight in instance.weights() {
            if weight.key.layer.is_none() || weight.shape.len() == 1 {
                formats.insert(weight.key.clone(), Elem::BF16);
            } else if let Some(stored) = stored {
                from.insert(weight.key.clone(), stored);
            }
        }
    }
    planned(library, instance, class, &formats, &from, kv, fuse)
}

fn planned(
    library: &CircuitLibrary,
    instance: &Instance,
    class: &str,
    formats: &BTreeMap<WeightKey, Elem>,
    stored: &BTreeMap<WeightKey, Elem>,
    kv: Elem,
    fuse: bool,
) -> Plan {
    let request = PlanRequest {
        class,
        device: None,
        formats,
        stored,
        values: &BTreeMap::new(),
        kv: &kv.into(),
        limits: LIMITS,
        kv_blocks: 64,
        windows: &[],
        snapshots: 0,
        checkpoint: "test",
        fuse,
    };
    library.plan(instance, &request).unwrap()
}

/// Classes that are compiled from the tree and serve circuits, with the points that they have code for.
fn classes() -> Vec<(String, BTreeSet<String>)> {
    let tree = Tree::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels"));
    let compiled = tree
        .classes()
        .unwrap()
        .into_iter()
        .filter(|c| c.target == "cuda");
    compiled
        .map(|class| {
            let points = tree.resolve(&class.name, None).unwrap().points;
            (class.name, points.into_keys().collect())
        })
        .collect()
}

#[test]
fn every_family_of_the_tree_is_planned_here() {
    let library = library();
    let fixtures = FIXTURES.map(|(name, _)| of_fixture(&library, name).family().to_owned());
    let planned = models().map(|(name, shape)| instance(&library, name, shape).family().to_owned());
    let planned: BTreeSet<String> = planned.chain(fixtures).collect();
    let all: BTreeSet<String> = library.families().map(str::to_owned).collect();
    assert_eq!(planned, all);
}

#[test]
fn plans_have_their_kernels_and_kernels_have_a_plan() {
    const PLAIN: [Elem; 3] = [Elem::F32, Elem::F16, Elem::BF16];
    let mut formats: Vec<(Elem, Option<Elem>)> = PLAIN.map(|e| (e, None)).into();
    for fp8 in [Elem::F8Row, Elem::F8Block] {
        formats.push((fp8, None));
        formats.extend(PLAIN.map(|stored| (fp8, Some(stored))));
    }
    let library = library();
    for (class, code) in classes() {
        // What benchmarks and the runtime itself launch beside a plan.
        let instruments = ["read/xor", "stamp/clock", "trap/now", "spin/flag"];
        let mut used = BTreeSet::from(instruments.map(str::to_owned));
        let mut note = |family: &str, plan: &Plan| {
            let launched = plan.groups.iter().flat_map(|g| &g.points).map(|(_, id)| id);
            let parts = || plan.weights.iter().flat_map(|w| &w.parts);
            let loaded = parts()
                .map(|p| &p.pack)
                .chain(parts().filter_map(|p| p.fill.as_ref()));
            for id in launched.chain(loaded) {
                assert!(
                    code.contains(id.as_str()),
                    "{class}, {family}: {id} has no code"
                );
                used.insert(id.as_str().to_owned());
            }
        };
        for (family, shape) in models() {
            let instance = instance(&library, family, shape);
            for weights in formats.clone() {
                let pools = metrale_core::kv::FORMATS.into_iter();
                for (kv, fuse) in pools.flat_map(|kv| [(kv, true), (kv, false)]) {
                    note(
                        family,
                        &plan(&library, &instance, &class, weights, kv, fuse),
                    );
                }
            }
        }
        for (name, experts) in FIXTURES {
            let instance = of_fixture(&library, name);
            for (weights, kv) in PLAIN.into_iter().flat_map(|w| PLAIN.map(|kv| (w, kv))) {
                let formats = formats_of(&instance, weights, experts);
                let none = BTreeMap::new();
                let plan = planned(&library, &instance, &class, &formats, &none, kv, true);
                note(name, &plan);
            }
        }
        assert_eq!(used, code, "{class}: kernels that no plan launches");
    }
}

/// Bound arguments are checked on the device against the registry; that it says what the plan says is checked here.
#[test]
fn plans_give_each_kernel_the_arguments_that_it_declares() {
    let library = library();
    for target in metrale_kernels::targets()
        .iter()
        .filter(|t| t.id.is_baseline())
    {
        let formats = [Elem::BF16, Elem::F8Row, Elem::F8Block];
        for ((family, shape), weights) in models().flat_map(|c| formats.map(|f| (c, f))) {
            let instance = instance(&library, family, shape);
            let plan = plan(
                &library,
                &instance,
                target.id.hw,
                (weights, None),
                Elem::BF16,
                true,
            );
            arguments_match(target, &plan);
        }
        for (name, experts) in FIXTURES {
            let instance = of_fixture(&library, name);
            let formats = formats_of(&instance, Elem::BF16, experts);
            let none = BTreeMap::new();
            let class = target.id.hw;
            let plan = planned(
                &library,
                &instance,
                class,
                &formats,
                &none,
                Elem::BF16,
                true,
            );
            arguments_match(target, &plan);
        }
    }
}

/// Arguments of each launch against the declaration of its points, and each buffer against the bytes that its kernel needs.
fn arguments_match(target: &metrale_kernels::Target, plan: &Plan) {
    use metrale_core::{Arg, ArgDecl};
    for group in &plan.groups {
        for (_, id) in &group.points {
            let point = target.point(id.as_str()).unwrap();
            assert_eq!(point.args.len(), group.args.len(), "{id}");
            for (decl, arg) in point.args.iter().zip(&group.args) {
                let same = match (decl, arg) {
                    (ArgDecl::Buf { access: a, .. }, Arg::Buf { access: b, .. }) => a == b,
                    (ArgDecl::U32(_), Arg::U32(_))
                    | (ArgDecl::F32(_), Arg::F32(_))
                    | (ArgDecl::Step, Arg::Step) => true,
                    _ => false,
                };
                assert!(same, "{id}: {decl:?} and {arg:?}");
            }
            let limits = Limits(&group.args);
            for (index, need) in point.needs {
                let Arg::Buf { span, .. } = group.args[*index] else {
                    panic!("{id}: needs of what is no buffer")
                };
                let (span, need) = (plan.memory.span(span), need.eval(&limits).unwrap());
                assert!(
                    span.bytes >= need,
                    "{id}: {} has {} of {need} bytes",
                    span.name,
                    span.bytes
                );
            }
        }
    }
}

/// A launch's own numbers, and the limits of plans.
struct Limits<'a>(&'a [metrale_core::Arg]);

impl Values for Limits<'_> {
    fn arg(&self, index: u8) -> u32 {
        match self.0[usize::from(index)] {
            metrale_core::Arg::U32(v) => v,
            _ => panic!("argument {index} is no u32"),
        }
    }

    fn var(&self, var: Var) -> u32 {
        match var {
            Var::Rows => LIMITS.rows,
            Var::LogitsRows => LIMITS.logits_rows,
            Var::UnitRows(arg) if self.arg(arg) == 0 => LIMITS.rows,
            Var::UnitRows(_) => LIMITS.logits_rows,
            Var::Slots => LIMITS.slots,
            Var::Processors => 132,
        }
    }
}
