// SPDX-License-Identifier: MIT OR Apache-2.0
//! fp8 on the classes: which points a layer takes, and where plain ones take their place.

use metrale_core::Elem;

use crate::common::{TINY_LLAMA, flat, hf, library, request};

/// Points of the first layer of a small llama with fp8 layers, by the first of each group.
fn layer(class: &str, changes: &[(&str, &str)], fp8: Elem, fuse: bool) -> Vec<String> {
    let mut text = TINY_LLAMA.to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    let instance = hf(&flat(&text)).unwrap();
    let mut formats = instance.uniform_formats(Elem::BF16);
    for weight in instance.weights() {
        if weight.key.layer.is_some() && weight.shape.len() > 1 {
            formats.insert(weight.key.clone(), fp8);
        }
    }
    let mut request = request(&formats);
    (request.class, request.fuse) = (class, fuse);
    let plan = library().plan(&instance, &request).unwrap();
    let of_layer = plan.groups.iter().filter(|g| g.layer == Some(0));
    of_layer.map(|g| g.points[0].1.to_string()).collect()
}

const FAST: [(&str, &str); 3] = [
    ("hidden_size = 64", "hidden_size = 256"),
    ("intermediate_size = 96", "intermediate_size = 128"),
    ("head_dim = 16", "head_dim = 64"),
];

#[test]
fn what_a_fused_kernel_rounds_to_bf16_is_quantized_from_there() {
    for (fp8, name) in [(Elem::F8Row, "f8_row"), (Elem::F8Block, "f8_block")] {
        let points = layer("hopper", &FAST, fp8, true);
        let want = [
            format!("rmsnorm_{name}/lanes512"),
            format!("linear/{name}_n8"),
            "rope_kv_write/bf16".to_owned(),
            "attention_bf16/split_hd64".to_owned(),
            format!("quantize_{name}/bf16"),
            format!("linear_add/{name}_n8"),
            format!("rmsnorm_{name}/lanes512"),
            format!("linear_swiglu/{name}_n8"),
            format!("quantize_{name}/bf16"),
            format!("linear_add/{name}_n8"),
        ];
        assert_eq!(points, want);
        // Norms come in f32 there, and are quantized as they are.
        let unfused = layer("hopper", &FAST, fp8, false);
        for part in ["quantize_{}/f32", "to_bf16/vec", "quantize_{}/bf16"] {
            assert!(unfused.contains(&part.replace("{}", name)), "{unfused:?}");
        }
    }
}

#[test]
fn rows_that_no_tile_holds_take_plain_points() {
    // Columns that are no multiple of 128; and key heads whose rows would share a scale with those of others.
    for class in ["gb10", "hopper"] {
        let points = layer(class, &[], Elem::F8Row, true);
        let linears = points.iter().filter(|p| p.starts_with("linear"));
        assert!(linears.clone().all(|p| p == "linear/f8_row"), "{points:?}");
        assert_eq!(linears.count(), 4);
    }
    let narrow = [
        ("hidden_size = 64", "hidden_size = 128"),
        ("intermediate_size = 96", "intermediate_size = 128"),
        ("head_dim = 16", "head_dim = 6"),
    ];
    let qkv = |fp8| {
        layer("hopper", &narrow, fp8, true)
            .into_iter()
            .find(|p| p.starts_with("linear/"))
    };
    assert_eq!(qkv(Elem::F8Row).unwrap(), "linear/f8_row_n8");
    assert_eq!(qkv(Elem::F8Block).unwrap(), "linear/f8_block");
}
