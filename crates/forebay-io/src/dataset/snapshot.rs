//! Snapshots: what names a resolved dataset, and how it is kept in a file.
//!
//! A snapshot is one JSON document: the files with their pins, and all footers with their page
//! indexes as one zstd stream in base64. A thousand ranks that read it list nothing and read no
//! footer. It is data from outside as any file is, and is checked as such.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::fs::File;
use std::hash::Hasher;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use base64::read::DecoderReader;
use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Result};
use forebay_plan::{PlanHash, SnapshotId, StorageOptions};
use object_store::{ObjectStoreExt, PutPayload};
use parquet::file::metadata::ParquetMetaDataWriter;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash64;

use super::{DataFile, Dataset, Pin, read_footers};
use crate::blocking;
use crate::footer::{self, Footer};
use crate::listing::{self, FilePlace, Listed};
use crate::store::problem::{file_error, store_error};
use crate::store::{Place, key_path, remote, resolve};

/// The version of what the id covers and how.
const ID_VERSION: u32 = 1;

/// The version of the file format that is written, and the newest that is read.
const FORMAT: u32 = 1;

/// The largest footer that is taken in earnest; a hostile length is not allocated.
const MOST: usize = 1 << 30;

/// Footers of one writer are alike: a low level packs them to a fraction.
const LEVEL: i32 = 3;

#[derive(Serialize, Deserialize)]
struct Document {
    /// Format version; also what tells a snapshot from other JSON.
    forebay_snapshot: u32,
    id: String,
    rows: u64,
    /// What was listed.
    listed: Vec<String>,
    files: Vec<Entry>,
    /// Base64 of the zstd stream of all footers, one after the other.
    footers: String,
    /// XXH64 of the document without this: a statistic with a changed bit would prune rows that are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    checksum: Option<String>,
}

