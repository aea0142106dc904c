//! Where bytes live: the local file system, and object stores behind one handle per bucket.
//!
//! Local files are read with plain positioned reads on the blocking pool: one system call per
//! coalesced range, no copy besides the kernel's. Object stores go through `object_store`, with our
//! own retry on top, because a body that ends early or breaks in the middle is only seen by whoever
//! collects it. There is one client per (bucket, options, AWS variables): connections and
//! credential caches are shared by everything in the process.
//!
//! Credentials come from the usual AWS variables or the machine's role, never from a plan. No error
//! or `Debug` output of this module contains them: of a server's answer only its error code and
//! message are kept.

pub mod fault;
pub(crate) mod local;
mod pages;
pub(crate) mod problem;
pub(crate) mod remote;
mod s3;

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use forebay_core::process::PerProcess;
use forebay_core::sync::lock;
use forebay_core::{Error, Result, suggest};
use forebay_plan::StorageOptions;
use object_store::ObjectStore;
use object_store::path::Path;

pub use s3::s3_store;

/// The schemes that a URI may have.
pub(crate) const SCHEMES: [&str; 2] = ["file", "s3"];

/// An object store and the URI of its root, e.g. `s3://bucket`.
#[derive(Clone)]
pub(crate) struct Bucket {
    client: Arc<Client>,
    /// `s3://bucket`, without a slash at the end.
    pub(crate) root: Arc<str>,
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The store's own Debug output may hold configuration; the root says enough.
        write!(f, "Bucket({})", self.root)
    }
}

impl Bucket {
    /// What requests are made with.
    pub(crate) fn store(&self) -> Result<&Arc<dyn ObjectStore>> {
        self.client.store()
    }

    /// Whether this is the same bucket with the same options.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.client.is(&other.client)
    }

    /// The URI of an object, as a user would write it.
    pub(crate) fn uri(&self, path: &Path) -> String {
        format!("{}/{path}", self.root)
    }
}

/// Where a URI or path points.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A path of the local file system, and the prefix that the user wrote before it (`file://`).
    Local { path: PathBuf, prefix: &'static str },
    /// A key or prefix of a bucket, as the user wrote it (it may be a pattern).
    Remote { bucket: Bucket, key: String },
}

/// Stores that tests (or an embedding program) put in the place of a bucket.
static REGISTERED: LazyLock<Mutex<HashMap<String, Arc<dyn ObjectStore>>>> =
    LazyLock::new(Default::default);

/// A bucket, and a hash of the options and of the AWS variables.
type ClientKey = (String, u64);

/// One client per (bucket, options, AWS variables).
static CLIENTS: PerProcess<Mutex<HashMap<ClientKey, Arc<Client>>>> = PerProcess::new();

/// The client of a bucket.
enum Client {
    Registered(Arc<dyn ObjectStore>),
    S3 {
        bucket: String,
        options: StorageOptions,
        /// The AWS variables, as they were.
        variables: BTreeMap<String, String>,
        /// A forked child opens connections of its own: the threads that serve the parent's do not exist
        /// there, and the server would see the requests of two processes on one connection.
        made: Box<PerProcess<Result<Arc<dyn ObjectStore>>>>,
    },
}

impl Client {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Registered(a), Self::Registered(b)) => Arc::ptr_eq(a, b),
            (
                Self::S3 { bucket, options, variables, .. },
                Self::S3 { bucket: b, options: o, variables: v, .. },
            ) => (bucket, options, variables) == (b, o, v),
            _ => false,
        }
    }

    fn store(&self) -> Result<&Arc<dyn ObjectStore>> {
        match self {
            Self::Registered(store) => Ok(store),
            Self::S3 { bucket, options, variables, made } => made
                .get(|| s3_store(bucket, options, &|name| variables.get(name).cloned()))
                .as_ref()
                .map_err(Clone::clone),
        }
    }
}

/// Puts a store in the place of a bucket for this process, e.g. `register("s3://faulty", store)`.
///
/// Every URI that starts with `root` is then served by it: by readers, listings and writers alike.
/// This is how tests put a [`fault::FaultStore`] under the whole engine, and how a program brings a
/// store that this crate does not know. Any scheme may be registered, e.g. `memory://a`.
pub fn register(root: &str, store: Arc<dyn ObjectStore>) {
    let root = root.trim_end_matches('/').to_owned();
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).insert(root, store);
}

