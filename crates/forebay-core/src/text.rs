//! Numbers and texts as people read them.

/// Bytes in the unit that a person would choose.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A count with separators.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// The first `max` characters, with a mark where there were more.
pub fn shorten(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        None => text.to_owned(),
        Some(_) => text.chars().take(max.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Characters of a value, a name or a type that an error quotes.
const QUOTED: usize = 200;

/// Characters of one part of an error: about a screen of a terminal.
const PART: usize = 1000;

/// A part of an error, with what it quotes from the data cut to a length that can be read. Most errors
/// are short and stay as they are.
pub fn brief(text: String) -> String {
    if text.len() <= 2 * QUOTED {
        return text;
    }
    let mut out = String::with_capacity(text.len().min(4 * PART));
    let mut rest = text.as_str();
    while let Some(at) = rest.find(['"', '\'', '`']) {
        let quote = rest[at..].chars().next().unwrap_or('"');
        let (before, quoted) = rest.split_at(at + 1);
        out.push_str(before);
        // A quote that is escaped belongs to the value.
        let mut escaped = false;
        let end = quoted.find(|c| {
            let end = c == quote && !escaped;
            escaped = c == '\\' && !escaped;
            end
        });
        let Some(end) = end else {
            rest = quoted;
            continue;
        };
        if quoted[..end].chars().nth(QUOTED).is_none() {
            // The second quote may as well be an apostrophe and the first of the next pair.
            rest = quoted;
            continue;
        }
        out.push_str(&shorten(&quoted[..end], QUOTED));
        out.push(quote);
        rest = &quoted[end + quote.len_utf8()..];
    }
    out.push_str(rest);
    let length = out.chars().count();
    if length <= PART {
        return out;
    }
    // The end often says what was expected, so both ends stay.
    let tail: String = out.chars().skip(length - PART / 4).collect();
    format!("{} {tail}", shorten(&out, PART - PART / 4))
}

/// A text of the outside world for a terminal: control characters and those that turn the direction of
/// writing are shown by their codes, so that a file's name cannot write over what stands before it.
pub fn visible(text: &str) -> String {
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if hidden(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn long_quotes_are_cut_and_short_texts_stay() {
        use super::brief;
        let short = "cannot cast 'abc' to Int32".to_owned();
        assert_eq!(brief(short.clone()), short);
        let cut = brief(format!("it's bad: cannot cast '{}' to Int32", "x".repeat(100_000)));
        assert!(cut.chars().count() < 300, "{cut}");
        assert!(cut.starts_with("it's bad: cannot cast 'xxx") && cut.ends_with("x…' to Int32"));
        let cut = brief(format!("type Struct({}) has no tensor form", "a: Int64, ".repeat(5000)));
        assert!(cut.chars().count() <= 1001, "{}", cut.len());
        assert!(cut.ends_with("has no tensor form") && cut.contains('…'));
        let cut = brief(format!("there is no column {:?}", "\"é".repeat(5000)));
        assert!(cut.chars().count() < 300, "{cut}");
    }

    #[test]
    fn nothing_of_a_name_reaches_the_terminal() {
        assert_eq!(super::visible("a\x1b[31m\n\u{202e}é"), "a\\u{1b}[31m\\n\\u{202e}é");
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(super::count(1_234_567), "1,234,567");
        assert_eq!(super::count(12), "12");
        assert_eq!(super::bytes(512), "512 B");
        assert_eq!(super::bytes(3 << 20), "3.0 MiB");
    }
}
