//! "Did you mean": the nearest right word to a wrong one.

/// The longest word that is compared, in bytes.
const LONGEST: usize = 300;

/// The candidate nearest to `word`, or none when nothing is near enough to be a slip of the hand.
///
/// Distance is Damerau-Levenshtein on lower-case text; a third of the word's length may differ
/// (at least one letter), which accepts `colunms` for `columns` and refuses `weight` for `label`.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // The distance costs the product of the lengths, and nobody slips in a word that long.
    if word.len() > LONGEST {
        return None;
    }
    let lower = word.to_lowercase();
    let limit = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .filter(|c| c.len() <= LONGEST)
        .map(|c| (strsim::damerau_levenshtein(&lower, &c.to_lowercase()), c))
        .filter(|(d, c)| *d <= limit || (lower.len() >= 3 && c.to_lowercase().starts_with(&lower)))
        .min_by_key(|(d, _)| *d)
        .map(|(_, c)| c)
}

/// A hint for a wrong word: the nearest right one, else the list of all (at most 20 are shown).
pub fn hint<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let all: Vec<&str> = candidates.into_iter().collect();
    match nearest(word, all.iter().copied()) {
        Some(near) => format!("did you mean {near:?}?"),
        None if all.is_empty() => "there are none to choose from".to_owned(),
        None => {
            let shown = all.iter().take(20).copied().collect::<Vec<_>>().join(", ");
            let more = if all.len() > 20 {
                format!(", and {} more", all.len() - 20)
            } else {
                String::new()
            };
            format!("choose from {shown}{more}")
        }
    }
}

/// Words that SQL expressions take for something else where a column is meant; `tests/python` tries
/// them. The other words of the language are plain names where a column may stand.
#[rustfmt::skip]
const RESERVED: &[&str] = &[
    "all", "any", "current_catalog", "current_date", "current_time", "current_timestamp",
    "current_user", "distinct", "exists", "false", "interval", "localtime", "localtimestamp", "not",
    "null", "returning", "session_user", "some", "struct", "trim", "true", "user",
];

/// A column's name as SQL expressions take it: in double quotes where it is not a plain word.
pub fn in_sql(name: &str) -> String {
    let plain = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && RESERVED.binary_search(&name.to_ascii_lowercase().as_str()).is_err();
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// A column's name as an argument of a Python call.
pub fn in_python(name: &str) -> String {
    literal(name, '"')
}

/// An SQL expression as an argument of a Python call.
pub fn sql_in_python(expr: &str) -> String {
    literal(expr, '\'')
}

/// The test that leaves out rows in which a column is null, as a Python call.
pub fn not_null(name: &str) -> String {
    format!("filter({})", sql_in_python(&format!("{} IS NOT NULL", in_sql(name))))
}

/// A column cast to a type, as a Python call.
pub fn cast_to(name: &str, sql_type: &str) -> String {
    let expr = format!("CAST({} AS {sql_type})", in_sql(name));
    format!("with_column({}, {})", in_python(name), sql_in_python(&expr))
}

/// A Python literal of a text.
fn literal(text: &str, quote: char) -> String {
    use std::fmt::Write as _;
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote || c == '\\' => out.extend(['\\', c]),
            c if crate::text::visible(c.encode_utf8(&mut [0; 4])).starts_with('\\') => {
                let _ = write!(out, "\\U{:08x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_valid_sql_and_python() {
        assert!(RESERVED.is_sorted());
        assert_eq!(in_sql("Null"), "\"Null\"");
        assert_eq!(not_null("label"), "filter('label IS NOT NULL')");
        assert_eq!(not_null("it's"), r#"filter('"it\'s" IS NOT NULL')"#);
        assert_eq!(in_python("a\"b\\\n\u{202e}"), r#""a\"b\\\n\U0000202e""#);
        assert_eq!(cast_to("null", "DOUBLE"), r#"with_column("null", 'CAST("null" AS DOUBLE)')"#);
    }

    #[test]
    fn finds_slips_and_refuses_strangers() {
        assert_eq!(nearest("colunms", ["uri", "columns"]), Some("columns"));
        assert_eq!(nearest("weight", ["label", "image"]), None);
        assert_eq!(hint("xyz", ["label", "image"]), "choose from label, image");
        assert_eq!(in_sql("dep_delay"), "dep_delay");
        assert_eq!(in_sql("my \"col\""), "\"my \"\"col\"\"\"");
    }
}
