//! Globs: `*`, `?`, `[..]` within a name, `**` across folders.

use forebay_core::{Error, Result};
use globset::{GlobBuilder, GlobMatcher};

/// A pattern below a literal root.
pub(super) struct Pattern {
    /// The literal part before the first part with a wildcard, `""` where there is none.
    pub(super) root: String,
    /// One matcher per part, while the part is not `**`: prunes a walk.
    parts: Vec<Option<GlobMatcher>>,
    whole: GlobMatcher,
}

/// Whether a path is a pattern.
pub(super) fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?', '['])
}

fn glob(text: &str, whole: &str) -> Result<GlobMatcher> {
    GlobBuilder::new(text)
        .literal_separator(true)
        .backslash_escape(true)
        .build()
        .map(|g| g.compile_matcher())
        .map_err(|e| {
            Error::invalid(format!("the glob {whole:?} cannot be read: {}", e.kind()))
                .with_hint("escape a character that is meant literally, as in [[] or \\[")
        })
}

impl Pattern {
    /// Splits a path into its literal root and the pattern below it.
    pub(super) fn new(path: &str) -> Result<Self> {
        let all: Vec<&str> = path.split('/').collect();
        let first = all.iter().position(|p| is_pattern(p)).unwrap_or(all.len());
        let root = match first {
            0 => String::new(),
            // An absolute pattern such as /*.parquet.
            1 if all[0].is_empty() => "/".to_owned(),
            n => all[..n].join("/"),
        };
        let rest: Vec<&str> = all[first..].iter().copied().filter(|p| !p.is_empty()).collect();
        let whole = glob(&rest.join("/"), path)?;
        let parts = rest
            .iter()
            .map(|p| if p.contains("**") { Ok(None) } else { glob(p, path).map(Some) })
            .collect::<Result<_>>()?;
        Ok(Self { root, parts, whole })
    }

    /// Whether a path below the root matches.
    pub(super) fn matches(&self, relative: &str) -> bool {
        self.whole.is_match(relative)
    }

    /// Whether the pattern goes on below the folder `relative`, which itself matches: a `**` covers
    /// what is below by itself.
    pub(super) fn may_hold_more(&self, relative: &str) -> bool {
        let depth = relative.split('/').count();
        self.parts.len() > depth || self.parts.iter().any(Option::is_none)
    }

    /// Whether something below the folder `relative` may match.
    pub(super) fn may_hold(&self, relative: &str) -> bool {
        for (depth, name) in relative.split('/').enumerate() {
            match self.parts.get(depth) {
                Some(Some(part)) => {
                    if !part.is_match(name) {
                        return false;
                    }
                }
                Some(None) => return true,
                None => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn splits_matches_and_prunes() {
        let p = Pattern::new("data/2013/part-*.parquet").unwrap();
        assert_eq!(p.root, "data/2013");
        assert!(p.matches("part-1.parquet") && !p.matches("x/part-1.parquet"));
        let p = Pattern::new("/d/y=*/m=[01]?/*.parquet").unwrap();
        assert_eq!(p.root, "/d");
        assert!(p.matches("y=2013/m=01/a.parquet") && !p.matches("y=2013/m=21/a.parquet"));
        assert!(
            p.may_hold("y=1")
                && p.may_hold("y=1/m=12")
                && !p.may_hold("z=1")
                && !p.may_hold("y=1/m=12/deep")
        );
        let p = Pattern::new("**/*.parquet").unwrap();
        assert_eq!(p.root, "");
        assert!(p.matches("a.parquet") && p.matches("a/b/c.parquet") && p.may_hold("a/b/c"));
        let p = Pattern::new("/*.parquet").unwrap();
        assert_eq!(p.root, "/");
        assert!(Pattern::new("data/[z-a]*").is_err());
    }
}
