// SPDX-License-Identifier: MIT OR Apache-2.0
//! The accept loop, one task per connection, and the end.
//!
//! On the first signal the server drains: new generations are refused with 503 and a Retry-After, /ready says so, those
//! in flight are finished, and then connections are closed. Where the drain limit passes, those that still run are told so and
//! fail. The second signal ends it at once.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower::Service;

use super::app::App;
use super::connections::{Connections, Seat};
use super::router::router;
use super::stalled::Stalled;
use crate::api::limits::Limits;

/// Time in which a connection that is told to close may take the end of its last answer.
const DRAIN_GRACE: Duration = Duration::from_secs(5);
/// The same where another client waits for its place.
const EVICT_GRACE: Duration = Duration::from_secs(1);
/// Time in which the requests of the connections that were accepted last come in before the server leaves.
const LAST_REQUESTS: Duration = Duration::from_millis(50);
/// Time in which all connections may take the end of their answers then, and the errors of those that were cut.
const LEAVE_GRACE: Duration = Duration::from_millis(500);

type Signal = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What ends the server.
pub struct Signals {
    /// Finish what runs, take nothing new, then end.
    pub drain: Signal,
    /// End at once.
    pub stop: Signal,
    /// Accept no more, close the connections, then end: another server goes on with the socket. A request that was
    /// accepted is answered, one that comes waits in the socket's queue.
    pub leave: Signal,
}

impl Signals {
    /// None: the server runs until it is dropped.
    #[must_use]
    pub fn never() -> Signals {
        Signals {
            drain: Box::pin(std::future::pending()),
            stop: Box::pin(std::future::pending()),
            leave: Box::pin(std::future::pending()),
        }
    }
}

/// How the server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything in flight was finished.
    Drained,
    /// The drain limit passed, or the second signal came, with requests in flight.
    Cut,
    /// To another server, with the socket.
    Left,
}

/// Serves `app` on `listener` until a signal ends it. Connections are tasks of this future: dropped, it closes them.
///
/// # Errors
/// None so far: a failing `accept` (no file descriptors) closes an idle connection and is tried again.
pub async fn serve(listener: TcpListener, app: Arc<App>, signals: Signals) -> io::Result<Ended> {
    let limits = &app.config.limits;
    let connections = Arc::new(Connections::default());
    let (close, closing) = watch::channel(false);
    let service = router(Arc::clone(&app));
    let mut tasks = JoinSet::new();
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (seat, evict) = connections.enter();
                    let app = Arc::clone(&app);
                    let service = service.clone();
                    let mut closing = closing.clone();
                    tasks.spawn(async move {
                        let end = async {
                            tokio::select! {
                                () = evict.notified() => EVICT_GRACE,
                                _ = closing.wait_for(|c| *c) => DRAIN_GRACE,
                            }
                        };
                        connection(stream, seat, service, &app.config.limits, end).await;
                    });
                    while tasks.try_join_next().is_some() {}
                    connections.room(limits.connections).await;
                }
                Err(e) => {
                    tracing::warn!(error = %e, "cannot accept a connection; closing an idle one");
                    connections.close_idle(1);
                    sleep(Duration::from_millis(20)).await;
                }
            }
        }
    };
    let ending = async {
        signals.drain.await;
        app.slot.drain();
        tracing::info!("draining: finishing what runs, taking nothing new");
        let finish = async {
            app.wait_idle().await;
            close.send_replace(true);
            connections.none().await;
        };
        match timeout(limits.drain, finish).await {
            Ok(()) => Ended::Drained,
            Err(_) => {
                // A device that hangs tells nobody.
                if let Some(model) = app.slot.loaded() {
                    model.engine.shut_down();
                }
                close.send_replace(true);
                let _ = timeout(LEAVE_GRACE, connections.none()).await;
                Ended::Cut
            }
        }
    };
    tokio::select! {
        ended = ending => return Ok(ended),
        () = signals.stop => return Ok(Ended::Cut),
        () = accepting => return Ok(Ended::Cut),
        () = signals.leave => {}
    }
    // Nothing is accepted from here on: what comes waits in the socket's queue.
    sleep(LAST_REQUESTS).await;
    // Who has not read the end of its answer by then is cut.
    close.send_replace(true);
    let _ = timeout(LEAVE_GRACE, connections.none()).await;
    Ok(Ended::Left)
}

async fn connection(
    stream: TcpStream,
    seat: Seat,
    router: Router,
    limits: &Limits,
    end: impl Future<Output = Duration>,
) {
    // A token must not wait for the acknowledgement of the one before.
    if let Err(e) = stream.set_nodelay(true) {
        tracing::debug!(error = %e, "cannot set TCP_NODELAY");
    }
    let io = TokioIo::new(Stalled::new(stream, limits.write_stall));
    let service = service_fn(|request: Request<Incoming>| {
        let busy = seat.busy();
        let answer = router.clone().call(request.map(Body::new));
        async move {
            let response = answer.await?;
            Ok::<_, Infallible>(response.map(|body| busy.until_sent(body)))
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_headers(limits.headers)
        .max_buf_size(limits.header_bytes.max(8192));
    let mut serving = pin!(http.serve_connection(io, service));
    let mut end = pin!(end);
    let result = tokio::select! {
        result = serving.as_mut() => result,
        grace = end.as_mut() => {
            serving.as_mut().graceful_shutdown();
            match timeout(grace, serving.as_mut()).await {
                Ok(result) => result,
                // A request came just before it was told.
                Err(_) if seat.is_busy() => serving.await,
                Err(_) => return,
            }
        }
    };
    if let Err(e) = result {
        tracing::debug!(error = %e, "a connection ended early");
    }
}
