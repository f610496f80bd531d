// SPDX-License-Identifier: MIT OR Apache-2.0
//! `met serve`: listen first, load behind it, end when told.

use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::again;
use super::exit::{Exit, Failure, OrExit};
use super::log;
use super::machine::Machine;
use super::model::Model;
use super::options;
use super::parser::Values;
use super::signals;
use crate::assembly::{self, Blame, LoadOptions, LoadedModel, OpenDevice, Opened};
use crate::http::{self, App, Ended, SystemAmbient};
use crate::hub::Progress;

/// Threads that answer connections. The work is the engine's: these parse and format.
const HTTP_THREADS: usize = 2;
/// Time that the step on the device has to end when the server ends.
const LAST_STEP: Duration = Duration::from_secs(2);

pub(super) fn serve(values: &Values<'_>, machine: &Arc<Machine>) -> Result<(), Failure> {
    log::start(values, machine, "info")?;
    let mut load = options::load(values, machine)?;
    let on = load.open_device().map_err(|e| blamed(e.into()))?;
    let model = Model::parse_for(values.text("MODEL"), load.weights)?
        .fetch(machine, values.has("accept-licence"))?;
    load.path = model.path;
    let mut config = options::http(values, &model.name)?;
    let restarts: Option<u64> = values.count("inherit-listener");
    let listener = match restarts {
        Some(_) => again::inherited().or_exit(Exit::Usage)?,
        None => listen(
            values.text("host").unwrap_or("127.0.0.1"),
            values.count("port").unwrap_or(8000),
        )?,
    };
    let (kept, step_timeout) = (
        listener.try_clone().or_exit(Exit::Machine)?,
        load.step_timeout,
    );
    let address = listener.local_addr().or_exit(Exit::Machine)?;
    config.beyond_loopback = !address.ip().is_loopback();
    if config.beyond_loopback && config.api_keys.is_empty() {
        tracing::warn!(%address, "open to the network without a key; --api-key-file sets some");
    }
    tracing::info!(%address, model = %model.name, "listening");
    machine
        .console
        .note(&format!("{} at http://{address}/v1", model.name));

    let drain = config.limits.drain.as_secs();
    let started = Instant::now();
    let runtime = runtime()?;
    let app = App::new(config, Box::new(SystemAmbient));
    let loaded = Arc::new(Mutex::new(None));
    let (failed, failure) = oneshot::channel();
    spawn_loader(
        load,
        on,
        Arc::clone(machine),
        Arc::clone(&app),
        Arc::clone(&loaded),
        failed,
    )?;
    let outcome = runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let mut signals = signals::install()?;
        let (lost, mut why) = oneshot::channel();
        let watched = Arc::clone(&app);
        signals.leave = Box::pin(async move {
            // The other end is read once this has ended.
            let _ = lost.send(again::lost(&watched, step_timeout).await);
        });
        tokio::select! {
            ended = http::serve(listener, Arc::clone(&app), signals) => {
                ended.map(|ended| match ended {
                    Ended::Left => {
                        let why = why.try_recv().unwrap_or_default();
                        let model = loaded.lock().unwrap_or_else(PoisonError::into_inner);
                        let device = model.as_ref().map(|m| m.device);
                        drop(model);
                        Err(again::start(kept, restarts.unwrap_or(0), started, device, &why))
                    }
                    Ended::Drained | Ended::Cut => Ok(ended),
                })
            }
            Ok(failure) = failure => Ok(Err(failure)),
        }
    });
    let ended = outcome.or_exit(Exit::Machine)??;
    // Whoever could be told has been told: a step that still runs is of use to nobody.
    if let Some(model) = loaded.lock().unwrap_or_else(PoisonError::into_inner).take()
        && !model.engine.stop(LAST_STEP)
    {
        tracing::warn!("the step that runs is left to the end of the process");
    }
    tracing::info!(?ended, "ended");
    match ended {
        Ended::Drained | Ended::Left => Ok(()),
        Ended::Cut => Err(Failure::text(
            Exit::Failed,
            format!(
                "ended by a second signal, or {drain} seconds after the first: answers that ran were cut"
            ),
        )),
    }
}

