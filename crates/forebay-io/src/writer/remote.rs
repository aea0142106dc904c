//! Staging and commit on an object store.
//!
//! Every file is a multipart upload under its final, unique key. An upload that is not completed is
//! invisible to every reader. A commit completes them all and then puts the manifest on condition
//! that it is still the one that the run saw at its start.

use std::collections::VecDeque;

use forebay_core::{Error, ErrorKind, Result};
use forebay_plan::WriteMode;
use object_store::path::Path;
use object_store::{
    MultipartUpload, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    UpdateVersion,
};
use tokio::task::JoinSet;

use super::{Finished, Outgoing, lost_race};
use crate::manifest::{self, Manifest};
use crate::store::problem::store_error;
use crate::store::remote::read_small;
use crate::store::{Bucket, key_path};

/// Smallest part. S3 refuses parts under 5 MiB, and 8 MiB is what AWS recommends.
const PART: u64 = 8 << 20;

/// Parts of one upload that S3 allows, less a reserve: a file may pass its target size by a row group.
const MAX_PARTS: u64 = 9_000;

/// Parts in flight: with the row group being encoded, the memory that writing takes.
const IN_FLIGHT: usize = 4;

/// Requests at a time that complete or remove files.
const AT_ONCE: usize = 16;

struct Upload {
    file: usize,
    path: Path,
    upload: Box<dyn MultipartUpload>,
    buffer: Vec<u8>,
}

pub(super) struct RemoteTarget {
    bucket: Bucket,
    prefix: String,
    part: usize,
    /// The manifest's version when the run began.
    seen: Option<UpdateVersion>,
    open: Option<Upload>,
    tasks: JoinSet<object_store::Result<()>>,
    /// Uploads with all their parts, not completed.
    ready: Vec<(Path, Box<dyn MultipartUpload>)>,
    /// Objects completed by a commit that is not through yet.
    completed: Vec<Path>,
}

/// The manifest of a prefix, if it has one.
pub(super) async fn manifest_of(bucket: &Bucket, prefix: &str) -> Result<Option<Manifest>> {
    let slash = if prefix.is_empty() { "" } else { "/" };
    let path = key_path(bucket, &format!("{prefix}{slash}{}", manifest::PATH))?;
    let found = read_small(bucket, &path).await?;
    found.map(|(bytes, _)| Manifest::parse(&bytes, &bucket.uri(&path))).transpose()
}

impl RemoteTarget {
    pub(super) async fn create(
        bucket: Bucket,
        key: &str,
        file_bytes: u64,
    ) -> Result<(Self, Option<Manifest>)> {
        let prefix = key.trim_matches('/').to_owned();
        if !prefix.is_empty() {
            key_path(&bucket, &prefix)?;
        }
        let part = PART.max(file_bytes.div_ceil(MAX_PARTS).next_multiple_of(1 << 20));
        let mut this = Self {
            bucket,
            prefix,
            part: usize::try_from(part).unwrap_or(usize::MAX),
            seen: None,
            open: None,
            tasks: JoinSet::new(),
            ready: Vec::new(),
            completed: Vec::new(),
        };
        let path = this.path(manifest::PATH)?;
        let found = match read_small(&this.bucket, &path).await? {
            None => None,
            Some((bytes, meta)) => {
                this.seen = Some(UpdateVersion { e_tag: meta.e_tag, version: meta.version });
                Some(Manifest::parse(&bytes, &this.bucket.uri(&path))?)
            }
        };
        Ok((this, found))
    }

    fn path(&self, name: &str) -> Result<Path> {
        let key = if self.prefix.is_empty() {
            name.to_owned()
        } else {
            format!("{}/{name}", self.prefix)
        };
        key_path(&self.bucket, &key)
    }

    pub(super) fn uri(&self, name: &str) -> String {
        let slash = if self.prefix.is_empty() { "" } else { "/" };
        format!("{}/{}{slash}{name}", self.bucket.root, self.prefix)
    }

    pub(super) async fn ship(
        &mut self,
        outgoing: VecDeque<Outgoing>,
        names: Vec<String>,
    ) -> Result<()> {
        for (out, name) in outgoing.into_iter().zip(names) {
            if self.open.as_ref().is_none_or(|u| u.file != out.file) {
                let path = self.path(&name)?;
                let upload = self
                    .bucket
                    .store()?
                    .put_multipart_opts(&path, PutMultipartOptions::default())
                    .await
                    .map_err(|e| store_error(e, &self.bucket.uri(&path)))?;
                self.open = Some(Upload { file: out.file, path, upload, buffer: Vec::new() });
            }
            let Some(open) = &mut self.open else {
                return Err(Error::internal("no upload is open"));
            };
            let mut bytes = &out.bytes[..];
            while !bytes.is_empty() {
                let room = self.part - open.buffer.len();
                let (now, later) = bytes.split_at(room.min(bytes.len()));
                open.buffer.extend_from_slice(now);
                bytes = later;
                if open.buffer.len() == self.part {
                    let full = std::mem::take(&mut open.buffer);
                    send(&mut self.tasks, open, full, &self.bucket).await?;
                }
            }
            if out.last
                && let Some(mut open) = self.open.take()
            {
                let rest = std::mem::take(&mut open.buffer);
                let sent = if rest.is_empty() {
                    Ok(())
                } else {
                    send(&mut self.tasks, &mut open, rest, &self.bucket).await
                };
                let waited = match sent {
                    Ok(()) => wait(&mut self.tasks, 0, &self.bucket.uri(&open.path)).await,
                    Err(e) => Err(e),
                };
                // Kept before the error is raised, so that an abort finds it.
                self.ready.push((open.path, open.upload));
                waited?;
            }
        }
        Ok(())
    }

