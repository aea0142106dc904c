//! Counts attempts at storage that failed and are made again.
//!
//! Two layers try again: the HTTP client, on throttling, server errors and broken connections, and
//! [`crate::store`], on bodies that end early. Neither knows for whom it reads, and clients are shared by
//! everything in the process; so whoever reads puts its counter around the future, and both layers find
//! it there.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};

tokio::task_local! {
    static COUNTER: Arc<AtomicU64>;
}

/// Runs `work`, and adds to `counter` each attempt of it that failed in a way that is tried again.
pub async fn counted<T>(counter: Arc<AtomicU64>, work: impl Future<Output = T>) -> T {
    COUNTER.scope(counter, work).await
}

/// An attempt failed. Nothing is counted where nobody counts: for a listing, say.
pub(crate) fn note() {
    let _ = COUNTER.try_with(|counter| counter.fetch_add(1, Ordering::Relaxed));
}

/// Makes clients that count.
#[derive(Debug)]
pub(crate) struct CountingConnector;

impl HttpConnector for CountingConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Counting(inner)))
    }
}

#[derive(Debug)]
struct Counting(HttpClient);

#[async_trait]
impl HttpService for Counting {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = self.0.execute(request).await;
        // What the client tries again: see `object_store::client::retry`.
        let again = match &answer {
            Ok(response) => {
                let status = response.status();
                status.is_server_error() || matches!(status.as_u16(), 408 | 429)
            }
            Err(e) => !matches!(e.kind(), HttpErrorKind::Decode | HttpErrorKind::Unknown),
        };
        if again {
            note();
        }
        answer
    }
}
