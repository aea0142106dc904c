//! From what the user wrote to files.

use std::path::Path;

use forebay_core::{ErrorKind, Result};
use forebay_io::Dataset;

use crate::files::*;

async fn names(uris: &[&str]) -> Result<Vec<String>> {
    let dataset = Dataset::open(&source(uris)).await?;
    Ok(dataset.files.iter().map(|f| f.relative.clone()).collect())
}

fn tree(root: &Path, paths: &[&str]) {
    for (i, path) in paths.iter().enumerate() {
        write(&root.join(path), &numbered(i as i64 * 10, 2));
    }
}

#[tokio::test]
async fn t13_a_path_listed_twice_is_read_twice() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("a.parquet"), &numbered(0, 600));
    write(&dir.path().join("b.parquet"), &numbered(600, 400));
    let folder = text(dir.path());
    let once: Vec<i64> = (0..1000).collect();
    for _ in 0..3 {
        let got = read_all(&source(&[folder, folder])).await.unwrap();
        assert_eq!(ids(&got), [once.clone(), once.clone()].concat());
    }
    let dataset = Dataset::open(&source(&[folder, folder])).await.unwrap();
    assert_eq!(dataset.files.iter().map(|f| f.first_row).collect::<Vec<_>>(), [0, 600, 1000, 1600]);
}

#[tokio::test]
async fn folders_are_walked_in_bytewise_order_without_hidden_names() {
    let dir = tempfile::tempdir().unwrap();
    tree(
        dir.path(),
        &[
            "b.parquet",
            "a/z.parquet",
            "a.parquet",
            "B.PARQUET",
            "_tmp/x.parquet",
            ".h.parquet",
            "a/_x.parquet",
            "ü.pq",
        ],
    );
    std::fs::write(dir.path().join("README.md"), "hello").unwrap();
    std::fs::write(dir.path().join("_SUCCESS"), "").unwrap();
    // `.` sorts before `/`.
    assert_eq!(
        names(&[text(dir.path())]).await.unwrap(),
        ["B.PARQUET", "a.parquet", "a/z.parquet", "b.parquet", "ü.pq"]
    );
    // A root may be hidden: the rule is for what lies below it.
    assert_eq!(names(&[text(&dir.path().join("_tmp"))]).await.unwrap(), ["x.parquet"]);
    // Arguments keep their order, slashes and file:// are understood.
    let a = format!("{}/a/", text(dir.path()));
    let b = format!("file://{}/b.parquet", text(dir.path()));
    assert_eq!(names(&[&b, &a]).await.unwrap(), ["b.parquet", "z.parquet"]);
    let dataset = Dataset::open(&source(&[&a])).await.unwrap();
    assert_eq!(&*dataset.files[0].uri, format!("{}/a/z.parquet", text(dir.path())));
}

#[tokio::test]
async fn globs_match_within_and_across_folders() {
    let dir = tempfile::tempdir().unwrap();
    tree(
        dir.path(),
        &[
            "y=1/a1.parquet",
            "y=1/a2.parquet",
            "y=2/a1.parquet",
            "y=2/deep/a3.parquet",
            "y=2/_no/a4.parquet",
            "data.bin",
        ],
    );
    let glob = |g: &str| format!("{}/{g}", text(dir.path()));
    assert_eq!(
        names(&[&glob("*/a?.parquet")]).await.unwrap(),
        ["y=1/a1.parquet", "y=1/a2.parquet", "y=2/a1.parquet"]
    );
    assert_eq!(names(&[&glob("y=[2]/a*")]).await.unwrap(), ["y=2/a1.parquet"]);
    assert_eq!(names(&[&glob("**/a3.parquet")]).await.unwrap(), ["y=2/deep/a3.parquet"]);
    assert_eq!(names(&[&glob("**/*.parquet")]).await.unwrap().len(), 4);
    // A folder that matches is taken whole; a file that matches is taken whatever its ending.
    assert_eq!(names(&[&glob("y=*")]).await.unwrap().len(), 4);
    assert_eq!(names(&[&glob("*.bin")]).await.unwrap(), ["data.bin"]);
    // Partitions of a glob are those below its literal root.
    let got = Dataset::open(&source(&[&glob("y=*/a1.parquet")])).await.unwrap();
    assert!(got.schema.field_with_name("y").is_ok());
    let e = names(&[&glob("*.csv")]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound);
    assert!(e.message().contains("no file matches") && e.message().contains("*.csv"), "{e}");
    assert_eq!(names(&[&glob("[")]).await.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn a_name_with_wildcards_that_exists_is_a_path() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), &["a[1].parquet", "a1.parquet"]);
    assert_eq!(names(&[text(&dir.path().join("a[1].parquet"))]).await.unwrap(), ["a[1].parquet"]);
}

#[cfg(unix)]
#[tokio::test]
async fn links_are_followed_and_loops_are_not() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), &["real/a.parquet"]);
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::os::unix::fs::symlink(dir.path().join("real"), data.join("linked")).unwrap();
    std::os::unix::fs::symlink(&data, data.join("loop")).unwrap();
    assert_eq!(names(&[text(&data)]).await.unwrap(), ["linked/a.parquet"]);
    std::os::unix::fs::symlink(dir.path().join("gone"), data.join("b.parquet")).unwrap();
    let e = names(&[text(&data)]).await.unwrap_err();
    assert!(e.message().contains("link to a file that does not exist"), "{e}");
}

#[tokio::test]
async fn what_is_missing_is_named_with_the_nearest_name() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), &["train/part-0.parquet"]);
    let at = |p: &str| format!("{}/{p}", text(dir.path()));
    let e = names(&[&at("train/prat-0.parquet")]).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound);
    assert!(e.message().contains("prat-0.parquet does not exist"), "{e}");
    assert!(e.hint().unwrap().contains("part-0.parquet"), "{e:?}");
    let e = names(&[&at("trian/part-0.parquet")]).await.unwrap_err();
    assert!(e.hint().unwrap().contains("train"), "{e:?}");
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    let e = names(&[&at("empty")]).await.unwrap_err();
    assert!(e.message().contains("is empty"), "{e}");
    std::fs::write(dir.path().join("empty/data.csv"), "a\n1\n").unwrap();
    let e = names(&[&at("empty")]).await.unwrap_err();
    assert!(e.message().contains("no Parquet files, only data.csv"), "{e}");
    assert!(names(&[]).await.unwrap_err().is_usage());
    assert!(names(&[""]).await.unwrap_err().is_usage());
    assert!(names(&["s4://bucket/x"]).await.unwrap_err().is_usage());
}