impl Document {
    /// What `checksum` is to be.
    fn sum(&self) -> serde_json::Result<String> {
        struct Summed(XxHash64);
        impl Write for Summed {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.write(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let mut summed = Summed(XxHash64::with_seed(0));
        serde_json::to_writer(&mut summed, self)?;
        Ok(format!("{:016x}", summed.0.finish()))
    }
}

#[derive(Serialize, Deserialize)]
struct Entry {
    uri: String,
    /// Path below the root of its argument.
    path: String,
    size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    e_tag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mtime_ns: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    partitions: Vec<(String, Option<String>)>,
    /// XXH64 of the footer in the file.
    checksum: String,
    /// Bytes of the footer in the stream; none where another entry is the same file, and 0 where it
    /// cannot be kept (types that are not known here): it is then read from the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    footer: Option<usize>,
}

impl Dataset {
    /// The dataset's name: the same for a copy elsewhere, another one when a path below its root, a
    /// size, a footer, a block or the schema is another.
    ///
    /// It is the 128-bit FNV-1a of a text with a line for each file (length of the relative path, the
    /// path, size, XXH64 of the footer), a line for each of its blocks (row group, first row, end),
    /// and the fields of the schema.
    pub fn id(&self) -> SnapshotId {
        let mut text = format!("forebay snapshot {ID_VERSION}\n");
        let mut blocks = self.blocks.iter().peekable();
        for (index, file) in self.files.iter().enumerate() {
            let (path, size) = (&file.relative, file.size);
            // Writing to a String does not fail.
            let _ = writeln!(text, "file {} {path} {size} {:016x}", path.len(), file.checksum);
            while let Some(b) = blocks.next_if(|b| b.file == index) {
                let _ = writeln!(text, "block {} {} {}", b.row_group, b.rows.start, b.rows.end);
            }
        }
        for field in self.schema.fields() {
            let (name, null) = (field.name(), field.is_nullable());
            let _ = writeln!(text, "field {} {name} {} {null}", name.len(), field.data_type());
        }
        SnapshotId(PlanHash::of(text.as_bytes()).0)
    }

    /// A hash of the files' pins: another one where a file was written anew, even with the same footer.
    pub fn pins(&self) -> PlanHash {
        let mut text = String::new();
        for file in &self.files {
            let _ = writeln!(text, "{:?}", file.pin);
        }
        PlanHash::of(text.as_bytes())
    }

    /// Whether these arguments were listed for it.
    pub fn is_of(&self, arguments: &[String]) -> bool {
        let whole = |uris: &[String]| uris.iter().map(|u| absolute(u).ok()).collect::<Vec<_>>();
        whole(&self.listed) == whole(arguments)
    }

    /// The document of a snapshot.
    fn to_document(&self) -> Result<Vec<u8>> {
        let unwritten = |e: std::io::Error| Error::internal("cannot pack footers").with_source(e);
        let mut stream = zstd::stream::Encoder::new(Vec::new(), LEVEL).map_err(unwritten)?;
        let mut seen: HashSet<&str> = HashSet::new();
        let mut files = Vec::with_capacity(self.files.len());
        for file in &self.files {
            let footer = if seen.insert(&file.uri) {
                let mut bytes = Vec::new();
                if ParquetMetaDataWriter::new(&mut bytes, &file.metadata).finish().is_err() {
                    bytes.clear();
                }
                stream.write_all(&bytes).map_err(unwritten)?;
                Some(bytes.len())
            } else {
                None
            };
            files.push(entry(file, footer)?);
        }
        let packed = stream.finish().map_err(unwritten)?;
        let mut document = Document {
            forebay_snapshot: FORMAT,
            id: self.id().to_string(),
            rows: self.rows(),
            listed: self.listed.iter().map(|uri| absolute(uri)).collect::<Result<_>>()?,
            files,
            footers: BASE64.encode(packed),
            checksum: None,
        };
        let unsaid = |e| Error::internal("cannot write a snapshot").with_source(e);
        document.checksum = Some(document.sum().map_err(unsaid)?);
        serde_json::to_vec(&document).map_err(unsaid)
    }

    /// Saves the snapshot to a path or URI: the whole document, or nothing of it.
    pub async fn save_snapshot(
        self: &Arc<Self>,
        uri: &str,
        storage: &StorageOptions,
    ) -> Result<()> {
        if listing::parquet_name(uri.rsplit('/').next().unwrap_or(uri)) {
            return Err(Error::invalid(format!(
                "a snapshot cannot be named {uri}: it would be taken for data"
            ))
            .with_hint("give it a name that ends in .json"));
        }
        let this = Arc::clone(self);
        let document = blocking::run(move || this.to_document()).await?;
        match resolve(uri, storage)? {
            Place::Local { path, .. } => {
                let uri = uri.to_owned();
                blocking::run(move || {
                    replace(&path, &document).map_err(|e| {
                        let missing = e.kind() == std::io::ErrorKind::NotFound;
                        let error = file_error(e, "write", &uri);
                        if missing { error.with_hint("make its folder first") } else { error }
                    })
                })
                .await
            }
            Place::Remote { bucket, key } => {
                let path = key_path(&bucket, &key)?;
                let document = Bytes::from(document);
                remote::retrying(|| async {
                    let payload = PutPayload::from_bytes(document.clone());
                    let put = bucket.store()?.put(&path, payload).await;
                    put.map(|_| ()).map_err(|e| store_error(e, uri))
                })
                .await
            }
        }
    }

    /// Reads a saved snapshot. Files are not looked at: a pin is checked when its file is read.
    ///
    /// # Errors
    /// A missing file, one that is not a snapshot, is damaged, or of a later version.
    pub async fn read_snapshot(uri: &str, storage: &StorageOptions) -> Result<Self> {
        let bytes = match resolve(uri, storage)? {
            Place::Local { path, .. } => {
                let uri = uri.to_owned();
                let read = move || {
                    std::fs::read(&path).map_err(|e| match e.kind() {
                        std::io::ErrorKind::NotFound => listing::local::missing(&uri, &path),
                        std::io::ErrorKind::IsADirectory => file_error(e, "read", &uri).with_hint(
                            "give the file that a snapshot was saved to; to read the folder's data, give it to \
                             read_parquet() or as uri",
                        ),
                        _ => file_error(e, "read", &uri),
                    })
                };
                blocking::run(read).await?
            }
            Place::Remote { bucket, key } => {
                let path = key_path(&bucket, &key)?;
                match remote::read_small(&bucket, &path).await? {
                    Some((bytes, _)) => bytes.to_vec(),
                    None => return Err(listing::remote::missing(&bucket, &key, uri).await),
                }
            }
        };
        let (name, storage) = (uri.to_owned(), storage.clone());
        let mut kept = blocking::run(move || Kept::parse(&bytes, &name, &storage)).await?;
        let absent: Vec<usize> =
            (0..kept.footers.len()).filter(|i| kept.footers[*i].is_none()).collect();
        let unkept: Vec<Listed> = absent.iter().map(|i| kept.listed[*i].clone()).collect();
        for (i, footer) in absent.into_iter().zip(read_footers(&unkept).await?) {
            kept.footers[i] = Some(footer);
        }
        let footers = kept.footers.into_iter().flatten().collect();
        let dataset = Self::build(kept.arguments, kept.listed, footers)?;
        if dataset.id().to_string() != kept.id || dataset.rows() != kept.rows {
            return Err(damaged(uri, "its contents are not those that its id names"));
        }
        Ok(dataset)
    }
}

fn damaged(uri: &str, what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{uri} is not a snapshot that can be read: {what}"))
        .in_file(uri)
        .with_hint("make it again with `forebay snapshot DATA -o FILE`, or ds.snapshot().save(uri)")
}

/// What is in a document.
struct Kept {
    id: String,
    rows: u64,
    arguments: Vec<String>,
    listed: Vec<Listed>,
    /// `None` where the footer is only in the file.
    footers: Vec<Option<Footer>>,
}

impl Kept {
    fn parse(bytes: &[u8], uri: &str, storage: &StorageOptions) -> Result<Self> {
        let damaged = |what: &str| damaged(uri, what);
        let mut document: Document = serde_json::from_slice(bytes).map_err(|e| {
            let what = if e.is_eof() { "it is cut off" } else { "it is other data" };
            damaged(what).with_source(e)
        })?;
        if document.forebay_snapshot > FORMAT {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{uri} is a snapshot of format {}, and this Forebay reads up to {FORMAT}",
                    document.forebay_snapshot
                ),
            )
            .in_file(uri)
            .with_hint("use a newer Forebay, or make the snapshot again"));
        }
        let checksum = document.checksum.take();
        if checksum.is_none() || checksum != document.sum().ok() {
            return Err(damaged("its checksum is that of another document"));
        }
        let broken = |e: std::io::Error| damaged("its footers are damaged").with_source(e);
        let packed = DecoderReader::new(document.footers.as_bytes(), &BASE64);
        let mut stream = zstd::stream::Decoder::new(packed).map_err(broken)?;
        let mut known: HashMap<Arc<str>, Option<Footer>> = HashMap::new();
        let (mut listed, mut footers) = (Vec::new(), Vec::new());
        for entry in document.files {
            let place = place(&entry.uri, storage)?;
            let checksum = u64::from_str_radix(&entry.checksum, 16)
                .map_err(|_| damaged("a checksum is no number"))?;
            let found = Listed {
                uri: entry.uri.into(),
                relative: entry.path,
                place,
                partitions: entry.partitions,
                pin: Pin {
                    size: entry.size,
                    e_tag: entry.e_tag,
                    version: entry.version,
                    mtime_ns: entry.mtime_ns,
                    inode: entry.inode,
                },
            };
            let footer = match entry.footer {
                Some(0) => None,
                Some(len) if len <= MOST => {
                    let mut bytes = Vec::new();
                    (&mut stream).take(len as u64).read_to_end(&mut bytes).map_err(broken)?;
                    if bytes.len() != len {
                        return Err(damaged("its footers are cut off"));
                    }
                    let footer = footer::stored(&bytes.into(), checksum, &found.pin, &found.uri);
                    Some(footer.map_err(|e| damaged("a footer is damaged").with_source(e))?)
                }
                Some(_) => return Err(damaged("a footer has an impossible length")),
                None => {
                    let same = known.get(&found.uri).cloned();
                    same.ok_or_else(|| damaged("a footer is missing"))?
                }
            };
            known.insert(Arc::clone(&found.uri), footer.clone());
            listed.push(found);
            footers.push(footer);
        }
        if listed.is_empty() {
            return Err(damaged("it has no files"));
        }
        let (id, rows, arguments) = (document.id, document.rows, document.listed);
        Ok(Self { id, rows, arguments, listed, footers })
    }
}

