//! "Did you mean": the nearest right word to a wrong one.

/// The candidate nearest to `word`, or none when nothing is near enough to be a slip of the hand.
///
/// Distance is Damerau-Levenshtein on lower-case text; a third of the word's length may differ
/// (at least one letter), which accepts `colunms` for `columns` and refuses `weight` for `label`.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let limit = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
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

/// A column's name as SQL expressions take it: in double quotes where it is not a plain word.
pub fn in_sql(name: &str) -> String {
    let plain = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_slips_and_refuses_strangers() {
        assert_eq!(nearest("colunms", ["uri", "columns"]), Some("columns"));
        assert_eq!(nearest("weight", ["label", "image"]), None);
        assert_eq!(hint("xyz", ["label", "image"]), "choose from label, image");
        assert_eq!(in_sql("dep_delay"), "dep_delay");
        assert_eq!(in_sql("my \"col\""), "\"my \"\"col\"\"\"");
    }
}
