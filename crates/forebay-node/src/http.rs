//! The HTTP server of the daemon: `/metrics`, `/livez`, `/readyz`, `/status`, and a page for people.
//!
//! It has one thread of its own, so that it answers whatever the engine does, and costs the engine
//! nothing but the reading of counters. What a client can make it hold is bounded: connections, the size
//! and the time of a request, the life of a connection. Everything is read-only.

use std::future::Future;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use forebay::{Error, ErrorKind, Result};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, oneshot};

use crate::board::Board;
use crate::health::{self, Phase};
use crate::metrics;

/// What clients may hold.
#[derive(Clone, Copy)]
struct Limits {
    /// Connections at the same time; further ones wait. Prometheus needs one or two, a browser six.
    connections: usize,
    /// Time for the head of a request, and for which a connection may stay without one.
    request: Duration,
    /// Life of a connection: one that does not read its answer does not keep its place for ever.
    life: Duration,
}

const LIMITS: Limits =
    Limits { connections: 64, request: Duration::from_secs(10), life: Duration::from_secs(120) };

/// What is kept of a request: its head. No request here has a body.
const HEAD: usize = 16 << 10;

/// What the page may load: its own files, and nothing from elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A server that runs until it is dropped.
pub struct Server {
    address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Where it listens: with the port that it got, where 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves a board at `address`, such as `127.0.0.1:9090` or `[::]:9090`; port 0 takes a free one.
///
/// # Errors
/// No address of this machine, or one that is taken.
pub fn serve(address: &str, board: &Board) -> Result<Server> {
    serve_within(LIMITS, address, board)
}

fn serve_within(limits: Limits, address: &str, board: &Board) -> Result<Server> {
    let failed = |what: String, e: std::io::Error, hint: &str| {
        Error::new(ErrorKind::Io, what).with_source(e).with_hint(hint).at_place("--metrics")
    };
    let found = address.to_socket_addrs().map(|all| all.collect::<Vec<_>>()).map_err(|e| {
        Error::invalid(format!("{address:?} is not an address to listen at"))
            .with_source(e)
            .with_hint(
                "write ADDRESS:PORT, such as 127.0.0.1:9090, or 0.0.0.0:9090 for all networks",
            )
            .at_place("--metrics")
    })?;
    let listener = TcpListener::bind(found.as_slice()).map_err(|e| {
        let hint = match e.kind() {
            std::io::ErrorKind::AddrInUse => {
                "another process listens there: end it, or choose another port; port 0 takes a free one"
            }
            std::io::ErrorKind::PermissionDenied => {
                "ports below 1024 need a privilege: choose one above, such as 9090"
            }
            _ => "choose an address of this machine, such as 127.0.0.1:9090, or 0.0.0.0:9090 for all",
        };
        failed(format!("cannot listen at {address}: {e}"), e, hint)
    })?;
    let ready = listener.set_nonblocking(true).and_then(|()| listener.local_addr());
    let bound = ready.map_err(|e| failed(format!("cannot listen at {address}"), e, "try again"))?;
    let resources = |e| {
        Error::new(ErrorKind::Resource, "cannot start the HTTP thread")
            .with_source(e)
            .with_hint("the limit on processes or open files may be reached (ulimit -u, -n)")
    };
    let runtime = Builder::new_current_thread().enable_all().build().map_err(resources)?;
    let (end, ended) = oneshot::channel();
    let router = router(board.clone());
    #[expect(clippy::disallowed_methods, reason = "the thread's only work, away from the engine")]
    let work = move || runtime.block_on(listen(limits, listener, router, ended));
    let thread = std::thread::Builder::new().name("forebay-http".into()).spawn(work);
    let thread = thread.map_err(resources)?;
    Ok(Server { address: bound, end: Some(end), thread: Some(thread) })
}

async fn listen(
    limits: Limits,
    listener: TcpListener,
    router: Router,
    mut ended: oneshot::Receiver<()>,
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the HTTP server cannot listen"),
    };
    let places = Arc::new(Semaphore::new(limits.connections));
    loop {
        let accept = async {
            // Never closed.
            let place = Arc::clone(&places).acquire_owned().await.ok();
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            accepted = accept => accepted,
            _ = &mut ended => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let service = TowerToHyperService::new(router.clone());
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(limits.request)
                    .max_buf_size(HEAD)
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(async move {
                    live(limits, connection).await;
                    drop(place);
                });
            }
            // Too many open files, or a client that is gone already.
            Err(error) => {
                tracing::debug!(%error, "an HTTP connection was not accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Runs a connection for its life, after which a request that is on its way may end.
async fn live<S>(limits: Limits, connection: http1::Connection<TokioIo<tokio::net::TcpStream>, S>)
where
    S: hyper::service::HttpService<hyper::body::Incoming, ResBody = axum::body::Body>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    http1::Connection<TokioIo<tokio::net::TcpStream>, S>: Future,
{
    let mut connection = std::pin::pin!(connection);
    if tokio::time::timeout(limits.life, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(limits.request, connection).await;
    }
}

fn router(board: Board) -> Router {
    Router::new()
        .route("/", get(|| file("text/html; charset=utf-8", include_str!("page/index.html"))))
        .route("/page.css", get(|| file("text/css; charset=utf-8", include_str!("page/page.css"))))
        .route(
            "/page.js",
            get(|| file("text/javascript; charset=utf-8", include_str!("page/page.js"))),
        )
        .route("/metrics", get(exposition))
        .route("/status", get(status))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .with_state(board)
}

/// An answer of a type that nobody keeps.
fn answer(status: StatusCode, kind: &'static str, body: impl IntoResponse) -> Response {
    let fixed = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    let mut response = body.into_response();
    *response.status_mut() = status;
    for (name, value) in fixed {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn file(kind: &'static str, text: &'static str) -> Response {
    answer(StatusCode::OK, kind, text)
}

fn says(status: StatusCode, text: impl Into<String>) -> Response {
    answer(status, "text/plain; charset=utf-8", text.into() + "\n")
}

async fn exposition(State(board): State<Board>) -> Response {
    answer(StatusCode::OK, metrics::CONTENT_TYPE, metrics::render(&board))
}

async fn status(State(board): State<Board>) -> Response {
    answer(StatusCode::OK, "application/json", board.status_json())
}

async fn livez() -> Response {
    match health::alive().await {
        Ok(()) => says(StatusCode::OK, "ok"),
        Err(why) => says(StatusCode::SERVICE_UNAVAILABLE, why),
    }
}

async fn readyz(State(board): State<Board>) -> Response {
    match board.health().phase() {
        Phase::Ready => says(StatusCode::OK, "ok"),
        Phase::Starting => says(StatusCode::SERVICE_UNAVAILABLE, "starting"),
        Phase::Stopping => says(StatusCode::SERVICE_UNAVAILABLE, "stopping"),
    }
}

#[cfg(test)]
mod tests;
