// SPDX-License-Identifier: MIT OR Apache-2.0
//! The benchmarks, each a plugin.

mod decode;
mod groups;
mod prefill;

use crate::options::{Need, Options};
use crate::report::Report;
use crate::target::{Step, Target, TargetError, Work};

/// One benchmark.
pub trait Plugin: Send + Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// What it measures, one line.
    fn about(&self) -> &'static str;

    /// What it will run: the context and the sequences that a model is loaded for.
    fn needs(&self, options: &Options) -> Vec<Need>;

    /// Measures, and adds to the report. `note` is told what is being measured.
    ///
    /// # Errors
    /// [`TargetError`]; what is in the report already stays.
    fn run(
        &self,
        target: &mut dyn Target,
        options: &Options,
        report: &mut Report,
        note: &mut dyn FnMut(&str),
    ) -> Result<(), TargetError>;
}

/// The benchmarks, in the order in which they run.
pub struct Registry {
    plugins: Vec<Box<dyn Plugin>>,
}

impl Registry {
    /// Those of this crate.
    #[must_use]
    pub fn builtin() -> Registry {
        Registry {
            // What looks at single launches goes first: the engine takes the model with the first answer.
            plugins: vec![
                Box::new(groups::Groups),
                Box::new(prefill::Prefill),
                Box::new(decode::Decode),
            ],
        }
    }

    /// Adds a benchmark, to run after the others. One of the same name is replaced where it stands.
    pub fn add(&mut self, plugin: Box<dyn Plugin>) {
        let same = self.plugins.iter_mut().find(|p| p.name() == plugin.name());
        match same {
            Some(old) => *old = plugin,
            None => self.plugins.push(plugin),
        }
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &dyn Plugin> {
        self.plugins.iter().map(AsRef::as_ref)
    }

    /// Those of the given names, in the registry's order; all of them if none is given.
    ///
    /// # Errors
    /// The first name that there is none of, with the names that there are.
    pub fn select(&self, names: &[String]) -> Result<Vec<&dyn Plugin>, String> {
        if let Some(name) = names.iter().find(|n| self.all().all(|p| p.name() != **n)) {
            let known: Vec<&str> = self.all().map(|p| p.name()).collect();
            return Err(format!(
                "no benchmark `{name}`; there are {}",
                known.join(", ")
            ));
        }
        let wanted = |p: &&dyn Plugin| names.is_empty() || names.iter().any(|n| n == p.name());
        Ok(self.all().filter(wanted).collect())
    }

    /// Measures the device, then runs the benchmarks of the given names.
    ///
    /// # Errors
    /// [`TargetError`]: the first, with the benchmark's name.
    pub fn run(
        &self,
        names: &[String],
        target: &mut dyn Target,
        options: &Options,
        note: &mut dyn FnMut(&str),
    ) -> Result<Report, TargetError> {
        let plugins = self.select(names).map_err(TargetError::new)?;
        let mut report = Report::new(target.about().clone(), options);
        note("what the device can do");
        report.gauges = Some(target.gauges()?);
        for plugin in plugins {
            plugin
                .run(target, options, &mut report, note)
                .map_err(|e| TargetError::new(format!("{}: {e}", plugin.name())))?;
        }
        Ok(report)
    }
}

/// Shares of the device that some work took in some time: of reading, and of operations if their peak is known.
fn shares(report: &Report, work: Work, seconds: f64) -> (f64, Option<f64>) {
    let share = |amount: u64, peak: f64| crate::stats::ratio(amount as f64 / peak, seconds);
    let Some(gauges) = &report.gauges else {
        return (0.0, None);
    };
    let operations = gauges.operations.map(|peak| share(work.operations, peak));
    (share(work.bytes, gauges.read), operations)
}

/// The work of a prompt, in the steps that the engine cuts it into.
fn prompt_work(target: &dyn Target, tokens: u32) -> Work {
    let most = target.about().prefill_tokens.max(1);
    let mut total = Work::default();
    let mut done = 0;
    while done < tokens {
        let rows = most.min(tokens - done);
        let step = Step {
            sequences: 1,
            rows_each: rows,
            // Its rows see the chunk itself, half of it on average.
            context: done + rows / 2,
        };
        let work = target.work(step);
        total.bytes += work.bytes;
        total.operations += work.operations;
        done += rows;
    }
    total
}
