//! `NaN` and `Infinity` in JSON.
//!
//! JSON has no such numbers, and Python writes them all the same. They are read, so that the readers of
//! a plan can say what they expected instead, and where.

/// What stands before a number that is not finite while it is a text to the JSON parser. No text of a
/// plan begins like this.
const MARK: &str = "\0number:";

/// The text with the numbers that Python writes and JSON lacks (`NaN`, `Infinity`) as marked texts;
/// none where there are none. So that the readers can say what they expected instead, and where.
pub(super) fn marked(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut found) = (text, false);
    while let Some(c) = rest.chars().next() {
        if c == '"' {
            let mut escaped = false;
            let end = rest[1..].find(|c| {
                let end = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                end
            });
            let (whole, after) = rest.split_at(end.map_or(rest.len(), |n| n + 2));
            out.push_str(whole);
            rest = after;
            continue;
        }
        let word = [("NaN", "nan"), ("-Infinity", "-inf"), ("Infinity", "inf")];
        if let Some((word, number)) = word.iter().find(|(word, _)| rest.starts_with(word)) {
            super::write_text(&mut out, &format!("{MARK}{number}"));
            rest = &rest[word.len()..];
            found = true;
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    found.then_some(out)
}

/// The number that a marked text stands for.
pub(super) fn number(text: &str) -> Option<f64> {
    text.strip_prefix(MARK)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_left_alone() {
        assert_eq!(marked(r#"{"NaN": "a\"Infinity\\", "é": 1}"#), None);
        assert_eq!(
            marked(r#"{"NaN": [NaN, -Infinity, "Infinity"]}"#).as_deref(),
            Some(r#"{"NaN": ["\u0000number:nan", "\u0000number:-inf", "Infinity"]}"#)
        );
        assert_eq!(number("\0number:-inf"), Some(f64::NEG_INFINITY));
        assert_eq!(number("nan"), None);
        // A text that does not end is JSON's to complain of.
        assert_eq!(marked(r#"["\"#), None);
    }
}
