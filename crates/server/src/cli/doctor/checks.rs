// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checks of `met doctor`.

use std::path::Path;

use indicatif::HumanBytes;
use metrale_gpu_runtime::CudaBackend;

use super::probe::Probe;
use crate::cli::machine::Machine;
use crate::recipe;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// As it should be.
    Good,
    /// It works, and could be better.
    Warning,
    /// The default recipe cannot be served.
    Bad,
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) state: State,
    pub(super) found: String,
    pub(super) remedy: Option<String>,
}

impl Check {
    fn good(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            state: State::Good,
            found: found.into(),
            remedy: None,
        }
    }

    fn other(
        name: &'static str,
        state: State,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            name,
            state,
            found: found.into(),
            remedy: Some(remedy.into()),
        }
    }
}

/// Every check, in the order of the report.
pub(super) fn all(machine: &Machine, probe: &dyn Probe, port: u16) -> Vec<Check> {
    let model = model(machine);
    let fetched = model.state == State::Good;
    vec![
        cpu(probe, machine.levers.cpu_isa()),
        cores(probe),
        memory(probe),
        gpu(probe),
        kernels(probe),
        folder(machine, probe),
        hub(machine),
        model,
        python(machine, probe, fetched),
        listening(probe, port),
    ]
}

/// `forced` is METRALE_CPU_ISA, which takes the choice of kernels away.
fn cpu(probe: &dyn Probe, forced: Option<&str>) -> Check {
    let features = probe.features();
    let paths = probe.kernel_paths();
    let list = |has: bool| {
        let which = features.iter().filter(|(_, h)| *h == has);
        which.map(|(n, _)| *n).collect::<Vec<_>>().join(" ")
    };
    let arch = std::env::consts::ARCH;
    if let Some(forced) = forced {
        let found = format!("{arch}; METRALE_CPU_ISA={forced} forces a kernel path");
        let (state, found, remedy) = match (paths.contains(&forced), paths.last()) {
            (true, Some(best)) if *best == forced => {
                return Check::good("processor", format!("{found}, the best here"));
            }
            (true, best) => {
                let best = best.copied().unwrap_or_default();
                let remedy = format!("unset METRALE_CPU_ISA to run {best}; answers are the same");
                (State::Warning, found, remedy)
            }
            (false, _) => {
                let found = format!("{found} that this processor lacks");
                let remedy = format!("unset METRALE_CPU_ISA, or give one of {}", paths.join(" "));
                (State::Bad, found, remedy)
            }
        };
        return Check::other("processor", state, found, remedy);
    }
    if features.iter().all(|(_, has)| *has) && !features.is_empty() {
        return Check::good(
            "processor",
            format!(
                "{arch} with {}; kernel paths {}, the last is taken",
                list(true),
                paths.join(" ")
            ),
        );
    }
    let lacks = if features.is_empty() {
        "no vector path for it".to_owned()
    } else {
        format!("lacks {}", list(false))
    };
    Check::other(
        "processor",
        State::Warning,
        format!("{arch}, {lacks}"),
        "the portable kernels run, several times slower; answers are the same",
    )
}

fn cores(probe: &dyn Probe) -> Check {
    match probe.cores() {
        1 => Check::other(
            "cores",
            State::Warning,
            "1",
            "more cores or a larger CPU quota make answers faster",
        ),
        n => Check::good("cores", n.to_string()),
    }
}

/// Where NVIDIA's driver says its version.
const NVIDIA: &str = "/proc/driver/nvidia/version";

