//! What names a resolved dataset.

use forebay_plan::{PlanHash, SnapshotId};

use super::Dataset;

/// The version of what the id covers and how.
const ID_VERSION: u32 = 1;

impl Dataset {
    /// The dataset's name: the same for a copy elsewhere, another one when a path below its root, a
    /// size, a footer, a block or the schema is another.
    ///
    /// It is the 128-bit FNV-1a of a text with a line for each file (length of the relative path, the
    /// path, size, XXH64 of the footer), a line for each of its blocks (row group, first row, end),
    /// and the fields of the schema.
    pub fn id(&self) -> SnapshotId {
        use std::fmt::Write;
        let mut text = format!("forebay snapshot {ID_VERSION}\n");
        let mut blocks = self.blocks.iter().peekable();
        for (index, file) in self.files.iter().enumerate() {
            // Writing to a String does not fail.
            let _ = writeln!(
                text,
                "file {} {} {} {:016x}",
                file.relative.len(),
                file.relative,
                file.size,
                file.checksum
            );
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
}