fn listen(host: &str, port: u16) -> Result<TcpListener, Failure> {
    let addresses: Vec<_> = (host, port)
        .to_socket_addrs()
        .map_err(|e| Failure::text(Exit::Usage, format!("--host {host}: {e}")))?
        .collect();
    let listener = TcpListener::bind(&addresses[..]).map_err(|e| {
        let remedy = match e.kind() {
            io::ErrorKind::AddrInUse => {
                "; another program listens there, choose another --port (0 takes a free one)"
            }
            io::ErrorKind::PermissionDenied => {
                "; ports below 1024 need a privilege, choose another --port"
            }
            io::ErrorKind::AddrNotAvailable => "; --host is no address of this machine",
            _ => "",
        };
        Failure::text(
            Exit::Machine,
            format!("cannot listen on {host}:{port}: {e}{remedy}"),
        )
    })?;
    listener.set_nonblocking(true).or_exit(Exit::Machine)?;
    Ok(listener)
}

fn runtime() -> Result<Runtime, Failure> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder
        .worker_threads(HTTP_THREADS)
        .thread_name("met-http")
        .enable_all()
        .build()
        .or_exit(Exit::Machine)
}

/// Loads on a thread of its own, so that the server answers /health and /ready meanwhile.
fn spawn_loader(
    options: LoadOptions,
    on: OpenDevice,
    machine: Arc<Machine>,
    app: Arc<App>,
    loaded: Arc<Mutex<Option<LoadedModel>>>,
    failed: oneshot::Sender<Failure>,
) -> Result<(), Failure> {
    let work = move || match load(options, on, &machine) {
        Ok(model) => {
            let served = model.served.clone();
            *loaded.lock().unwrap_or_else(PoisonError::into_inner) = Some(model);
            app.slot.ready(served);
            tracing::info!("ready");
        }
        Err(failure) => {
            if let Some(why) = &failure.why {
                app.slot.failed(why.to_string());
            }
            // Nobody waits any more if the server has ended already.
            let _ = failed.send(failure);
        }
    };
    std::thread::Builder::new()
        .name("met-load".into())
        .spawn(work)
        .map(|_| ())
        .or_exit(Exit::Machine)
}

/// Opens, plans, tells the plan, loads.
pub(super) fn load(
    options: LoadOptions,
    on: OpenDevice,
    machine: &Machine,
) -> Result<LoadedModel, Failure> {
    let started = Instant::now();
    let opened = open(options, on, machine)?;
    let loaded = opened.load(|bytes| machine.console.advance(bytes));
    machine.console.end();
    let loaded = loaded.map_err(blamed)?;
    let seconds = started.elapsed().as_secs_f64();
    tracing::info!(seconds, digest = %loaded.served.card.digest, tokens = loaded.served.card.max_model_len, "loaded");
    Ok(loaded)
}

/// Opens a checkpoint on a device, tells the plan, and begins to tell the progress of its weights.
pub(super) fn open(
    options: LoadOptions,
    on: OpenDevice,
    machine: &Machine,
) -> Result<Opened, Failure> {
    let opened = assembly::open_on(options, on).map_err(blamed)?;
    match &opened.on.passed_over {
        Some(why) if why.nothing_there() => tracing::info!("no GPU: {}", why.why()),
        Some(why) => {
            tracing::warn!(why = %why.why(), "the processor computes, not the GPU; --device names one");
        }
        None => {}
    }
    let device = opened.device();
    tracing::info!(device = %device.name, class = %device.class, features = %device.features.join(", "), memory = device.memory, "computes");
    tracing::info!("memory plan\n{}", opened.plan.memory_text().trim_end());
    machine
        .console
        .begin("weights", Some(opened.weight_bytes()), 0);
    Ok(opened)
}

pub(super) fn blamed(why: anyhow::Error) -> Failure {
    let exit = match Blame::of(&why) {
        Blame::Options => Exit::Usage,
        Blame::Checkpoint => Exit::Checkpoint,
        Blame::Machine => Exit::Machine,
    };
    Failure::new(exit, why)
}
