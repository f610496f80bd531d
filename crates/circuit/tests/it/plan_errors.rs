// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plans that cannot be: each error names what is missing and what to do.

use metrale_circuit::{CircuitLibrary, PlanError, PlanRequest};
use metrale_core::{Elem, StepLimits};

use crate::common::{KV_Q8_0, TINY_LLAMA, flat, hf, library, request};

fn error(elem: Elem, change: impl FnOnce(&mut PlanRequest<'_>)) -> PlanError {
    let instance = hf(&flat(TINY_LLAMA)).unwrap();
    let formats = instance.uniform_formats(elem);
    let mut request = request(&formats);
    change(&mut request);
    library().plan(&instance, &request).unwrap_err()
}

#[test]
fn unknown_class_and_device() {
    let e = error(Elem::BF16, |r| r.class = "tpu").to_string();
    assert!(e.contains("`tpu`") && e.contains("cpu"), "{e}");
    let e = error(Elem::BF16, |r| r.device = Some("h200-sxm")).to_string();
    assert!(
        e.contains("class cpu has no device `h200-sxm`") && e.contains("cpu-generic"),
        "{e}"
    );
}

#[test]
fn the_first_missing_point_is_named_with_what_there_is() {
    let PlanError::MissingPoint {
        class,
        family,
        op,
        wanted,
        has,
    } = error(Elem::F8E4M3, |_| {})
    else {
        panic!("another error")
    };
    assert_eq!(
        (class.as_str(), family.as_str(), op.as_str()),
        ("cpu", "embed", "embed.res")
    );
    assert!(wanted.contains("table = f8_e4m3"), "{wanted}");
    assert!(has.contains(&"embed/q4_1".to_owned()));
    let e = error(Elem::BF16, |r| r.kv = &KV_Q8_0);
    assert!(
        matches!(&e, PlanError::MissingPoint { family, .. } if family == "kv_write"),
        "{e}"
    );
    assert!(e.to_string().contains("k = q8_0"), "{e}");
}

/// The built-in tree, but that the NVIDIA classes have no `conv1d`.
fn without_conv1d() -> CircuitLibrary {
    let path = "gb10/KERNEL_FAMILIES.toml";
    let files: Vec<(&str, &str)> = metrale_kernel_tree::files().collect();
    let (_, text) = files.iter().find(|(p, _)| *p == path).unwrap();
    let points = text.split("[[point]]").filter(|p| !p.contains("\"conv1d/"));
    let changed = points.collect::<Vec<_>>().join("[[point]]");
    assert_ne!(changed, *text);
    let others = files.into_iter().filter(|(p, _)| *p != path);
    CircuitLibrary::new(others.chain([(path, changed.as_str())])).unwrap()
}

/// Where a class lacks an op, no other format helps: the error says which op of which model, and who has it.
#[test]
fn an_op_that_a_class_lacks_is_named_with_the_classes_that_have_it() {
    let config = "model_type = \"mamba2\"\nvocab_size = 320\nhidden_size = 64\nnum_hidden_layers = 1\n\
                  num_heads = 4\nhead_dim = 32\nstate_size = 16\nn_groups = 1";
    let instance = hf(&flat(config)).unwrap();
    let formats = instance.uniform_formats(Elem::BF16);
    let mut request = request(&formats);
    request.class = "hopper";
    let e = without_conv1d().plan(&instance, &request).unwrap_err();
    let want = PlanError::NoKernel {
        class: "hopper".into(),
        op: "L0.conv1d.convolved".into(),
        model: "mamba2".into(),
        classes: vec!["cpu".into()],
    };
    assert_eq!(e, want);
    let text = e.to_string();
    for words in [
        "class hopper",
        "L0.conv1d.convolved",
        "family mamba2",
        "(cpu)",
    ] {
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn formats_that_do_not_fit() {
    // Norm weights in a block format: no vector pack.
    let e = error(Elem::Q8_0, |_| {});
    assert!(
        matches!(
            &e,
            PlanError::NoPack {
                format: Elem::Q8_0,
                ..
            }
        ),
        "{e}"
    );
    // Rows of 64 are no whole number of blocks of 256.
    let e = error(Elem::Q6K, |_| {});
    assert!(
        matches!(
            &e,
            PlanError::Blocks {
                cols: 64,
                format: Elem::Q6K,
                ..
            }
        ),
        "{e}"
    );
    let instance = hf(&flat(TINY_LLAMA)).unwrap();
    let mut formats = instance.uniform_formats(Elem::BF16);
    let key = instance
        .weights()
        .iter()
        .find(|w| w.key.name == "v_proj")
        .unwrap()
        .key
        .clone();
    formats.remove(&key);
    let e = library().plan(&instance, &request(&formats)).unwrap_err();
    assert_eq!(e, PlanError::NoFormat { key });
}

#[test]
fn limits_of_zero_and_beyond_addresses() {
    let zero = StepLimits {
        rows: 0,
        ..crate::common::LIMITS
    };
    assert_eq!(
        error(Elem::BF16, |r| r.limits = zero),
        PlanError::ZeroLimit { what: "rows" }
    );
    let e = error(Elem::BF16, |r| r.kv_blocks = 0);
    assert_eq!(e, PlanError::ZeroLimit { what: "kv_blocks" });
    let e = error(Elem::BF16, |r| r.kv_blocks = u64::MAX);
    assert!(
        matches!(&e, PlanError::TooLarge { what } if what == "L0.k"),
        "{e}"
    );
    let e = error(Elem::BF16, |r| r.kv_blocks = 1 << 44);
    assert!(
        matches!(&e, PlanError::TooLarge { what } if what == "the kv arena"),
        "{e}"
    );
}
