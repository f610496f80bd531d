// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process of `met`, its log, and its end.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest wait for any condition: a busy machine is slow, but not that slow.
const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until `condition` gives something.
pub(crate) fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(start.elapsed() < DEADLINE, "{what}: not for {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A folder for the run of one test, empty.
pub(crate) fn folder(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("process")
        .join(format!("{name}-{}-{number}", std::process::id()));
    // Left by a process of the same number, if there was one.
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// `met` with folders of its own, no network and no other environment.
pub(crate) fn command(arguments: &[&str], home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_met"));
    command
        .args(arguments)
        .env_clear()
        .env("METRALE_HOME", home)
        .env("HOME", home)
        .env("CUDA_VISIBLE_DEVICES", "") // auto is the processor, on any machine
        .env("METRALE_OFFLINE", "1")
        .stdin(Stdio::null());
    command
}

/// Runs `met` to its end: exit status, standard output, standard error.
pub(crate) fn run(arguments: &[&str]) -> (i32, String, String) {
    let home = folder("home");
    let output = command(arguments, &home).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert!(!err.contains("panicked"), "{arguments:?}: {err}");
    let code = output.status.code().expect("an exit status, no signal");
    let _ = std::fs::remove_dir_all(home);
    (code, out, err)
}

/// A running `met serve`; killed when dropped.
pub(crate) struct Met {
    child: Child,
    /// `127.0.0.1:PORT`.
    pub(crate) address: String,
    log: Arc<Mutex<String>>,
}

impl Met {
    /// Starts a server on a free port and waits until it says where it listens.
    pub(crate) fn serve(model: &Path, home: &Path, arguments: &[&str]) -> Met {
        Met::start(model, home, arguments, &[], |_| true)
    }

    /// The same, with variables in its environment.
    pub(crate) fn with(
        model: &Path,
        home: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Met {
        Met::start(model, home, arguments, environment, |_| true)
    }

    /// The same, and nobody reads its log from the line on that says where it listens.
    pub(crate) fn muted(model: &Path, home: &Path, arguments: &[&str]) -> Met {
        Met::start(model, home, arguments, &[], |line| {
            !line.contains("address=")
        })
    }

    fn start(
        model: &Path,
        home: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
        read_on: impl Fn(&str) -> bool + Send + 'static,
    ) -> Met {
        let model = model.to_str().unwrap();
        let all = [&["serve", model, "--port", "0"], arguments].concat();
        let mut child = command(&all, home)
            .envs(environment.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (kept, stderr) = (Arc::clone(&log), child.stderr.take().unwrap());
        // Ends with the process at the latest, whose standard error it reads.
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut log = kept.lock().unwrap();
                *log += &line;
                log.push('\n');
                if !read_on(&line) {
                    break;
                }
            }
        });
        let mut met = Met {
            child,
            address: String::new(),
            log,
        };
        met.address = until("the address in the log", || {
            let log = met.log();
            let found = log.split("address=").nth(1)?.split_whitespace().next();
            found.map(str::to_owned)
        });
        met
    }

    /// The same, and waits until it is ready.
    pub(crate) fn ready(model: &Path, arguments: &[&str]) -> Met {
        let home = folder("home");
        let met = Met::serve(model, &home, arguments);
        until("ready", || (met.get("/ready").status == 200).then_some(()));
        met
    }

    /// What it has written to standard error so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status();
        assert!(status.unwrap().success());
    }

    /// Waits for the end: the exit status, `None` after a signal.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        let child = &mut self.child;
        let status = until("the end of the process", || child.try_wait().unwrap());
        assert!(!self.log().contains("panicked"), "{}", self.log());
        status.code()
    }
}

impl Drop for Met {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