fn entry(file: &DataFile, footer: Option<usize>) -> Result<Entry> {
    Ok(Entry {
        uri: match &file.place {
            FilePlace::Local(path) => {
                shown(&std::path::absolute(path).unwrap_or_else(|_| path.clone()))?
            }
            FilePlace::Remote(..) => file.uri.to_string(),
        },
        path: file.relative.clone(),
        size: file.size,
        e_tag: file.pin.e_tag.clone(),
        version: file.pin.version.clone(),
        mtime_ns: file.pin.mtime_ns,
        inode: file.pin.inode,
        partitions: file.partitions.clone(),
        checksum: format!("{:016x}", file.checksum),
        footer,
    })
}

fn shown(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        Error::invalid(format!(
            "the path {} is not UTF-8, and cannot be in a snapshot",
            path.display()
        ))
        .with_hint("rename it")
    })
}

/// An argument as another working directory would write it.
pub fn absolute(uri: &str) -> Result<String> {
    if uri.contains("://") {
        return Ok(uri.to_owned());
    }
    let ends = if uri.ends_with('/') { "/" } else { "" };
    let path = std::path::absolute(uri).unwrap_or_else(|_| PathBuf::from(uri));
    let pattern = |text: &str| text.contains(['*', '?', '[']);
    if pattern(uri) && path.ends_with(uri) && pattern(shown(&path)?.trim_end_matches(uri)) {
        // The folder's own name would be read as a pattern.
        return Ok(uri.to_owned());
    }
    Ok(format!("{}{ends}", shown(&path)?.trim_end_matches('/')))
}

