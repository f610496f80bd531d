// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first trial of a device: a small llama-like chain, recorded and replayed on it and on the host.
//!
//! ```text
//! seam_trial            checks and times on CUDA device 0; exit status 1 if a check fails
//! seam_trial --quick    one small chain, no times, no decorator (for compute-sanitizer)
//! seam_trial --host     the same checks with the host in the place of the device: no GPU needed
//! seam_trial --break    also loses the context on purpose, at the end
//! ```
//! Checks: every tap and every row of logits has the host's bits; logits lie within a bound of a reference in f64; rows are
//! equal alone, in a crowd and in chunks of any size; outputs, activations and the KV pool are poisoned with NaN before;
//! sampling equals the host's; bad step blocks are refused and the device goes on.
#![allow(
    unreachable_pub,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used
)]

mod chain;
mod checks;
mod model;
mod rig;
mod times;

use metrale_core::Elem;
use metrale_gpu_runtime::{
    Checked, CudaBackend, CudaOptions, GpuBackend, HostBackend, HostOptions,
};

use model::Shape;

fn main() {
    let flag = |name: &str| std::env::args().any(|a| a == name);
    let host = HostBackend::new(&HostOptions::default()).expect("threads");
    let cuda = (!flag("--host")).then(|| match CudaBackend::open(&CudaOptions::default()) {
        Ok(cuda) => cuda,
        Err(e) => {
            println!("no CUDA device: {e}");
            std::process::exit(2);
        }
    });
    let device: &dyn GpuBackend = match &cuda {
        Some(cuda) => cuda,
        None => &host,
    };
    println!("device: {:?}", device.device());
    println!("kernels: {}", metrale_kernels::STATUS);

    let mut report = checks::Report::default();
    let shapes: &[(Shape, Elem)] = if flag("--quick") {
        &[(model::ODD, Elem::BF16)]
    } else {
        &[
            (model::PLAIN, Elem::F32),
            (model::PLAIN, Elem::BF16),
            (model::ODD, Elem::F32),
            (model::ODD, Elem::F16),
        ]
    };
    for (shape, kv) in shapes {
        checks::run(device, &host, shape, *kv, flag("--quick"), &mut report);
    }
    if let (Some(_), false) = (&cuda, flag("--quick")) {
        println!("\n== under Checked: red zones, poison, nothing written outside what is declared");
        let checked = Checked::new(CudaBackend::open(&CudaOptions::default()).expect("opened"));
        checks::run(&checked, &host, &model::ODD, Elem::F32, true, &mut report);
    }
    if let (Some(cuda), false) = (&cuda, flag("--quick")) {
        times::run(cuda);
    }
    if let (Some(cuda), true) = (&cuda, flag("--break")) {
        checks::lose(cuda, &mut report);
    }
    report.print();
    std::process::exit(i32::from(report.failed()));
}
