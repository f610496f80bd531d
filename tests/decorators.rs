// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole models on decorated backends: every launch checked, from prefill to sampling.

mod support;

use std::sync::Arc;

use metrale_gpu_runtime::{Checked, HostBackend, HostOptions};
use metrale_scheduler::{Event, Health};
use support::serving::{serve, small};
use support::{Result, fixture};

fn host() -> Result<HostBackend> {
    Ok(HostBackend::new(&HostOptions {
        threads: 2,
        ..HostOptions::default()
    })?)
}

/// Prefill in chunks, decode and a crowd, on a backend that walks launch by launch. Slow: each launch is compared with all
/// memory, so the steps are few.
#[test]
fn no_launch_of_a_whole_model_leaves_its_extents() {
    let cases = [
        ("llama", true),
        ("qwen3-tied", false),
        ("llama-gguf-q8_0", true),
        ("qwen3-gguf-q4_0", true),
    ];
    for (name, fuse) in cases {
        let (mut setup, limits) = small();
        setup.fuse = fuse;
        let model = setup
            .load_on(&fixture(name), Arc::new(Checked::new(host().unwrap())))
            .unwrap();
        // A violation is a device fault that names the launch.
        let (events, health) = serve(model, limits, 4).unwrap();
        assert_eq!(events.len(), 2, "{name}");
        assert!(
            events.iter().all(|e| matches!(e, Event::Finished { .. })),
            "{name}: {events:?}"
        );
        assert_eq!(health, Health::Serving, "{name}");
    }
}
