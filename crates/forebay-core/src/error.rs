//! One error type for the whole engine.
//!
//! An error is for the person who sees it: what happened, where, and what to do. It therefore has a
//! kind (what a program branches on), a message (one sentence), a [`Location`] in the data, a place
//! in the plan, a hint, and a source. `Display` is one line; the hint and the causes are printed
//! by the faces (command line, Python), which know how much room they have.

use std::fmt;
use std::sync::Arc;

use crate::text::{brief, shorten};

/// The result type of the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a program may branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request is wrong: an unknown key, a bad value, a SQL syntax error.
    InvalidInput,
    /// A file, bucket or column that was named does not exist.
    NotFound,
    /// Credentials or file permissions do not allow the access.
    PermissionDenied,
    /// The target already holds committed output.
    AlreadyExists,
    /// The bytes are not what their format says.
    Corrupt,
    /// Schemas or types do not fit each other.
    Schema,
    /// A value in the data does not allow the operation: an overflow, a division by zero, a failed
    /// cast.
    Value,
    /// The input is valid, and Forebay does not handle it.
    Unsupported,
    /// The disk, the network or the server failed.
    Io,
    /// Memory, disk space or descriptors ran out, or a limit was reached.
    Resource,
    /// The file changed since it was listed.
    Changed,
    /// The work was stopped by its owner.
    Cancelled,
    /// A defect in Forebay.
    Internal,
}

impl ErrorKind {
    /// All kinds.
    pub const ALL: [Self; 13] = [
        Self::InvalidInput,
        Self::NotFound,
        Self::PermissionDenied,
        Self::AlreadyExists,
        Self::Corrupt,
        Self::Schema,
        Self::Value,
        Self::Unsupported,
        Self::Io,
        Self::Resource,
        Self::Changed,
        Self::Cancelled,
        Self::Internal,
    ];

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// A stable lower-case name, used in `--json` output.
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidInput => "invalid_input",
            Self::NotFound => "not_found",
            Self::PermissionDenied => "permission_denied",
            Self::AlreadyExists => "already_exists",
            Self::Corrupt => "corrupt",
            Self::Schema => "schema",
            Self::Value => "value",
            Self::Unsupported => "unsupported",
            Self::Io => "io",
            Self::Resource => "resource",
            Self::Changed => "changed",
            Self::Cancelled => "cancelled",
            Self::Internal => "internal",
        }
    }
}

/// Where in the data an error happened. Every part is optional; the parts that are known are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// Path or URI of the file, as the user would write it.
    pub file: Option<Arc<str>>,
    /// Row group within the file, from 0.
    pub row_group: Option<usize>,
    /// Row within the file, from 0.
    pub row: Option<u64>,
    /// Column name.
    pub column: Option<String>,
}

impl Location {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Characters of a column's name that are shown.
const COLUMN: usize = 200;

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sep = "";
        if let Some(file) = &self.file {
            write!(f, "file {file}")?;
            sep = ", ";
        }
        if let Some(rg) = self.row_group {
            write!(f, "{sep}row group {rg}")?;
            sep = ", ";
        }
        if let Some(row) = self.row {
            write!(f, "{sep}row {row}")?;
            sep = ", ";
        }
        if let Some(column) = &self.column {
            write!(f, "{sep}column {}", shorten(column, COLUMN))?;
        }
        Ok(())
    }
}

type Source = Arc<dyn std::error::Error + Send + Sync + 'static>;

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    place: Option<String>,
    location: Location,
    hint: Option<String>,
    retryable: bool,
    source: Option<Source>,
}

/// What happened, where, and what to do. Cheap to move (one pointer); cloning shares the source.
#[derive(Clone)]
pub struct Error(Box<Inner>);

