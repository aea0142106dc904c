//! A store that fails on purpose, around one that does not.
//!
//! For tests of everything above: put it under a URI with [`super::register`] and the whole engine
//! reads through it. Faults are counted per object, so that "the first two reads of this file fail"
//! means the same under any concurrency.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The body ends early, without an error, after this many bytes.
    Short(usize),
    /// The body breaks with a connection error after this many bytes.
    Break(usize),
    /// The server answers 503 SlowDown.
    Unavailable,
    /// The server answers 403.
    Forbidden,
    /// The answer comes this much later.
    Delay(Duration),
    /// The answer never comes.
    Hang,
}

/// When it goes wrong.
#[derive(Clone, Debug)]
struct Rule {
    /// Objects whose path contains this.
    matching: String,
    fault: Fault,
    /// The reads of each object that fail: from `skip`, `times` of them.
    skip: u64,
    times: u64,
}

/// Wraps a store and injects faults into its reads.
pub struct FaultStore {
    inner: Arc<dyn ObjectStore>,
    rules: Mutex<Vec<Rule>>,
    seen: Mutex<HashMap<(usize, Path), u64>>,
    injected: AtomicU64,
    reads: AtomicU64,
}

impl FaultStore {
    /// Without rules it does nothing.
    pub fn new(inner: Arc<dyn ObjectStore>) -> Self {
        Self {
            inner,
            rules: Mutex::default(),
            seen: Mutex::default(),
            injected: AtomicU64::new(0),
            reads: AtomicU64::new(0),
        }
    }

    /// Adds a rule: of the reads of each object whose path contains `matching`, those from number
    /// `skip` (from 0) on fail, `times` of them. `u64::MAX` fails for ever.
    pub fn inject(&self, matching: &str, fault: Fault, skip: u64, times: u64) {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).push(Rule {
            matching: matching.to_owned(),
            fault,
            skip,
            times,
        });
    }

    /// Forgets all rules and counts.
    pub fn clear(&self) {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Faults injected so far.
    pub fn injected(&self) -> u64 {
        self.injected.load(Ordering::Relaxed)
    }

    /// Reads that reached the store so far, those with a fault included.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    fn faults_for(&self, path: &Path) -> Vec<Fault> {
        let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut faults = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            if !path.as_ref().contains(&rule.matching) {
                continue;
            }
            let number = seen.entry((index, path.clone())).or_insert(0);
            if *number >= rule.skip && *number - rule.skip < rule.times {
                faults.push(rule.fault);
            }
            *number += 1;
        }
        self.injected.fetch_add(faults.len() as u64, Ordering::Relaxed);
        faults
    }
}

impl fmt::Debug for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultStore({})", self.inner)
    }
}

impl fmt::Display for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultStore({})", self.inner)
    }
}

fn broken(what: &str) -> Error {
    Error::Generic { store: "FaultStore", source: what.to_owned().into() }
}

/// The first `n` bytes of a body, then an error or nothing.
fn cut(
    body: BoxStream<'static, Result<Bytes>>,
    n: usize,
    then: Option<&'static str>,
) -> BoxStream<'static, Result<Bytes>> {
    let head = body.scan(n, |left, item| {
        let item = match item {
            Ok(mut bytes) if *left > 0 => {
                bytes.truncate(*left);
                *left -= bytes.len();
                Some(Ok(bytes))
            }
            Ok(_) => None,
            Err(e) => Some(Err(e)),
        };
        futures::future::ready(item)
    });
    head.chain(stream::iter(then.map(|what| Err(broken(what))))).boxed()
}

#[async_trait]
impl ObjectStore for FaultStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        // A HEAD has no body to damage, and is not a read of data.
        if options.head {
            return self.inner.get_opts(location, options).await;
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        let faults = self.faults_for(location);
        for fault in &faults {
            match fault {
                Fault::Unavailable => {
                    return Err(broken("503 Service Unavailable: <Code>SlowDown</Code>"));
                }
                Fault::Forbidden => {
                    return Err(Error::PermissionDenied {
                        path: location.to_string(),
                        source: "403 Forbidden: <Code>AccessDenied</Code>".into(),
                    });
                }
                Fault::Delay(time) => tokio::time::sleep(*time).await,
                Fault::Hang => futures::future::pending().await,
                Fault::Short(_) | Fault::Break(_) => {}
            }
        }
        let result = self.inner.get_opts(location, options).await?;
        let (meta, range, attributes) =
            (result.meta.clone(), result.range.clone(), result.attributes.clone());
        let mut body = result.into_stream();
        for fault in faults {
            body = match fault {
                Fault::Short(n) => cut(body, n, None),
                Fault::Break(n) => cut(body, n, Some("connection reset by peer")),
                _ => body,
            };
        }
        Ok(GetResult { payload: GetResultPayload::Stream(body), meta, range, attributes })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
