// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fusions: which are taken, and that the digest sees only those that change bits.

use crate::common::{TINY_LLAMA, flat, hf, library, request};
use metrale_circuit::{CircuitLibrary, Plan};
use metrale_core::Elem;

fn plans(elem: Elem) -> (Plan, Plan) {
    let instance = hf(&flat(TINY_LLAMA)).unwrap();
    let mut formats = instance.uniform_formats(elem);
    for (key, format) in &mut formats {
        if key.name.ends_with("norm") {
            *format = Elem::F32;
        }
    }
    let fused = request(&formats);
    let mut unfused = fused;
    unfused.fuse = false;
    (
        library().plan(&instance, &fused).unwrap(),
        library().plan(&instance, &unfused).unwrap(),
    )
}

fn points(plan: &Plan, layer: u32) -> Vec<String> {
    let of_layer = plan.groups.iter().filter(|g| g.layer == Some(layer));
    of_layer.map(|g| g.points[0].1.to_string()).collect()
}

#[test]
fn quantized_weights_fuse_up_to_the_conversion() {
    let (fused, unfused) = plans(Elem::Q4_0);
    assert_eq!(
        points(&fused, 2),
        [
            "add_rmsnorm_quantize/a16",
            "linear/q4_0",
            "rope/f32",
            "kv_write/bf16",
            "attention/bf16",
            "quantize/a16",
            "linear/q4_0",
            "add_rmsnorm_quantize/a16",
            "linear/q4_0",
            "swiglu_quantize/a16",
            "linear/q4_0",
        ]
    );
    // The first layer has nothing to add; the head's rows are gathered, not added.
    assert_eq!(points(&fused, 0)[0], "rmsnorm_quantize/a16");
    assert_eq!(points(&unfused, 2).len(), 16);
    assert_eq!(fused.digest, unfused.digest);
    assert_eq!(fused.memory.find("L2.n1"), None);
    assert!(unfused.memory.find("L2.n1").is_some());
    // Every op of the instance is carried out by one group.
    let ops = |plan: &Plan| {
        let mut ops: Vec<_> = plan.groups.iter().flat_map(|g| g.ops.clone()).collect();
        ops.sort();
        ops
    };
    assert_eq!(ops(&fused), ops(&unfused));
}

#[test]
fn plain_weights_fuse_add_and_norm() {
    let (fused, unfused) = plans(Elem::BF16);
    assert_eq!(points(&fused, 1)[0], "add_rmsnorm/f32");
    assert_eq!(fused.digest, unfused.digest);
}

#[test]
fn a_norm_that_others_read_too_stays_visible() {
    // v in f16 reads the f32 edge beside the int16 one: the norm cannot disappear into the conversion.
    let instance = hf(&flat(TINY_LLAMA)).unwrap();
    let mut formats = instance.uniform_formats(Elem::Q4_0);
    for (key, format) in &mut formats {
        match key.name.as_str() {
            "v_proj" => *format = Elem::F16,
            name if name.ends_with("norm") => *format = Elem::F32,
            _ => {}
        }
    }
    let plan = library().plan(&instance, &request(&formats)).unwrap();
    assert_eq!(
        points(&plan, 1)[..4],
        [
            "add_rmsnorm/f32",
            "quantize/a16",
            "linear/q4_0",
            "linear/f16"
        ]
    );
    assert!(plan.memory.find("L1.n1").is_some() && plan.memory.find("L1.n1.a16").is_some());
}

#[test]
fn a_fusion_that_differs_changes_the_digest() {
    let files = metrale_kernel_tree::files().map(|(path, text)| match path {
        "cpu/FUSIONS.toml" => (path, text.replace("bit_identical", "differs")),
        _ => (path, text.to_owned()),
    });
    let other = CircuitLibrary::new(files).unwrap();
    let instance = hf(&flat(TINY_LLAMA)).unwrap();
    let formats = instance.uniform_formats(Elem::BF16);
    let digest = |library: &CircuitLibrary, fuse: bool| {
        let mut request = request(&formats);
        request.fuse = fuse;
        library.plan(&instance, &request).unwrap().digest
    };
    assert_ne!(digest(&other, true), digest(library(), true));
    assert_eq!(digest(&other, false), digest(library(), false));
}
