//! What `forebay inspect` shows.

use parquet::basic::Encoding;

use super::{DataFile, Dataset};

/// One file.
#[derive(Clone, Debug, PartialEq)]
pub struct FileSummary {
    /// As the user would write it.
    pub uri: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Rows.
    pub rows: u64,
    /// Who wrote it, where the file says so.
    pub created_by: Option<String>,
    /// Whether it has a page index, so that parts of row groups can be read.
    pub page_index: bool,
    /// Hive partitions.
    pub partitions: Vec<(String, Option<String>)>,
    /// Its row groups.
    pub row_groups: Vec<RowGroupSummary>,
}

/// One row group.
#[derive(Clone, Debug, PartialEq)]
pub struct RowGroupSummary {
    /// Rows.
    pub rows: u64,
    /// Bytes in the file.
    pub compressed: u64,
    /// Bytes of the pages before compression.
    pub uncompressed: u64,
}

/// One leaf column over all files.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnSummary {
    /// Path of the leaf, with `.`.
    pub path: String,
    /// Bytes in the files.
    pub compressed: u64,
    /// Bytes of the pages before compression.
    pub uncompressed: u64,
    /// Compression codecs in use, e.g. `zstd`.
    pub codecs: Vec<String>,
    /// Whether some of it is dictionary-encoded.
    pub dictionary: bool,
}

impl DataFile {
    /// What `forebay inspect` shows of it.
    pub fn summary(&self) -> FileSummary {
        let positive = |n: i64| u64::try_from(n).unwrap_or(0);
        FileSummary {
            uri: self.uri.to_string(),
            bytes: self.size,
            rows: self.rows,
            created_by: self.metadata.file_metadata().created_by().map(str::to_owned),
            page_index: self.metadata.offset_index().is_some(),
            partitions: self.partitions.clone(),
            row_groups: self
                .metadata
                .row_groups()
                .iter()
                .map(|g| RowGroupSummary {
                    rows: positive(g.num_rows()),
                    compressed: g.columns().iter().map(|c| positive(c.compressed_size())).sum(),
                    uncompressed: g.columns().iter().map(|c| positive(c.uncompressed_size())).sum(),
                })
                .collect(),
        }
    }
}

impl Dataset {
    /// The leaf columns over all files, in order of first appearance.
    pub fn columns(&self) -> Vec<ColumnSummary> {
        let mut out: Vec<ColumnSummary> = Vec::new();
        let mut index = std::collections::HashMap::new();
        for file in &self.files {
            for group in file.metadata.row_groups() {
                for column in group.columns() {
                    let path = column.column_path().string();
                    let at = *index.entry(path.clone()).or_insert_with(|| {
                        out.push(ColumnSummary {
                            path,
                            compressed: 0,
                            uncompressed: 0,
                            codecs: Vec::new(),
                            dictionary: false,
                        });
                        out.len() - 1
                    });
                    let Some(entry) = out.get_mut(at) else { continue };
                    entry.compressed += u64::try_from(column.compressed_size()).unwrap_or(0);
                    entry.uncompressed += u64::try_from(column.uncompressed_size()).unwrap_or(0);
                    let codec = format!("{:?}", column.compression());
                    // `ZSTD(ZstdLevel(1))`: the level in a footer is made up by the reader.
                    let codec = codec.split('(').next().unwrap_or_default().to_lowercase();
                    if !entry.codecs.contains(&codec) {
                        entry.codecs.push(codec);
                    }
                    entry.dictionary |= column.encodings().any(|e| {
                        matches!(e, Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY)
                    });
                }
            }
        }
        out
    }
}