fn place(uri: &str, storage: &StorageOptions) -> Result<FilePlace> {
    Ok(match resolve(uri, storage)? {
        Place::Local { path, .. } => FilePlace::Local(path),
        Place::Remote { bucket, key } => {
            let path = key_path(&bucket, &key)?;
            FilePlace::Remote(bucket, path)
        }
    })
}

/// Writes a file beside its place and moves it there: whoever reads sees the old one or the new one.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let name = path.file_name().ok_or(std::io::ErrorKind::IsADirectory)?;
    let mut part = std::ffi::OsString::from(".");
    part.push(name);
    part.push(format!(".{}.part", uuid::Uuid::new_v4().simple()));
    let part = path.with_file_name(part);
    let write = || {
        let mut file = File::create(&part)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&part, path)
    };
    write().inspect_err(|_| {
        // Nothing is left beside the target.
        let _ = std::fs::remove_file(&part);
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use arrow::array::{Int64Array, RecordBatch};
    use parquet::arrow::ArrowWriter;

    use super::*;

    /// The document of a file of 100 rows in row groups of 10.
    fn document(folder: &Path) -> Document {
        let values = Int64Array::from_iter_values(0..100);
        let batch = RecordBatch::try_from_iter([("v", Arc::new(values) as _)]).unwrap();
        let file = File::create(folder.join("a.parquet")).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        for start in (0..100).step_by(10) {
            writer.write(&batch.slice(start, 10)).unwrap();
            writer.flush().unwrap();
        }
        writer.close().unwrap();
        let uri = vec![folder.to_str().unwrap().to_owned()];
        let source = forebay_plan::ParquetSource { uri, ..Default::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dataset = runtime.block_on(Dataset::open(&source)).unwrap();
        serde_json::from_slice(&dataset.to_document().unwrap()).unwrap()
    }

    /// What is said of a document whose checksum is right.
    fn parsed(mut document: Document) -> Result<Kept> {
        document.checksum = None;
        document.checksum = Some(document.sum().unwrap());
        let bytes = serde_json::to_vec(&document).unwrap();
        Kept::parse(&bytes, "s.json", &StorageOptions::default())
    }

    #[test]
    fn every_changed_bit_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = serde_json::to_vec(&document(folder.path())).unwrap();
        assert!(Kept::parse(&bytes, "s.json", &StorageOptions::default()).is_ok());
        for (at, bit) in (0..bytes.len()).flat_map(|at| [(at, at % 8), (at, (at + 3) % 8)]) {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            let error = Kept::parse(&changed, "s.json", &StorageOptions::default()).err();
            let kind = error.map(|e| e.kind());
            let found = matches!(kind, Some(ErrorKind::Corrupt | ErrorKind::Unsupported));
            assert!(found, "byte {at}, bit {bit}: {kind:?}");
        }
    }

    #[test]
    fn documents_that_contradict_themselves_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let with = |change: &dyn Fn(&mut Document)| {
            let mut document = document(folder.path());
            change(&mut document);
            parsed(document).err().map(|e| e.kind())
        };
        assert_eq!(with(&|_| {}), None);
        let corrupt = Some(ErrorKind::Corrupt);
        assert_eq!(with(&|d| d.files.clear()), corrupt);
        assert_eq!(with(&|d| d.footers.truncate(40)), corrupt);
        assert_eq!(with(&|d| d.footers = "?".repeat(40)), corrupt);
        assert_eq!(with(&|d| d.files[0].footer = Some(1 << 60)), corrupt);
        assert_eq!(with(&|d| d.files[0].footer = Some(5)), corrupt);
        assert_eq!(with(&|d| d.files[0].footer = None), corrupt);
        assert_eq!(with(&|d| d.files[0].checksum = "x".into()), corrupt);
        assert_eq!(with(&|d| d.forebay_snapshot = FORMAT + 1), Some(ErrorKind::Unsupported));
    }
}
