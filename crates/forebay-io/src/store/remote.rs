//! Ranged reads from an object store: length-checked, pinned, with a deadline, retried.

use std::future::Future;
use std::ops::Range;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use forebay_core::{Error, ErrorKind, Result};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResultPayload, ObjectMeta};

use super::Bucket;
use super::local::changed;
use super::problem::store_error;
use crate::dataset::Pin;
use crate::retries;

/// Attempts at one range. The client retries failed requests itself; these cover bodies that break
/// or end early, which only the collector of the body sees.
const ATTEMPTS: u32 = 4;

/// A range larger than this is fetched in parts at the same time: one S3 connection gives some
/// 50–100 MB/s, and 8–16 MiB is the request size that AWS recommends.
const PART: u64 = 8 << 20;

/// Parts and ranges of one block in flight at the same time.
const IN_FLIGHT: usize = 8;

/// Deadline of one attempt at one part, its body included: a read that never returns must not hang
/// the run.
const DEADLINE: Duration = Duration::from_secs(60);

/// What an object looked like.
pub(crate) fn pin_of(meta: &ObjectMeta) -> Pin {
    Pin {
        size: meta.size,
        e_tag: meta.e_tag.clone(),
        version: meta.version.clone(),
        mtime_ns: meta.last_modified.timestamp_nanos_opt(),
        inode: None,
    }
}

