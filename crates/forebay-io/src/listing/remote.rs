//! Listing of object stores.

use std::collections::{BTreeMap, HashMap};

use forebay_core::{Error, ErrorKind, Result, suggest};
use object_store::ObjectMeta;
use object_store::path::Path;

use super::pattern::{Pattern, is_pattern};
use super::{FilePlace, Listed, empty_folder, empty_glob, hidden_path, hive, parquet_name};
use crate::manifest::{self, Manifest};
use crate::store::remote::{head, list as list_prefix, pin_of, read_small};
use crate::store::{Bucket, key_path};

/// Lists a key, a prefix or a glob.
pub(super) async fn list(bucket: &Bucket, key: &str) -> Result<Vec<Listed>> {
    let written = format!("{}/{key}", bucket.root);
    if is_pattern(key) {
        let pattern = Pattern::new(key)?;
        let found = below(bucket, &pattern.root).await?;
        let files: Vec<Listed> = found
            .into_iter()
            .filter(|(relative, _)| !hidden_path(relative) && matches_or_above(&pattern, relative))
            .map(|(relative, meta)| file(bucket, relative, meta))
            .collect();
        if files.is_empty() {
            return Err(empty_glob(&written));
        }
        return Ok(sorted(files));
    }
    // A key that looks like a file is most likely one: one request instead of a listing.
    let looks_like_file = parquet_name(key);
    if looks_like_file && let Some(found) = single(bucket, key).await? {
        return Ok(vec![found]);
    }
    let found = below(bucket, key).await?;
    if found.is_empty() {
        if !looks_like_file
            && !key.is_empty()
            && !key.ends_with('/')
            && let Some(found) = single(bucket, key).await?
        {
            return Ok(vec![found]);
        }
        return Err(missing(bucket, key, &written).await);
    }
    match content(bucket, key, &written, found).await? {
        Content::Committed(files) => Ok(files),
        Content::Plain(files, others) if files.is_empty() => Err(empty_folder(&written, &others)),
        Content::Plain(files, _) => Ok(files),
    }
}

/// The data of a prefix; empty where there is nothing.
pub(super) async fn folder(bucket: &Bucket, key: &str) -> Result<Vec<Listed>> {
    let written = format!("{}/{key}", bucket.root);
    let found = below(bucket, key).await?;
    match content(bucket, key, &written, found).await? {
        Content::Committed(files) | Content::Plain(files, _) => Ok(files),
    }
}

/// What a prefix holds.
enum Content {
    /// There is a manifest, so that no file at all is right, too.
    Committed(Vec<Listed>),
    /// Files by name, and the names that were not taken.
    Plain(Vec<Listed>, Vec<String>),
}

/// Whether a key matches, or lies in a "folder" that does.
fn matches_or_above(pattern: &Pattern, relative: &str) -> bool {
    if pattern.matches(relative) {
        return true;
    }
    let name = relative.rsplit('/').next().unwrap_or(relative);
    parquet_name(name)
        && relative.match_indices('/').any(|(at, _)| {
            let above = &relative[..at];
            pattern.matches(above) && !pattern.may_hold_more(above)
        })
}

async fn single(bucket: &Bucket, key: &str) -> Result<Option<Listed>> {
    let path = key_path(bucket, key)?;
    let Some(meta) = head(bucket, &path).await? else { return Ok(None) };
    let name = path.filename().unwrap_or_default().to_owned();
    Ok(Some(file(bucket, name, meta)))
}

fn file(bucket: &Bucket, relative: String, meta: ObjectMeta) -> Listed {
    Listed {
        uri: bucket.uri(&meta.location).into(),
        partitions: hive::partitions(&relative),
        relative,
        pin: pin_of(&meta),
        place: FilePlace::Remote(bucket.clone(), meta.location),
    }
}

/// All objects below a prefix, by their path below it.
async fn below(bucket: &Bucket, prefix: &str) -> Result<BTreeMap<String, ObjectMeta>> {
    let prefix = prefix.trim_matches('/');
    let path = if prefix.is_empty() { None } else { Some(key_path(bucket, prefix)?) };
    let skip = if prefix.is_empty() { 0 } else { prefix.len() + 1 };
    let found = list_prefix(bucket, path.as_ref()).await?;
    Ok(found
        .into_iter()
        .filter_map(|meta| {
            let relative = meta.location.as_ref().get(skip..)?.to_owned();
            // Consoles mark folders by empty objects; the listing then gives the folder itself.
            (!relative.is_empty()).then_some((relative, meta))
        })
        .collect())
}

