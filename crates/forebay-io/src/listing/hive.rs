//! Hive partitions: columns in the names of folders, `year=2013/month=01/`.

use std::collections::HashSet;

use arrow::datatypes::DataType;

/// The value that stands for null.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

fn decode(text: &str) -> String {
    // Bytes that are not UTF-8 after decoding stay as they were written: nothing is lost.
    percent_encoding::percent_decode_str(text)
        .decode_utf8()
        .map_or_else(|_| text.to_owned(), |s| s.into_owned())
}

/// The partitions in the folders of a relative path (its last part is the file's name).
pub(crate) fn partitions(relative: &str) -> Vec<(String, Option<String>)> {
    let folders = relative.rsplit_once('/').map_or("", |(folders, _)| folders);
    let mut seen = HashSet::new();
    let mut out = Vec::new();
    for part in folders.split('/') {
        let Some((key, value)) = part.split_once('=') else { continue };
        let key = decode(key);
        if key.is_empty() || !seen.insert(key.clone()) {
            continue;
        }
        out.push((key, (value != NULL).then(|| decode(value))));
    }
    out
}

/// The type of a partition column: int64 when every value is an integer, as pyarrow and DuckDB infer
/// it (int64 always, so that a further file with a larger value does not change the type), else
/// string. Nulls fit both; a column of nulls only is a string.
pub(crate) fn infer<'a>(values: impl IntoIterator<Item = Option<&'a str>>) -> DataType {
    let mut any = false;
    for value in values.into_iter().flatten() {
        any = true;
        if parse_int(value).is_none() {
            return DataType::Utf8;
        }
    }
    if any { DataType::Int64 } else { DataType::Utf8 }
}

/// Digits with an optional minus. `+1`, `1_000` and spaces are text.
pub(crate) fn parse_int(value: &str) -> Option<i64> {
    let digits = value.strip_prefix('-').unwrap_or(value);
    (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
        .then(|| value.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn pairs(path: &str) -> Vec<(String, Option<String>)> {
        partitions(path)
    }

    #[test]
    fn t3_partition_values_are_decoded() {
        assert_eq!(
            pairs("city=a%2Fb/n=x y/p=100%25/f.parquet"),
            [
                ("city".to_owned(), Some("a/b".to_owned())),
                ("n".to_owned(), Some("x y".to_owned())),
                ("p".to_owned(), Some("100%".to_owned()))
            ]
        );
        assert_eq!(pairs("k=__HIVE_DEFAULT_PARTITION__/f"), [("k".to_owned(), None)]);
        assert_eq!(pairs("k=/f"), [("k".to_owned(), Some(String::new()))]);
        assert_eq!(pairs("k=a=b/f"), [("k".to_owned(), Some("a=b".to_owned()))]);
        assert_eq!(pairs("plain/f=1.parquet"), []);
        assert_eq!(pairs("k=%ff/f"), [("k".to_owned(), Some("%ff".to_owned()))]);
    }

    #[test]
    fn types_are_inferred_over_all_values() {
        assert_eq!(infer([Some("1"), Some("-20"), None]), DataType::Int64);
        assert_eq!(infer([Some("1"), Some("x")]), DataType::Utf8);
        assert_eq!(infer([Some("99999999999999999999")]), DataType::Utf8);
        assert_eq!(infer([Some("+1")]), DataType::Utf8);
        assert_eq!(infer([None]), DataType::Utf8);
    }
}
