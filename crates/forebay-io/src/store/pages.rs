//! S3 listings that end.
//!
//! A listing comes in pages, each with a token for the next one. A server that gives the same token
//! again, or pages without keys for ever, would be listed for ever; the client does not look, so this
//! does.

use std::collections::BTreeSet;
use std::fmt;

use async_trait::async_trait;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::aws::AmazonS3;
use object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// Pages in a row without a key that are believed. Real ones come from deleted versions, about a
/// thousand to a page.
const EMPTY_PAGES: usize = 1000;

/// A listing that does not end.
#[derive(Debug)]
pub(crate) struct Endless {
    /// The endpoint, for the error.
    pub(crate) endpoint: String,
    /// What the server does.
    pub(crate) why: &'static str,
}

impl fmt::Display for Endless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.endpoint, self.why)
    }
}

impl std::error::Error for Endless {}

/// What is known of a listing so far.
#[derive(Default)]
struct Seen {
    pages: usize,
    empty: usize,
    /// The token of the last page whose number is a power of two: whatever the length of a circle of
    /// tokens, it meets this one.
    mark: Option<String>,
}

impl Seen {
    /// Takes a page; what is wrong with it, if anything.
    fn page(&mut self, page: &PaginatedListResult) -> std::result::Result<(), &'static str> {
        let keys = page.result.objects.len() + page.result.common_prefixes.len();
        self.empty = if keys == 0 { self.empty + 1 } else { 0 };
        let Some(token) = &page.page_token else { return Ok(()) };
        if self.mark.as_ref() == Some(token) {
            return Err("names a page that it has given already as the next one");
        }
        if self.empty >= EMPTY_PAGES {
            return Err("gives page after page without a key");
        }
        self.pages += 1;
        if self.pages.is_power_of_two() {
            self.mark = Some(token.clone());
        }
        Ok(())
    }
}

/// An S3 client whose listings end.
#[derive(Debug)]
pub(crate) struct Paged {
    store: AmazonS3,
    endpoint: String,
}

impl Paged {
    pub(crate) fn new(store: AmazonS3, endpoint: String) -> Self {
        Self { store, endpoint }
    }

    fn pages(
        &self,
        prefix: Option<&Path>,
        delimiter: bool,
    ) -> BoxStream<'static, Result<ListResult>> {
        let prefix = prefix.filter(|p| !p.as_ref().is_empty()).map(|p| format!("{p}/"));
        let (store, endpoint) = (self.store.clone(), self.endpoint.clone());
        let first = Some((None, Seen::default()));
        stream::try_unfold(first, move |at| {
            let (store, endpoint, prefix) = (store.clone(), endpoint.clone(), prefix.clone());
            async move {
                let Some((page_token, mut seen)) = at else { return Ok(None) };
                let options = PaginatedListOptions {
                    delimiter: delimiter.then(|| "/".into()),
                    page_token,
                    ..Default::default()
                };
                let page = store.list_paginated(prefix.as_deref(), options).await?;
                seen.page(&page).map_err(|why| Error::Generic {
                    store: "S3",
                    source: Box::new(Endless { endpoint, why }),
                })?;
                let next = page.page_token.map(|token| (Some(token), seen));
                Ok(Some((page.result, next)))
            }
        })
        .boxed()
    }
}

impl fmt::Display for Paged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Paged {
    async fn put_opts(
        &self,
        at: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.store.put_opts(at, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(at, opts).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        self.store.get_opts(at, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.pages(prefix, false)
            .map_ok(|page| stream::iter(page.objects.into_iter().map(Ok)))
            .try_flatten()
            .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut pages = self.pages(prefix, true);
        let mut prefixes = BTreeSet::new();
        let mut objects = Vec::new();
        while let Some(page) = pages.try_next().await? {
            prefixes.extend(page.common_prefixes);
            objects.extend(page.objects);
        }
        Ok(ListResult { common_prefixes: prefixes.into_iter().collect(), objects })
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(token: &str) -> PaginatedListResult {
        let result = ListResult { common_prefixes: Vec::new(), objects: Vec::new() };
        PaginatedListResult { result, page_token: Some(token.to_owned()) }
    }

    #[test]
    fn circles_of_any_length_and_empty_pages_end() {
        for length in [1, 2, 3, 7] {
            let mut seen = Seen::default();
            let failed =
                (0..100).position(|n| seen.page(&page(&(n % length).to_string())).is_err());
            assert!(failed.is_some_and(|n| n < 20), "{length}: {failed:?}");
        }
        let mut seen = Seen::default();
        let failed = (0..2 * EMPTY_PAGES).position(|n| seen.page(&page(&n.to_string())).is_err());
        assert_eq!(failed, Some(EMPTY_PAGES - 1));
    }
}