/// The data of a prefix: what manifests list, and Parquet names elsewhere.
async fn content(
    bucket: &Bucket,
    key: &str,
    written: &str,
    found: BTreeMap<String, ObjectMeta>,
) -> Result<Content> {
    // Folders with a manifest, outermost first: it speaks for everything below it.
    let mut owners: Vec<&str> = Vec::new();
    for relative in found.keys() {
        let Some(owner) = relative.strip_suffix(manifest::PATH) else { continue };
        if (owner.is_empty() || owner.ends_with('/')) && !hidden_path(owner.trim_end_matches('/')) {
            owners.push(owner);
        }
    }
    owners.sort_by_key(|o| o.len());
    let mut taken: Vec<&str> = Vec::new();
    let mut files = Vec::new();
    for owner in owners {
        if taken.iter().any(|t| owner.starts_with(t)) {
            continue;
        }
        taken.push(owner);
        let at = Path::parse(
            format!("{}/{owner}{}", key.trim_matches('/'), manifest::PATH).trim_start_matches('/'),
        )
        .map_err(|e| Error::internal("a listed key cannot be parsed").with_source(e))?;
        let uri = bucket.uri(&at);
        let Some((bytes, _)) = read_small(bucket, &at).await? else {
            return Err(Error::new(
                ErrorKind::Changed,
                format!("{uri} was removed while it was read"),
            ));
        };
        for entry in Manifest::parse(&bytes, &uri)?.files {
            let relative = format!("{owner}{}", entry.path);
            let Some(meta) = found.get(&relative) else {
                let names: Vec<&str> = found.keys().filter_map(|k| k.strip_prefix(owner)).collect();
                return Err(manifest::missing(written, &entry.path, &names));
            };
            if meta.size != entry.bytes {
                return Err(manifest::resized(&bucket.uri(&meta.location), entry.bytes, meta.size));
            }
            files.push(file(bucket, relative, meta.clone()));
        }
    }
    let committed = !taken.is_empty();
    let mut others = Vec::new();
    for (relative, meta) in &found {
        if hidden_path(relative) || taken.iter().any(|t| relative.starts_with(t)) {
            continue;
        }
        if parquet_name(relative) {
            files.push(file(bucket, relative.clone(), meta.clone()));
        } else {
            others.push(relative.clone());
        }
    }
    let files = sorted(files);
    Ok(if committed { Content::Committed(files) } else { Content::Plain(files, others) })
}

fn sorted(mut files: Vec<Listed>) -> Vec<Listed> {
    files.sort_by(|a, b| a.relative.as_bytes().cmp(b.relative.as_bytes()));
    files
}

/// The error of a key that is neither an object nor a prefix, with the nearest name beside it.
pub(crate) async fn missing(bucket: &Bucket, key: &str, written: &str) -> Error {
    let error = Error::new(ErrorKind::NotFound, format!("{written} does not exist"));
    let key = key.trim_matches('/');
    if key.is_empty() {
        return Error::new(ErrorKind::NotFound, format!("the bucket {} is empty", bucket.root));
    }
    let (parent, name) = key.rsplit_once('/').unwrap_or(("", key));
    let Ok(prefix) = Path::parse(parent) else { return error };
    let prefix = if parent.is_empty() { None } else { Some(&prefix) };
    // Only for the hint: a failure here must not hide the error itself.
    let Ok(store) = bucket.store() else { return error };
    let Ok(beside) = store.list_with_delimiter(prefix).await else { return error };
    let mut names: HashMap<String, ()> = HashMap::new();
    for path in beside.objects.iter().map(|o| &o.location).chain(&beside.common_prefixes) {
        names.insert(path.filename().unwrap_or_default().to_owned(), ());
    }
    match suggest::nearest(name, names.keys().map(String::as_str)) {
        Some(near) => {
            let slash = if parent.is_empty() { "" } else { "/" };
            error.with_hint(format!("did you mean \"{}/{parent}{slash}{near}\"?", bucket.root))
        }
        None => error,
    }
}