fn memory(probe: &dyn Probe) -> Check {
    let Some(free) = probe.memory() else {
        return Check::other(
            "memory",
            State::Warning,
            "unknown",
            "this system does not say what memory is free",
        );
    };
    // Weights, a pool for one full context, and room to work.
    let recipe = recipe::find(recipe::DEFAULT).ok().flatten();
    let least = recipe.map_or(0, |r| r.size) + (512 << 20);
    let found = format!(
        "{} free; {} needs at least {}, for its weights and one full context; a server gives up to a quarter of what is free to its KV cache (--kv-cache-bytes)",
        HumanBytes(free),
        recipe::DEFAULT,
        HumanBytes(least)
    );
    if free >= least {
        Check::good("memory", found)
    } else {
        Check::other(
            "memory",
            State::Bad,
            found,
            "free memory, or raise the memory limit of the container",
        )
    }
}

fn gpu(probe: &dyn Probe) -> Check {
    let version = probe.read(Path::new(NVIDIA));
    let line = version
        .as_deref()
        .and_then(|t| t.lines().next())
        .map(|l| l.trim().to_owned());
    match line {
        Some(line) => Check::good("gpu", line),
        None => Check::good("gpu", "no NVIDIA driver: the processor computes"),
    }
}

/// A build without GPU kernels is whole: it serves on the processor. Beside a GPU it is hardly what was wanted.
fn kernels(probe: &dyn Probe) -> Check {
    match CudaBackend::kernels() {
        Ok(classes) => Check::good("kernels", format!("cpu, {classes}")),
        Err(status) => {
            let found = format!("cpu; those of GPUs {status}");
            match probe.read(Path::new(NVIDIA)) {
                None => Check::good("kernels", found),
                Some(_) => Check::other(
                    "kernels",
                    State::Warning,
                    found,
                    "the processor computes; for the GPU build with a CUDA compiler (docs/HARDWARE.md)",
                ),
            }
        }
    }
}

fn folder(machine: &Machine, probe: &dyn Probe) -> Check {
    let home = machine.home();
    match probe.write(&home) {
        Ok(()) => Check::good("folder", home.display().to_string()),
        Err(e) => Check::other(
            "folder",
            State::Bad,
            format!("{}: {e}", home.display()),
            "set METRALE_HOME to a folder that can be written",
        ),
    }
}

fn hub(machine: &Machine) -> Check {
    let options = machine.hub_options();
    let token = if options.token.is_some() {
        ", with a token"
    } else {
        ""
    };
    if options.offline {
        return Check::other(
            "hub",
            State::Warning,
            "the network is switched off",
            "unset METRALE_OFFLINE and HF_HUB_OFFLINE to fetch models",
        );
    }
    Check::good(
        "hub",
        format!(
            "{}{token}, cache {}",
            options.endpoint,
            options.cache.display()
        ),
    )
}

fn model(machine: &Machine) -> Check {
    let found = || {
        let hub = machine.hub().ok()?;
        recipe::find(recipe::DEFAULT)
            .ok()??
            .local(&machine.home(), &hub)
            .ok()?
    };
    match found() {
        Some(path) => Check::good("model", path.display().to_string()),
        None => Check::other(
            "model",
            State::Warning,
            format!("{} is not fetched", recipe::DEFAULT),
            "met pull (met serve does it too)",
        ),
    }
}

/// pip is the last source of a recipe: it matters only while the model is not here.
fn python(machine: &Machine, probe: &dyn Probe, fetched: bool) -> Check {
    for python in &machine.pip.pythons {
        if let Some(version) = python
            .to_str()
            .and_then(|p| probe.run(p, &["-m", "pip", "--version"]))
        {
            let short = version.split(" from ").next().unwrap_or_default();
            return Check::good("python", short.to_owned());
        }
    }
    if fetched {
        return Check::good("python", "no pip; it is not needed, the model is here");
    }
    Check::other(
        "python",
        State::Warning,
        "no python3 with pip",
        "install python3-pip, unless the hub can be reached: it is the other source of the default recipe",
    )
}

