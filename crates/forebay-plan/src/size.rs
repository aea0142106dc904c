//! Byte sizes as people write them: `64MiB`, `1.5 GB`, `4096`.

/// The units, longest spelling first so that `MiB` is not read as `B`.
const UNITS: [(&str, u64); 14] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("b", 1),
    ("", 1),
];

/// The bytes of a size such as `64MiB` (binary units, also `64M` as the shell tools have it) or
/// `64MB` (decimal). None when it is no size.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(*factor);
    }
    if !number.starts_with(|c: char| c.is_ascii_digit()) || *factor == 1 {
        return None;
    }
    let bytes = number.parse::<f64>().ok()? * *factor as f64;
    // 2^53: beyond it a fraction says nothing about bytes.
    (bytes <= 9_007_199_254_740_992.0).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64MiB", 64 << 20),
            ("64 mib", 64 << 20),
            ("64M", 64 << 20),
            ("1.5GiB", 3 << 29),
            ("2GB", 2_000_000_000),
            ("10 B", 10),
        ] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for text in [
            "",
            "MiB",
            "-1",
            "1.5",
            "1..5MiB",
            ".5MiB",
            "64 MiB/s",
            "99999999999TiB",
            "1e9",
            "٣MiB",
        ] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }
}
