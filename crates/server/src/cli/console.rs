// SPDX-License-Identifier: MIT OR Apache-2.0
//! Output: results to standard output, everything else to standard error; bars on a terminal, lines elsewhere.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::hub::Progress;

/// Parts of a file after which a line is written where there is no terminal.
const LINES: u64 = 10;

type Sink = Box<dyn Write + Send>;

/// Where a command writes.
pub struct Console {
    out: Mutex<Sink>,
    err: Mutex<Sink>,
    terminal: bool,
    logs: AtomicBool,
    errors_only: AtomicBool,
    running: Mutex<Option<Running>>,
}

/// A file that is on its way.
struct Running {
    bar: Option<ProgressBar>,
    what: String,
    total: Option<u64>,
    done: u64,
    told: u64,
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console")
            .field("terminal", &self.terminal)
            .finish_non_exhaustive()
    }
}

/// Nothing that is done under these locks can panic half-way, so a poisoned one holds whole data.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Console {
    /// Standard output and error. `terminal`: standard error is one, so bars can be drawn.
    pub fn standard(terminal: bool) -> Self {
        Self::new(Box::new(io::stdout()), Box::new(io::stderr()), terminal)
    }

    /// Output to the given sinks.
    pub fn new(out: Sink, err: Sink, terminal: bool) -> Self {
        Self {
            out: Mutex::new(out),
            err: Mutex::new(err),
            terminal,
            logs: AtomicBool::new(false),
            errors_only: AtomicBool::new(false),
            running: Mutex::new(None),
        }
    }

    /// Writes to standard output, at once.
    ///
    /// # Errors
    /// From the sink; a reader that has gone away is a broken pipe.
    pub fn print(&self, text: &str) -> io::Result<()> {
        let mut out = locked(&self.out);
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// From now on standard error belongs to the log, whose lines have one form: notes become its entries.
    pub fn note_to_log(&self) {
        self.logs.store(true, Ordering::Relaxed);
    }

    /// From now on errors alone are written to standard error: no notes and no progress.
    pub fn errors_only(&self) {
        self.errors_only.store(true, Ordering::Relaxed);
    }

    /// Writes a line to standard error. Losing it is no failure.
    pub fn note(&self, text: &str) {
        if self.errors_only.load(Ordering::Relaxed) {
            return;
        }
        match self.logs.load(Ordering::Relaxed) {
            true => tracing::info!("{text}"),
            false => self.write(text),
        }
    }

    /// Writes why a command failed.
    pub fn error(&self, text: &str) {
        match self.logs.load(Ordering::Relaxed) {
            true => tracing::error!("{text}"),
            false => self.write(text),
        }
    }

    fn write(&self, text: &str) {
        let write = || {
            let mut err = locked(&self.err);
            let _ = writeln!(err, "{text}").and_then(|()| err.flush());
        };
        match locked(&self.running).as_ref().and_then(|r| r.bar.clone()) {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

impl Progress for Console {
    fn begin(&self, what: &str, total: Option<u64>, done: u64) {
        if self.errors_only.load(Ordering::Relaxed) {
            return;
        }
        let draws = self.terminal && !self.logs.load(Ordering::Relaxed);
        let bar = draws.then(|| bar(what, total, done));
        *locked(&self.running) = Some(Running {
            bar,
            what: what.to_owned(),
            total,
            done,
            told: share(done, total),
        });
        if !draws {
            let size = total.map_or(String::new(), |t| format!(" ({})", HumanBytes(t)));
            let from = if done > 0 {
                format!(", going on at {}", HumanBytes(done))
            } else {
                String::new()
            };
            self.note(&format!("{what}{size}{from}"));
        }
    }

    fn advance(&self, bytes: u64) {
        let mut running = locked(&self.running);
        let Some(r) = running.as_mut() else { return };
        r.done += bytes;
        if let Some(bar) = &r.bar {
            bar.set_position(r.done);
            return;
        }
        let share = share(r.done, r.total);
        if share > r.told {
            r.told = share;
            let line = format!("{}: {} %", r.what, share * 100 / LINES);
            drop(running);
            self.note(&line);
        }
    }

    fn end(&self) {
        if let Some(bar) = locked(&self.running).take().and_then(|r| r.bar) {
            bar.finish_and_clear();
        }
    }

    fn note(&self, what: &str) {
        self.note(what);
    }
}

fn share(done: u64, total: Option<u64>) -> u64 {
    total
        .filter(|t| *t > 0)
        .map_or(0, |t| done.saturating_mul(LINES) / t)
}

fn bar(what: &str, total: Option<u64>, done: u64) -> ProgressBar {
    let bar =
        ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr()).with_position(done);
    let template = "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(what.to_owned());
    bar
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::Arc;

    /// A sink that tests can read.
    #[derive(Clone, Default)]
    pub(crate) struct Kept(pub(crate) Arc<Mutex<Vec<u8>>>);

    impl Kept {
        fn text(&self) -> String {
            String::from_utf8(locked(&self.0).clone()).unwrap()
        }
    }

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            locked(&self.0).extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn where_there_is_no_terminal_progress_is_lines() {
        let (out, err) = (Kept::default(), Kept::default());
        let console = Console::new(Box::new(out.clone()), Box::new(err.clone()), false);
        console.begin("model", Some(1000), 250);
        for _ in 0..15 {
            console.advance(50);
        }
        console.end();
        console.print("done\n").unwrap();
        let lines: Vec<String> = (3..=10).map(|n| format!("model: {} %", n * 10)).collect();
        assert_eq!(
            err.text(),
            format!("model (1000 B), going on at 250 B\n{}\n", lines.join("\n"))
        );
        assert_eq!(out.text(), "done\n");
    }

    #[test]
    fn where_errors_alone_are_wanted_there_is_nothing_else() {
        for terminal in [false, true] {
            let err = Kept::default();
            let console = Console::new(Box::new(io::sink()), Box::new(err.clone()), terminal);
            console.errors_only();
            console.begin("weights", Some(10), 0);
            assert!(locked(&console.running).is_none(), "no bar");
            console.advance(10);
            console.end();
            console.note("seed 7");
            console.error("met: no");
            assert_eq!(err.text(), "met: no\n");
        }
    }
}