/// Tries an operation again while its error says that this may help, with growing pauses.
pub(crate) async fn retrying<T, F, Fut>(mut attempt: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T>>,
{
    let mut tried = 1;
    loop {
        let error = match attempt().await {
            Ok(value) => return Ok(value),
            Err(e) => e,
        };
        if !error.retryable() || tried == ATTEMPTS {
            return Err(error);
        }
        retries::note();
        tracing::debug!(%error, tried, "retrying a read");
        // Pauses of 50, 100, 200 ms, each stretched by up to a half so that many readers that failed
        // together do not come back together.
        let base = 50u64 << (tried - 1);
        let jitter = uuid::Uuid::new_v4().as_u128() as u64 % (base / 2 + 1);
        tokio::time::sleep(Duration::from_millis(base + jitter)).await;
        tried += 1;
    }
}

/// Runs one attempt under the deadline.
async fn within<T>(uri: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    match tokio::time::timeout(DEADLINE, work).await {
        Ok(result) => result,
        Err(_) => Err(Error::new(
            ErrorKind::Io,
            format!("a read of {uri} gave nothing for {} s", DEADLINE.as_secs()),
        )
        .retry()),
    }
}

/// One attempt at one range, appended to `out`.
async fn attempt(
    bucket: &Bucket,
    path: &Path,
    uri: &str,
    pin: &Pin,
    range: Range<u64>,
    mut out: BytesMut,
) -> Result<BytesMut> {
    let want = (range.end - range.start) as usize;
    let options = GetOptions {
        range: Some(GetRange::Bounded(range.clone())),
        if_match: pin.e_tag.clone(),
        ..Default::default()
    };
    let result = bucket.store()?.get_opts(path, options).await.map_err(|e| match e {
        // The object shrank or vanished: it is not the one that was listed.
        object_store::Error::NotFound { .. } => Error::new(
            ErrorKind::Changed,
            format!("{uri} was removed since it was listed"),
        )
        .with_hint(
            "put it back, or open the dataset again; if it came from a snapshot, take a new one",
        )
        .in_file(uri),
        e => store_error(e, uri),
    })?;
    // Not every server honours If-Match, so the answer is checked as well.
    let same = match (&pin.e_tag, &result.meta.e_tag) {
        (Some(a), Some(b)) => a == b,
        _ => {
            pin.mtime_ns.is_none()
                || pin.mtime_ns == result.meta.last_modified.timestamp_nanos_opt()
        }
    };
    if !same || result.meta.size != pin.size {
        return Err(changed(uri));
    }
    let mut got = 0usize;
    let mut body = match result.payload {
        GetResultPayload::Stream(body) => body,
        // Only a `LocalFileSystem` that a test registered gives files.
        payload @ GetResultPayload::File(..) => {
            let whole = object_store::GetResult { payload, ..result };
            stream::once(async move { whole.bytes().await }).boxed()
        }
    };
    while let Some(piece) = body.try_next().await.map_err(|e| store_error(e, uri).retry())? {
        got += piece.len();
        if got > want {
            break;
        }
        out.extend_from_slice(&piece);
    }
    if got != want {
        return Err(Error::new(
            ErrorKind::Io,
            format!("the server sent {got} of {want} bytes of {uri} at offset {}", range.start),
        )
        .in_file(uri)
        .with_hint("the server or a proxy cuts answers short; try again or another endpoint")
        .retry());
    }
    Ok(out)
}

/// Reads one range of at most [`PART`] bytes, retried, into `segment` (whose capacity it takes).
async fn read_part(
    bucket: &Bucket,
    path: &Path,
    uri: &str,
    pin: &Pin,
    range: Range<u64>,
    segment: BytesMut,
) -> Result<BytesMut> {
    // The segment is handed to the attempt and lost with it when it fails; a retry then starts on
    // memory of its own, and joining falls back to a copy. Failures are rare enough.
    let mut first = Some(segment);
    retrying(|| {
        let out = first
            .take()
            .unwrap_or_else(|| BytesMut::with_capacity((range.end - range.start) as usize));
        within(uri, attempt(bucket, path, uri, pin, range.clone(), out))
    })
    .await
}

/// Reads ranges of one object concurrently; the answers are in the order of the ranges.
pub(crate) async fn read_ranges(
    bucket: &Bucket,
    path: &Path,
    uri: &str,
    pin: &Pin,
    ranges: &[Range<u64>],
) -> Result<Vec<Bytes>> {
    // Each range gets one allocation, cut into segments that the parts fill; `unsplit` of adjacent
    // segments is free, so a large range costs one copy from the socket and no more.
    let mut parts = Vec::new();
    for (index, range) in ranges.iter().enumerate() {
        let len = range.end - range.start;
        let mut whole = BytesMut::new();
        // Ranges were checked against the object's size, so this cannot be asked for more than that.
        whole.reserve(len as usize);
        if len <= PART {
            parts.push((index, range.clone(), whole));
            continue;
        }
        let mut at = range.start;
        while at < range.end {
            let end = (at + PART).min(range.end);
            // An empty buffer splits its capacity at `n` and stays contiguous with the rest.
            let rest = whole.split_off((end - at) as usize);
            parts.push((index, at..end, std::mem::replace(&mut whole, rest)));
            at = end;
        }
    }
    let done: Vec<(usize, BytesMut)> = stream::iter(parts)
        .map(|(index, range, segment)| async move {
            let bytes = read_part(bucket, path, uri, pin, range, segment).await?;
            Ok::<_, Error>((index, bytes))
        })
        .buffered(IN_FLIGHT)
        .try_collect()
        .await?;
    let mut out: Vec<Option<BytesMut>> = ranges.iter().map(|_| None).collect();
    for (index, bytes) in done {
        match &mut out[index] {
            Some(have) => have.unsplit(bytes),
            none => *none = Some(bytes),
        }
    }
    Ok(out.into_iter().map(|b| b.unwrap_or_default().freeze()).collect())
}

/// The size and pin of one object; `None` where there is none.
pub(crate) async fn head(bucket: &Bucket, path: &Path) -> Result<Option<ObjectMeta>> {
    let uri = bucket.uri(path);
    retrying(|| async {
        let options = GetOptions { head: true, ..Default::default() };
        match within(&uri, async { Ok(bucket.store()?.get_opts(path, options).await) }).await? {
            Ok(result) => Ok(Some(result.meta)),
            Err(e) => {
                let error = store_error(e, &uri);
                // A HEAD has no body, so a missing bucket and a missing object look the same here;
                // the listing that follows tells them apart.
                if error.kind() == ErrorKind::NotFound { Ok(None) } else { Err(error) }
            }
        }
    })
    .await
}

/// Reads a whole small object; `None` where there is none.
pub(crate) async fn read_small(
    bucket: &Bucket,
    path: &Path,
) -> Result<Option<(Bytes, ObjectMeta)>> {
    let uri = bucket.uri(path);
    retrying(|| {
        let uri = &uri;
        within(uri, async move {
            let result = match bucket.store()?.get_opts(path, GetOptions::default()).await {
                Ok(result) => result,
                Err(object_store::Error::NotFound { .. }) => return Ok(None),
                Err(e) => return Err(store_error(e, uri)),
            };
            let meta = result.meta.clone();
            let bytes = result.bytes().await.map_err(|e| store_error(e, uri).retry())?;
            if bytes.len() as u64 != meta.size {
                return Err(Error::new(
                    ErrorKind::Io,
                    format!("the server sent {} of {} bytes of {uri}", bytes.len(), meta.size),
                )
                .retry());
            }
            Ok(Some((bytes, meta)))
        })
    })
    .await
}

/// Everything under a prefix.
pub(crate) async fn list(bucket: &Bucket, prefix: Option<&Path>) -> Result<Vec<ObjectMeta>> {
    let uri = match prefix {
        Some(p) => bucket.uri(p),
        None => bucket.root.to_string(),
    };
    retrying(|| {
        let uri = &uri;
        async move {
            bucket.store()?.list(prefix).try_collect().await.map_err(|e| store_error(e, uri))
        }
    })
    .await
}
