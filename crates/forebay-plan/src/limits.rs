//! The ranges of values, and how they are said. Reading and validating share them, so that a wrong
//! value gives the same words from a file and from the builder.

use std::ops::RangeInclusive;

/// Edges of pictures and crops in pixels. JPEG's own limit is 65535, PNG's is larger; a tensor with
/// a larger edge is a mistake.
pub(crate) const EDGE: RangeInclusive<u32> = 1..=65536;

/// Padding in pixels, each side.
pub(crate) const PADDING: RangeInclusive<u32> = 0..=65536;

/// A channel value.
pub(crate) const PIXEL: RangeInclusive<u32> = 0..=255;

/// Classes of a label. A row of the most takes 64 MiB; more were a mistake.
pub(crate) const CLASSES: RangeInclusive<u32> = 1..=1 << 24;

/// zstd's levels.
pub(crate) const ZSTD_LEVEL: RangeInclusive<u64> = 1..=22;

/// Bytes of row groups and files: not so small that a file is all footer.
pub(crate) const FILE_BYTES: RangeInclusive<u64> = 1024..=1 << 50;

/// Most channels that a picture has.
pub(crate) const MAX_CHANNELS: usize = 4;

/// Samples of a batch. Row numbers within a batch are 32 bits wide.
pub(crate) const BATCH: RangeInclusive<u64> = 1..=1 << 31;

/// A loader's memory: below a mebibyte the number was meant in other units.
pub const MEMORY: RangeInclusive<u64> = 1 << 20..=1 << 50;

/// What is said of a plan that holds a password.
pub(crate) const CREDENTIALS: &str = "a plan never holds credentials";

/// And what to do about it.
pub(crate) const CREDENTIALS_HINT: &str = "remove it; set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and \
     AWS_SESSION_TOKEN in the environment, or let the machine's role provide them";

/// Whether a key is the name of a secret. Such keys get an answer of their own, and their values
/// are never shown.
pub(crate) fn is_credential(key: &str) -> bool {
    let key: String =
        key.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    key.ends_with("token")
        || ["accesskey", "secret", "password", "passwd", "credential", "apikey", "privatekey"]
            .iter()
            .any(|word| key.contains(word))
}

/// Whether a URI or an endpoint carries a user, a password or a signature.
pub(crate) fn has_credentials(uri: &str) -> bool {
    let Some((_, rest)) = uri.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let query = rest.split_once('?').map_or("", |(_, q)| q).to_ascii_lowercase();
    authority.contains('@')
        || query.contains("x-amz-signature=")
        || query.contains("x-amz-credential=")
}

/// "a whole number from 1 to 22".
pub(crate) fn whole(range: &RangeInclusive<u64>) -> String {
    match (*range.start(), *range.end()) {
        (0, u64::MAX) => "a whole number that is not negative".to_owned(),
        (low, u64::MAX) => format!("a whole number of at least {low}"),
        (low, high) => format!("a whole number from {low} to {high}"),
    }
}

/// "a size from 1 KiB to 1 PiB".
pub(crate) fn size(range: &RangeInclusive<u64>) -> String {
    format!("a size from {} to {}", bytes(*range.start()), bytes(*range.end()))
}

fn bytes(n: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut n, mut unit) = (n, 0);
    while n >= 1024 && n.is_multiple_of(1024) && unit + 1 < units.len() {
        (n, unit) = (n / 1024, unit + 1);
    }
    format!("{n} {}", units[unit])
}

/// "a or b", "one of a, b, c".
pub(crate) fn one_of(words: &[&str]) -> String {
    match words {
        [one] => (*one).to_owned(),
        [a, b] => format!("{a} or {b}"),
        many => format!("one of {}", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_ranges() {
        assert_eq!(whole(&(1..=22)), "a whole number from 1 to 22");
        assert_eq!(whole(&(1..=u64::MAX)), "a whole number of at least 1");
        assert_eq!(size(&MEMORY), "a size from 1 MiB to 1 PiB");
    }

    #[test]
    fn secrets_are_seen() {
        for key in
            ["access_key", "aws_secret_access_key", "AccessKeyId", "session-token", "password"]
        {
            assert!(is_credential(key), "{key}");
        }
        for key in ["uri", "endpoint", "region", "anonymous", "columns"] {
            assert!(!is_credential(key), "{key}");
        }
        assert!(has_credentials("s3://KEY:SECRET@bucket/x"));
        assert!(has_credentials("https://host/x?X-Amz-Signature=1"));
        assert!(!has_credentials("s3://bucket/user@example.com/x"));
        assert!(!has_credentials("data/user@example.com"));
    }
}