impl Error {
    /// A new error. The message is one sentence in the user's words, without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: brief(message.into()),
            place: None,
            location: Location::default(),
            hint: None,
            retryable: false,
            source: None,
        }))
    }

    /// Shorthand for [`ErrorKind::InvalidInput`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    /// Shorthand for [`ErrorKind::Internal`]: a defect of ours, never of the user's.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
            .with_hint("this is a defect in Forebay; please report it with this message")
    }

    /// Names the place in the plan, the job file or the argument list, e.g.
    /// `steps[1].map_image.ops[0]` or `job.yaml:7:5: source.parquet`. The outermost place wins
    /// nothing: an existing place is kept.
    #[must_use]
    pub fn at_place(mut self, place: impl Into<String>) -> Self {
        self.0.place.get_or_insert_with(|| brief(place.into()));
        self
    }

    /// Rewrites the place, if there is one: a face that knows more (the line of a job file, the name
    /// of an argument) puts it into the user's terms.
    #[must_use]
    pub fn map_place(mut self, f: impl FnOnce(&str) -> String) -> Self {
        self.0.place = self.0.place.take().map(|place| f(&place));
        self
    }

    /// Names the file, unless one is named already (the innermost knows best).
    #[must_use]
    pub fn in_file(mut self, file: impl Into<Arc<str>>) -> Self {
        self.0.location.file.get_or_insert_with(|| file.into());
        self
    }

    /// Names the row group, unless one is named already.
    #[must_use]
    pub fn in_row_group(mut self, row_group: usize) -> Self {
        self.0.location.row_group.get_or_insert(row_group);
        self
    }

    /// Names the row within the file, unless one is named already.
    #[must_use]
    pub fn at_row(mut self, row: u64) -> Self {
        self.0.location.row.get_or_insert(row);
        self
    }

    /// Names what another location names, as far as nothing is named already.
    #[must_use]
    pub fn at(mut self, other: &Location) -> Self {
        let Location { file, row_group, row, column } = &mut self.0.location;
        *file = file.take().or_else(|| other.file.clone());
        *row_group = row_group.or(other.row_group);
        *row = row.or(other.row);
        *column = column.take().or_else(|| other.column.clone());
        self
    }

    /// Replaces the row, if one is named: for a caller that knows which row of the file a row of a
    /// batch is.
    #[must_use]
    pub fn map_row(mut self, f: impl FnOnce(u64) -> u64) -> Self {
        self.0.location.row = self.0.location.row.map(f);
        self
    }

    /// Names the column, unless one is named already.
    #[must_use]
    pub fn in_column(mut self, column: impl Into<String>) -> Self {
        self.0.location.column.get_or_insert_with(|| column.into());
        self
    }

    /// What the user can do. Kept if one is there already.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint.get_or_insert_with(|| brief(hint.into()));
        self
    }

    /// Replaces the hint: for a caller that knows a better one.
    #[must_use]
    pub fn with_better_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(brief(hint.into()));
        self
    }

    /// The error underneath.
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Marks the error as one that a retry may cure.
    #[must_use]
    pub fn retry(mut self) -> Self {
        self.0.retryable = true;
        self
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The sentence, without location, hint and cause.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The place in the plan or the arguments.
    pub fn place(&self) -> Option<&str> {
        self.0.place.as_deref()
    }

    /// Where in the data.
    pub fn location(&self) -> &Location {
        &self.0.location
    }

    /// What to do.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// Whether trying again may help.
    pub fn retryable(&self) -> bool {
        self.0.retryable
    }

    /// Whether the request was wrong (exit status 2), rather than the run (exit status 1).
    pub fn is_usage(&self) -> bool {
        self.0.kind == ErrorKind::InvalidInput
    }

    /// The whole story on a few lines: message, `hint:` and `caused by:` lines.
    pub fn report(&self) -> String {
        use std::fmt::Write as _;
        let mut out = self.to_string();
        let mut cause = std::error::Error::source(self);
        let mut last = out.clone();
        while let Some(c) = cause {
            let text = brief(c.to_string());
            // Many libraries repeat their cause in their own message; say each thing once.
            if !last.contains(&text) {
                let _ = write!(out, "\n  caused by: {text}");
            }
            last = text;
            cause = c.source();
        }
        if let Some(hint) = self.hint() {
            let _ = write!(out, "\n  hint: {hint}");
        }
        out
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.0.place {
            write!(f, "{place}: ")?;
        }
        f.write_str(&self.0.message)?;
        let location = &self.0.location;
        // A column that the message names already, and no other place, is not said twice.
        let told = location.file.is_none()
            && location.row_group.is_none()
            && location.row.is_none()
            && location.column.as_ref().is_some_and(|c| self.0.message.contains(&format!("{c:?}")));
        if !location.is_empty() && !told {
            write!(f, " ({location})")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.report())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|s| &**s as &(dyn std::error::Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_to_display_many_to_report() {
        let e = Error::new(ErrorKind::Corrupt, "cannot decode the JPEG")
            .in_file("a.parquet")
            .in_row_group(2)
            .at_row(17)
            .in_column("image")
            .with_hint("set on_error=\"skip\" to leave such rows out")
            .with_source(std::io::Error::other("premature end"));
        assert_eq!(
            e.to_string(),
            "cannot decode the JPEG (file a.parquet, row group 2, row 17, column image)"
        );
        assert_eq!(
            e.report(),
            "cannot decode the JPEG (file a.parquet, row group 2, row 17, column image)\n  \
             caused by: premature end\n  hint: set on_error=\"skip\" to leave such rows out"
        );
    }

    #[test]
    fn the_innermost_location_is_kept() {
        let e = Error::invalid("x").in_file("inner").in_file("outer");
        assert_eq!(e.location().file.as_deref(), Some("inner"));
    }
}