    pub(super) async fn commit(
        &mut self,
        finished: Vec<Finished>,
        manifest: Manifest,
        replaced: Vec<String>,
    ) -> Result<Vec<String>> {
        debug_assert_eq!(finished.len(), self.ready.len());
        let mut tasks = JoinSet::new();
        let mut failure = None;
        loop {
            while failure.is_none()
                && tasks.len() < AT_ONCE
                && let Some((path, mut upload)) = self.ready.pop()
            {
                tasks.spawn(async move {
                    let done = upload.complete().await;
                    (path, upload, done)
                });
            }
            match tasks.join_next().await {
                None => break,
                Some(Ok((path, _, Ok(_)))) => self.completed.push(path),
                Some(Ok((path, upload, Err(e)))) => {
                    failure.get_or_insert(store_error(e, &self.bucket.uri(&path)));
                    self.ready.push((path, upload));
                }
                Some(Err(e)) => {
                    failure.get_or_insert(
                        Error::new(ErrorKind::Cancelled, "a commit was stopped").with_source(e),
                    );
                }
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }

        let path = self.path(manifest::PATH)?;
        let uri = self.bucket.uri(&path);
        let payload = PutPayload::from(manifest.to_bytes()?);
        let mode = self.seen.clone().map_or(PutMode::Create, PutMode::Update);
        let put = self
            .bucket
            .store()?
            .put_opts(&path, payload, PutOptions { mode, ..Default::default() })
            .await;
        if let Err(e) = put {
            // The answer to our own put may have been lost and its repetition refused.
            let ours = match read_small(&self.bucket, &path).await {
                Ok(Some((bytes, _))) => {
                    Manifest::parse(&bytes, &uri).is_ok_and(|m| m.run == manifest.run)
                }
                _ => false,
            };
            if !ours {
                let refused = matches!(
                    e,
                    object_store::Error::AlreadyExists { .. }
                        | object_store::Error::Precondition { .. }
                );
                let mode =
                    if self.seen.is_some() { WriteMode::Overwrite } else { WriteMode::Error };
                return Err(if refused {
                    lost_race(&self.uri(""), mode)
                } else if matches!(e, object_store::Error::NotImplemented { .. }) {
                    Error::new(
                        ErrorKind::Unsupported,
                        format!(
                            "the store of {uri} has no conditional put, which a safe commit needs"
                        ),
                    )
                } else {
                    store_error(e, &uri)
                });
            }
        }
        // From here on the run is committed, whatever happens.
        self.completed.clear();
        let old: Vec<Path> = replaced.iter().filter_map(|name| self.path(name).ok()).collect();
        Ok(delete(self.bucket.clone(), old).await)
    }

    pub(super) async fn abort(mut self) -> Vec<String> {
        self.tasks.shutdown().await;
        let uploads: Vec<(Path, Box<dyn MultipartUpload>)> =
            self.ready.drain(..).chain(self.open.take().map(|u| (u.path, u.upload))).collect();
        let mut left = Vec::new();
        for (path, mut upload) in uploads {
            if upload.abort().await.is_err() {
                left.push(format!("{} (an upload that was not completed)", self.bucket.uri(&path)));
            }
        }
        let completed = std::mem::take(&mut self.completed);
        left.extend(delete(self.bucket.clone(), completed).await);
        left
    }
}

/// Starts the upload of a part, waiting until fewer than the limit are in flight.
async fn send(
    tasks: &mut JoinSet<object_store::Result<()>>,
    open: &mut Upload,
    part: Vec<u8>,
    bucket: &Bucket,
) -> Result<()> {
    wait(tasks, IN_FLIGHT - 1, &bucket.uri(&open.path)).await?;
    tasks.spawn(open.upload.put_part(PutPayload::from(part)));
    Ok(())
}

/// Waits until at most `most` parts are in flight.
async fn wait(tasks: &mut JoinSet<object_store::Result<()>>, most: usize, uri: &str) -> Result<()> {
    while tasks.len() > most {
        match tasks.join_next().await {
            None => break,
            Some(Ok(Ok(()))) => {}
            Some(Ok(Err(e))) => return Err(store_error(e, uri)),
            Some(Err(e)) => {
                return Err(
                    Error::new(ErrorKind::Cancelled, "an upload was stopped").with_source(e)
                );
            }
        }
    }
    Ok(())
}

/// Deletes objects and returns the URIs of those that could not be.
async fn delete(bucket: Bucket, paths: Vec<Path>) -> Vec<String> {
    let mut tasks = JoinSet::new();
    let mut left = Vec::new();
    for path in paths {
        if tasks.len() >= AT_ONCE {
            left.extend(tasks.join_next().await.and_then(|r| r.ok().flatten()));
        }
        let bucket = bucket.clone();
        tasks.spawn(async move {
            let Ok(store) = bucket.store() else { return Some(bucket.uri(&path)) };
            match store.delete(&path).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => None,
                Err(_) => Some(bucket.uri(&path)),
            }
        });
    }
    while let Some(result) = tasks.join_next().await {
        left.extend(result.ok().flatten());
    }
    left
}