/// Finds where `uri` points, and the client for it.
pub(crate) fn resolve(uri: &str, options: &StorageOptions) -> Result<Place> {
    if uri.is_empty() {
        return Err(Error::invalid("a path is empty")
            .with_hint("give a file, a folder, a glob or an s3:// URI"));
    }
    let Some((scheme, rest)) = uri.split_once("://") else {
        return Ok(Place::Local { path: PathBuf::from(uri), prefix: "" });
    };
    let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
    let root = format!("{scheme}://{authority}");
    let registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).get(&root).cloned();
    if let Some(store) = registered {
        return Ok(Place::Remote {
            bucket: Bucket { client: Arc::new(Client::Registered(store)), root: root.into() },
            key: key.to_owned(),
        });
    }
    match scheme {
        "file" if rest.is_empty() || !rest.contains('/') => {
            Err(Error::invalid(format!("{uri:?} names no path")).with_hint("write file:///path"))
        }
        "file" => {
            if !(authority.is_empty() || authority == "localhost") {
                return Err(Error::invalid(format!("{uri:?} names a host, {authority:?}"))
                    .with_hint(format!("write file:///{rest} for the local path /{rest}")));
            }
            let path = percent_encoding::percent_decode_str(key).decode_utf8_lossy();
            Ok(Place::Local { path: PathBuf::from(format!("/{path}")), prefix: "file://" })
        }
        "s3" => {
            if authority.is_empty() {
                return Err(Error::invalid(format!("{uri:?} names no bucket"))
                    .with_hint("write s3://bucket/path"));
            }
            Ok(Place::Remote {
                bucket: Bucket { client: client(authority, options)?, root: root.into() },
                key: key.to_owned(),
            })
        }
        other => {
            let hint = match other {
                "s3a" | "s3n" => format!("write s3://{rest}"),
                "http" | "https" => {
                    "download the file first, or use s3:// with `endpoint` for an S3 server".into()
                }
                _ => suggest::hint(other, SCHEMES),
            };
            Err(Error::invalid(format!("unknown scheme {other:?} in {uri:?}")).with_hint(hint))
        }
    }
}

/// The shared client of a bucket.
fn client(bucket: &str, options: &StorageOptions) -> Result<Arc<Client>> {
    let mut hasher = DefaultHasher::new();
    (&options.endpoint, &options.region, options.path_style, options.anonymous).hash(&mut hasher);
    // The variables are part of the key, so that a program that changes them gets a new client.
    let variables: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with("AWS_"))
        .collect();
    variables.hash(&mut hasher);
    let key = (bucket.to_owned(), hasher.finish());

    let mut clients = lock(CLIENTS.get(Mutex::default));
    if let Some(found) = clients.get(&key) {
        return Ok(Arc::clone(found));
    }
    let (bucket, options) = (bucket.to_owned(), options.clone());
    let client = Arc::new(Client::S3 { bucket, options, variables, made: Box::default() });
    client.store()?;
    clients.insert(key, Arc::clone(&client));
    Ok(client)
}

/// The key of an object, exactly as the store holds it.
pub(crate) fn key_path(bucket: &Bucket, key: &str) -> Result<Path> {
    Path::parse(key).map_err(|e| {
        Error::invalid(format!("{}/{key} is not a key that can be read", bucket.root))
            .with_hint("keys with empty, `.` or `..` parts are not supported")
            .with_source(e)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn hint(uri: &str) -> (String, String) {
        let e = resolve(uri, &StorageOptions::default()).unwrap_err();
        (e.message().to_owned(), e.hint().unwrap_or_default().to_owned())
    }

    #[test]
    fn wrong_schemes_are_named_and_corrected() {
        assert_eq!(hint("s4://b/x").1, "did you mean \"s3\"?");
        assert_eq!(hint("s3a://b/x").1, "write s3://b/x");
        assert!(hint("gs://b/x").0.contains("unknown scheme \"gs\""));
        assert!(hint("s3:///x").0.contains("names no bucket"));
        assert!(hint("file://host/x").1.contains("file:///"));
        assert!(hint("file://").0.contains("names no path"));
    }

    #[test]
    fn file_uris_are_decoded() {
        let Place::Local { path, prefix } =
            resolve("file:///a%20b/c", &StorageOptions::default()).unwrap()
        else {
            panic!("not local")
        };
        assert_eq!((path.to_str().unwrap(), prefix), ("/a b/c", "file://"));
    }

    #[test]
    fn a_client_is_shared_per_bucket_and_options() {
        let a = StorageOptions { anonymous: Some(true), ..Default::default() };
        let b = StorageOptions { region: Some("eu-west-1".into()), ..a.clone() };
        assert!(Arc::ptr_eq(&client("x", &a).unwrap(), &client("x", &a).unwrap()));
        assert!(!Arc::ptr_eq(&client("x", &a).unwrap(), &client("x", &b).unwrap()));
        assert!(!Arc::ptr_eq(&client("x", &a).unwrap(), &client("y", &a).unwrap()));
    }
}
