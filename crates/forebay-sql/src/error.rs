//! Errors in the user's words: the expression with a caret, and DataFusion's sentence without its
//! prefixes.

use arrow::error::ArrowError;
use forebay_core::{Error, ErrorKind};

use crate::df::DataFusionError;

/// A span of characters in an expression: line and column from 1, and a length in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) line: u64,
    pub(crate) column: u64,
    pub(crate) width: u64,
}

impl Spot {
    pub(crate) fn new(line: u64, column: u64, width: u64) -> Self {
        Self { line, column, width: width.max(1) }
    }
}

/// An error about an expression: the sentence, then the line in question with a caret under it.
pub(crate) fn at_spot(
    kind: ErrorKind,
    message: impl AsRef<str>,
    sql: &str,
    spot: Option<Spot>,
) -> Error {
    Error::new(kind, format!("{}{}", message.as_ref(), snippet(sql, spot)))
}

/// The offending line of an expression, indented, with carets under the span.
fn snippet(sql: &str, spot: Option<Spot>) -> String {
    // An expression is a line or two; what is longer is cut around the caret, to fit a screen.
    const ROOM: usize = 100;
    let number = spot.map_or(0, |s| s.line.saturating_sub(1) as usize);
    let line: Vec<char> = sql
        .split('\n')
        .nth(number)
        .unwrap_or("")
        .chars()
        .map(|c| if c == '\t' || c == '\r' { ' ' } else { c })
        .collect();
    let caret = spot.map(|s| (s.column.saturating_sub(1) as usize).min(line.len()));
    let start = caret.filter(|_| line.len() > ROOM).map_or(0, |c| c.saturating_sub(ROOM / 2));
    let end = line.len().min(start + ROOM);
    let shown: String = line[start.min(end)..end].iter().collect();
    let before = if start > 0 { "…" } else { "" };
    let after = if end < line.len() { "…" } else { "" };
    let mut out = format!("\n    {before}{}{after}", shown.trim_end());
    if let (Some(caret), Some(spot)) = (caret, spot) {
        let pad = caret - start + before.chars().count();
        let width = (spot.width as usize).min(end.saturating_sub(caret)).max(1);
        out.push_str(&format!("\n    {}{}", " ".repeat(pad), "^".repeat(width)));
    }
    out
}

/// What DataFusion or arrow say, without the prefixes that name their own insides.
pub(crate) fn sentence(error: &DataFusionError) -> String {
    let root = error.find_root();
    let text = match root {
        DataFusionError::ArrowError(e, _) => arrow_sentence(e),
        DataFusionError::Plan(s)
        | DataFusionError::Execution(s)
        | DataFusionError::NotImplemented(s)
        | DataFusionError::Internal(s) => s.clone(),
        DataFusionError::SchemaError(e, _) => e.to_string(),
        other => other.to_string(),
    };
    clean(&text)
}

fn arrow_sentence(error: &ArrowError) -> String {
    match error {
        ArrowError::DivideByZero => "division by zero".to_owned(),
        ArrowError::ArithmeticOverflow(s) => match s.strip_prefix("Overflow happened on: ") {
            Some(what) => format!("{what} overflows"),
            None => s.clone(),
        },
        ArrowError::CastError(s)
        | ArrowError::ComputeError(s)
        | ArrowError::InvalidArgumentError(s)
        | ArrowError::ParseError(s)
        | ArrowError::NotYetImplemented(s)
        | ArrowError::SchemaError(s) => s.clone(),
        other => other.to_string(),
    }
}

/// One sentence on one line, without a full stop and without advice meant for DataFusion's users.
fn clean(text: &str) -> String {
    const NOISE: [&str; 12] = [
        "This feature is not implemented: ",
        "Error during planning: ",
        "Execution error: ",
        "Internal error: ",
        "Arrow error: ",
        "Compute error: ",
        "Cast error: ",
        "Schema error: ",
        "Invalid argument error: ",
        "External error: ",
        "Parser error: ",
        "Optimizer rule ",
    ];
    let mut text = text.split("\n\nbacktrace:").next().unwrap_or(text);
    for cut in [
        "\nThis issue was likely caused by",
        ".\nThis issue was likely caused by",
        "\n\tCandidate functions:",
    ] {
        text = text.split(cut).next().unwrap_or(text);
    }
    let mut text = text.trim();
    while let Some(rest) = NOISE.iter().find_map(|n| text.strip_prefix(n)) {
        text = rest;
    }
    // Its own words stand in the middle as well, where it wraps one error into another.
    let mut text = text.replace(" user-defined coercion failed with: ", ": ");
    for noise in NOISE {
        text = text.replace(noise, "");
    }
    if let Some((what, all)) = text.split_once(" failed to match any signature, errors: ") {
        text = signatures(what, all);
    }
    let mut out: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    while out.ends_with('.') {
        out.pop();
    }
    out
}

/// One sentence from what each signature of a function has against its arguments, each thing once and
/// without the type's second name.
fn signatures(what: &str, all: &str) -> String {
    let mut said: Vec<String> = Vec::new();
    for part in all.split(&format!(",{what} ")) {
        let part = part.split(" (DataType: ").next().unwrap_or(part);
        let part = part.strip_prefix(what).unwrap_or(part).trim_matches([' ', '.', ',']).to_owned();
        if !said.contains(&part) {
            said.push(part);
        }
    }
    format!("{what} {}", said.join(", or "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caret_is_under_the_word() {
        let e = at_spot(
            ErrorKind::InvalidInput,
            "no such word",
            "a > 1 AND\n\tbb < 2",
            Some(Spot::new(2, 2, 2)),
        );
        assert_eq!(e.message(), "no such word\n     bb < 2\n     ^^");
    }

    #[test]
    fn long_lines_are_cut_around_the_caret() {
        let sql = format!("{} wrong {}", "x ".repeat(200), "y ".repeat(200));
        let column = sql.find("wrong").map_or(0, |i| i as u64 + 1);
        let text = at_spot(ErrorKind::InvalidInput, "m", &sql, Some(Spot::new(1, column, 5)))
            .message()
            .to_owned();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].chars().count() < 120, "{text}");
        let caret = lines[2].chars().position(|c| c == '^').unwrap_or(0);
        assert_eq!(lines[1].chars().skip(caret).take(5).collect::<String>(), "wrong");
    }

    #[test]
    fn prefixes_go() {
        let e = DataFusionError::ArrowError(Box::new(ArrowError::DivideByZero), None);
        assert_eq!(sentence(&e), "division by zero");
        assert_eq!(sentence(&DataFusionError::Plan("Error during planning: x  y.".into())), "x y");
        let told = "Function 'f' user-defined coercion failed with: Error during planning: bad";
        assert_eq!(sentence(&DataFusionError::Plan(told.into())), "Function 'f': bad");
        let told = "Function 'f' failed to match any signature, errors: Error during planning: \
                    Function 'f' expects 2 arguments but received 1,Error during planning: Function \
                    'f' requires Float64, but received String (DataType: Utf8).,Error during planning: \
                    Function 'f' expects 2 arguments but received 1";
        assert_eq!(
            sentence(&DataFusionError::Plan(told.into())),
            "Function 'f' expects 2 arguments but received 1, or requires Float64, but received String"
        );
    }
}
