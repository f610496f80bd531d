// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dequantize` against the `gguf` library's values (tests/goldens/README.md).

use metrale_core::Elem;
use metrale_core::numeric::dequantize;
use safetensors::SafeTensors;

/// The formats that the goldens hold, by the name they have there.
const FORMATS: &[(&str, Elem)] = &[
    ("F16", Elem::F16),
    ("BF16", Elem::BF16),
    ("Q8_0", Elem::Q8_0),
    ("Q4_0", Elem::Q4_0),
    ("Q4_1", Elem::Q4_1),
    ("Q5_0", Elem::Q5_0),
    ("Q5_1", Elem::Q5_1),
    ("Q2_K", Elem::Q2K),
    ("Q3_K", Elem::Q3K),
    ("Q4_K", Elem::Q4K),
    ("Q5_K", Elem::Q5K),
    ("Q6_K", Elem::Q6K),
    ("IQ4_NL", Elem::Iq4Nl),
    ("IQ4_XS", Elem::Iq4Xs),
    ("MXFP4", Elem::Mxfp4),
];

#[test]
fn every_format_equals_the_gguf_library() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/goldens/dequant/gguf_blocks.safetensors"
    );
    let bytes = std::fs::read(path).unwrap();
    let goldens = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(
        goldens.names().len(),
        2 * FORMATS.len(),
        "a format of the goldens is not tested"
    );
    for (name, elem) in FORMATS {
        let raw = goldens.tensor(&format!("{name}.raw")).unwrap();
        let want: Vec<f32> = goldens
            .tensor(&format!("{name}.f32"))
            .unwrap()
            .data()
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect();
        assert!(want.len() >= 512, "{name}");
        let mut got = vec![f32::NAN; want.len()];
        dequantize(*elem, raw.data(), &mut got).unwrap();
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!(
                got == want || got.is_nan() && want.is_nan(),
                "{name} {i}: {got} {want}"
            );
        }
    }
}

#[test]
fn plain_formats_are_exact() {
    let values = [0.0f32, -1.5, 3.0e-40, f32::MAX, f32::NEG_INFINITY];
    let f32_bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let f64_bytes: Vec<u8> = values
        .iter()
        .flat_map(|v| f64::from(*v).to_le_bytes())
        .collect();
    let mut out = [0.0; 5];
    dequantize(Elem::F32, &f32_bytes, &mut out).unwrap();
    assert_eq!(out, values);
    dequantize(Elem::F64, &f64_bytes, &mut out).unwrap();
    assert_eq!(out, values);
}