fn listening(probe: &dyn Probe, port: u16) -> Check {
    match probe.listen(port) {
        Ok(()) => Check::good("port", format!("{port} is free")),
        Err(e) => Check::other(
            "port",
            State::Bad,
            format!("{port}: {e}"),
            "end what listens there, or choose another: met serve --port N",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::console::Console;
    use std::io;
    use std::sync::Arc;

    struct Fake {
        memory_kib: u64,
        fails: bool,
    }

    impl Probe for Fake {
        fn read(&self, path: &Path) -> Option<String> {
            let driver = self.fails && path == Path::new(NVIDIA);
            driver.then(|| "NVRM version: 580.159.04".to_owned())
        }
        fn memory(&self) -> Option<u64> {
            Some(self.memory_kib << 10)
        }
        fn run(&self, program: &str, _: &[&str]) -> Option<String> {
            (!self.fails && program == "python3")
                .then(|| "pip 24.0 from /x/pip (python 3.11)".into())
        }
        fn listen(&self, _: u16) -> io::Result<()> {
            if self.fails {
                Err(io::ErrorKind::AddrInUse.into())
            } else {
                Ok(())
            }
        }
        fn write(&self, _: &Path) -> io::Result<()> {
            if self.fails {
                Err(io::ErrorKind::PermissionDenied.into())
            } else {
                Ok(())
            }
        }
        fn cores(&self) -> usize {
            if self.fails { 1 } else { 2 }
        }
        fn features(&self) -> Vec<(&'static str, bool)> {
            vec![("avx2", true), ("fma", !self.fails)]
        }
        fn kernel_paths(&self) -> Vec<&'static str> {
            vec!["portable", "avx2"]
        }
    }

    fn states(fake: &Fake) -> Vec<(&'static str, State)> {
        let variables = [("HOME".into(), "/nonexistent".into())];
        let machine = Machine::new(
            variables,
            Arc::new(Console::new(
                Box::new(io::sink()),
                Box::new(io::sink()),
                false,
            )),
        )
        .unwrap();
        let checks = all(&machine, fake, 8000);
        assert!(
            checks
                .iter()
                .all(|c| (c.state == State::Good) == c.remedy.is_none()),
            "{checks:?}"
        );
        checks.into_iter().map(|c| (c.name, c.state)).collect()
    }

    #[test]
    fn a_sound_machine() {
        let bad: Vec<_> = states(&Fake {
            memory_kib: 8 << 20,
            fails: false,
        })
        .into_iter()
        .filter(|(_, s)| *s != State::Good)
        .collect();
        assert_eq!(bad, [("model", State::Warning)]);
    }

    #[test]
    fn a_forced_instruction_set_is_named() {
        let fake = Fake {
            memory_kib: 8 << 20,
            fails: false,
        };
        for (forced, state, words) in [
            ("avx2", State::Good, "the best here"),
            ("portable", State::Warning, "to run avx2"),
            ("amx", State::Bad, "one of portable avx2"),
        ] {
            let check = cpu(&fake, Some(forced));
            assert_eq!(check.state, state, "{check:?}");
            let text = format!("{} {}", check.found, check.remedy.unwrap_or_default());
            assert!(
                text.contains(&format!("METRALE_CPU_ISA={forced}")),
                "{text}"
            );
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn the_memory_line_says_that_it_is_the_least() {
        let fake = |memory_kib| Fake {
            memory_kib,
            fails: false,
        };
        let check = memory(&fake(8 << 20));
        for words in ["8.00 GiB free", "at least", "--kv-cache-bytes"] {
            assert!(check.found.contains(words), "{}", check.found);
        }
        assert_eq!(memory(&fake(512 << 10)).state, State::Bad);
    }

    #[test]
    fn every_fault_has_a_remedy() {
        let found = states(&Fake {
            memory_kib: 1000,
            fails: true,
        });
        let expect = |name, state| assert!(found.contains(&(name, state)), "{name}: {found:?}");
        if CudaBackend::kernels().is_err() {
            expect("kernels", State::Warning);
        }
        for name in ["memory", "folder", "port"] {
            expect(name, State::Bad);
        }
        for name in ["processor", "cores", "model", "python"] {
            expect(name, State::Warning);
        }
    }
}
