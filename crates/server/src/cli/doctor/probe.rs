// SPDX-License-Identifier: MIT OR Apache-2.0
//! How doctor looks at the machine.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

/// The machine, as far as doctor asks.
pub(super) trait Probe {
    /// A file's text.
    fn read(&self, path: &Path) -> Option<String>;
    /// Bytes of memory that can be taken, the control group's limit counted in.
    fn memory(&self) -> Option<u64>;
    /// A program's first line of output, if it ran and succeeded.
    fn run(&self, program: &str, arguments: &[&str]) -> Option<String>;
    /// Whether a port of 127.0.0.1 can be listened on.
    fn listen(&self, port: u16) -> io::Result<()>;
    /// Makes a folder and a file in it, and removes the file again.
    fn write(&self, folder: &Path) -> io::Result<()>;
    /// Cores that the process may use.
    fn cores(&self) -> usize;
    /// The processor's features that kernels look for, with whether it has them.
    fn features(&self) -> Vec<(&'static str, bool)>;

    /// The instruction sets that the kernels can run with here, the best last.
    fn kernel_paths(&self) -> Vec<&'static str>;
}

/// The real one.
pub(super) struct System;

impl Probe for System {
    fn read(&self, path: &Path) -> Option<String> {
        fs::read_to_string(path).ok()
    }

    fn memory(&self) -> Option<u64> {
        crate::assembly::available_memory()
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Option<String> {
        let output = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .ok()?;
        let text = String::from_utf8_lossy(&output.stdout)
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned();
        output.status.success().then_some(text)
    }

    fn listen(&self, port: u16) -> io::Result<()> {
        TcpListener::bind(("127.0.0.1", port)).map(|_| ())
    }

    fn write(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let file = folder.join(format!(".doctor{}", std::process::id()));
        fs::write(&file, b"x")?;
        fs::remove_file(&file)
    }

    fn cores(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    #[cfg(target_arch = "x86_64")]
    fn features(&self) -> Vec<(&'static str, bool)> {
        vec![
            ("avx2", std::is_x86_feature_detected!("avx2")),
            ("fma", std::is_x86_feature_detected!("fma")),
            ("f16c", std::is_x86_feature_detected!("f16c")),
        ]
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn features(&self) -> Vec<(&'static str, bool)> {
        Vec::new()
    }

    fn kernel_paths(&self) -> Vec<&'static str> {
        metrale_gpu_runtime::Isa::available()
            .map(metrale_gpu_runtime::Isa::name)
            .collect()
    }
}
