//! What went wrong at a store or a file, in the user's words.

use std::io;

use forebay_core::{Error, ErrorKind};
use object_store::Error as StoreError;

use super::pages::Endless;

/// An error text that is safe to show: an S3 error code and message, or the text of an error that
/// did not come from a server. A server's full answer may quote an access key.
#[derive(Debug)]
struct Answer(String);

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Answer {}

fn tag<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let start = text.find(&open)? + open.len();
    let len = text[start..].find(&close)?;
    Some(&text[start..start + len])
}

/// Codes that mean that the caller is not who, or not as current as, the server wants.
const CREDENTIAL_CODES: [&str; 9] = [
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
    "RequestTimeTooSkewed",
    "AuthorizationHeaderMalformed",
    "InvalidSecurity",
    "MissingSecurityHeader",
];

/// Translates an error of a store about the object or prefix `uri`.
pub(crate) fn store_error(e: StoreError, uri: &str) -> Error {
    if let StoreError::Generic { source, .. } = &e
        && let Some(Endless { endpoint, why }) = source.downcast_ref()
    {
        return Error::new(
            ErrorKind::Io,
            format!("the listing of {uri} does not end: the server {endpoint} {why}"),
        )
        .with_hint(
            "check that the endpoint is an S3 server and that no proxy changes its answers",
        );
    }
    let text = chain(&e);
    let code = tag(&text, "Code").unwrap_or_default().to_owned();
    let answer = match (code.is_empty(), tag(&text, "Message")) {
        (false, Some(message)) => format!("{code}: {message}"),
        (false, None) => code.clone(),
        // An HTML or XML page that is no S3 answer says nothing to a user.
        _ if text.contains('<') => {
            text[..text.find('<').unwrap_or(0)].trim_end_matches([' ', ':']).to_owned()
        }
        _ => text.clone(),
    };
    let bucket = uri.split('/').take(3).collect::<Vec<_>>().join("/");

    let error = if code == "NoSuchBucket" {
        Error::new(ErrorKind::NotFound, format!("the bucket {bucket} does not exist"))
            .with_hint("check the bucket's name, and the endpoint if it is not on AWS")
    } else if CREDENTIAL_CODES.contains(&code.as_str()) {
        let (why, hint) = match code.as_str() {
            "ExpiredToken" | "TokenRefreshRequired" => {
                ("have expired", "get new credentials, e.g. with `aws sso login`, and run again")
            }
            "RequestTimeTooSkewed" => (
                "are refused because this machine's clock is wrong",
                "set the clock of this machine",
            ),
            "AuthorizationHeaderMalformed" => (
                "are signed for another region",
                "set `region` or AWS_REGION to the bucket's region",
            ),
            _ => (
                "are wrong",
                "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN",
            ),
        };
        Error::new(ErrorKind::PermissionDenied, format!("the credentials for {uri} {why} ({code})"))
            .with_hint(hint)
    } else if text.contains("/latest/api/token") || text.contains("169.254.169.254") {
        Error::new(ErrorKind::PermissionDenied, format!("there are no AWS credentials to reach {uri}"))
            .with_hint(
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or anonymous=true for a public bucket",
            )
    } else if let Some(error) = connection(&text) {
        error
    } else if code.is_empty() && is_page(&text) {
        let server = endpoint(&text).unwrap_or_else(|| "the endpoint".to_owned());
        Error::new(ErrorKind::Io, format!("{server} does not speak S3: it answers with a web page"))
            .with_hint("check the endpoint and its port; a console and the S3 interface have different ones")
    } else {
        match &e {
            StoreError::NotFound { .. } => {
                Error::new(ErrorKind::NotFound, format!("{uri} does not exist"))
            }
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
                denied(uri, &code)
            }
            StoreError::Precondition { .. } | StoreError::NotModified { .. } => {
                Error::new(ErrorKind::Changed, format!("{uri} changed since it was listed"))
            }
            StoreError::AlreadyExists { .. } => {
                Error::new(ErrorKind::AlreadyExists, format!("{uri} exists already"))
            }
            StoreError::NotSupported { .. } | StoreError::NotImplemented { .. } => {
                Error::new(ErrorKind::Unsupported, format!("the store of {uri} cannot do this"))
            }
            StoreError::InvalidPath { .. } => {
                Error::invalid(format!("{uri} is not a key that can be read"))
            }
            // For lists and the start of an upload the client has no kind of error but this one.
            _ if code == "AccessDenied"
                || text.contains("status code: 403")
                || text.contains("status code: 401") =>
            {
                denied(uri, &code)
            }
            _ if text.contains("status code: 4") || text.contains("status: 4") => {
                Error::new(ErrorKind::Io, format!("the server refused a request for {uri}"))
            }
            _ => {
                let error = Error::new(ErrorKind::Io, format!("a request for {uri} failed"));
                // The client says when it has used up its own retries: then the server is down, and
                // asking again only delays the news.
                if text.contains(" retries, max_retries") { error } else { error.retry() }
            }
        }
    };
    error.with_source(Answer(answer))
}

/// The server that a request went to, by the text of its error.
fn endpoint(text: &str) -> Option<String> {
    let start = text.find("http://").or_else(|| text.find("https://"))?;
    let url = url::Url::parse(text[start..].split([' ', ')', '"']).next()?).ok()?;
    let port = url.port().map_or(String::new(), |p| format!(":{p}"));
    Some(format!("{}://{}{port}", url.scheme(), url.host_str()?))
}

/// The error of a server that no connection could be made to.
fn connection(text: &str) -> Option<Error> {
    // What the HTTP client says; everything after it is the cause.
    let (_, cause) = text.split_once("client error (Connect)")?;
    let lower = cause.to_lowercase();
    let why = if lower.contains("connection refused") {
        "connection refused"
    } else if lower.contains("dns error") || lower.contains("lookup address") {
        "its name is not known"
    } else if lower.contains("timed out") || lower.contains("deadline has elapsed") {
        "no answer to the connection"
    } else if lower.contains("certificate") || lower.contains("tls") || lower.contains("ssl") {
        "no secure connection"
    } else {
        "no connection"
    };
    let retries = text.split_once("after ").and_then(|(_, t)| t.split_once(" retries"));
    let attempts = retries.and_then(|(n, _)| n.parse::<u32>().ok()).map_or(1, |n| n + 1);
    let server = endpoint(text)?;
    let message = format!("nothing answers at {server} ({why}, {attempts} attempts)");
    let error = Error::new(ErrorKind::Io, message)
        .with_hint("check the endpoint, its port, and whether it is http or https");
    Some(if text.contains(" retries, max_retries") { error } else { error.retry() })
}

/// Whether a server's answer is a web page.
fn is_page(text: &str) -> bool {
    let lower = text.to_lowercase();
    lower.contains("<!doctype html") || lower.contains("<html")
}

/// The error of credentials that the server knows and that lack a right.
fn denied(uri: &str, code: &str) -> Error {
    let code = if code.is_empty() { String::new() } else { format!(" ({code})") };
    Error::new(ErrorKind::PermissionDenied, format!("access to {uri} is denied{code}"))
        .with_hint("the credentials need s3:GetObject and s3:ListBucket, and s3:PutObject to write")
}

/// The texts of an error and its causes, each once.
fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut next = e.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = cause.source();
    }
    text
}

/// Translates an error of the local file system. `doing` is what was tried: "read", "create".
pub(crate) fn file_error(e: io::Error, doing: &str, uri: &str) -> Error {
    use io::ErrorKind as K;
    let error = match e.kind() {
        K::NotFound => Error::new(ErrorKind::NotFound, format!("{uri} does not exist")),
        K::PermissionDenied => {
            Error::new(ErrorKind::PermissionDenied, format!("may not {doing} {uri}"))
                .with_hint("check the permissions of the file and of its folders")
        }
        K::StorageFull | K::QuotaExceeded => {
            Error::new(ErrorKind::Resource, format!("cannot {doing} {uri}: the disk is full"))
                .with_hint("free space on that disk, or write elsewhere")
        }
        K::FileTooLarge => {
            Error::new(ErrorKind::Resource, format!("cannot {doing} {uri}: the file is too large"))
                .with_hint("lower file_bytes, or raise the limit of the file system or process")
        }
        K::ReadOnlyFilesystem => Error::new(
            ErrorKind::PermissionDenied,
            format!("cannot {doing} {uri}: the disk is read-only"),
        ),
        _ if uri.contains('\0') => Error::invalid(format!("{uri:?} is no path: it has a NUL byte")),
        K::InvalidFilename => Error::invalid(format!("{uri} is too long for a file name")),
        K::IsADirectory => Error::invalid(format!("{uri} is a folder")),
        K::NotADirectory => Error::new(
            ErrorKind::NotFound,
            format!("{uri} does not exist: a part of the path is a file"),
        ),
        _ if e.raw_os_error() == Some(24) || e.raw_os_error() == Some(23) => {
            Error::new(ErrorKind::Resource, format!("cannot {doing} {uri}: too many open files"))
                .with_hint("raise the limit with `ulimit -n`")
        }
        _ => Error::new(ErrorKind::Io, format!("cannot {doing} {uri}")),
    };
    error.with_source(e)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn generic(text: &str) -> StoreError {
        StoreError::Generic { store: "S3", source: text.to_owned().into() }
    }

    #[test]
    fn s2_wrong_credentials_name_the_cause_and_hide_the_key() {
        let body = "Server returned non-2xx status code: 403 Forbidden: <Error><Code>InvalidAccessKeyId</Code>\
            <Message>The key does not exist</Message><AWSAccessKeyId>AKIDSECRET</AWSAccessKeyId></Error>";
        let e = store_error(
            StoreError::PermissionDenied { path: "k".into(), source: body.into() },
            "s3://b/k",
        );
        assert_eq!(e.kind(), ErrorKind::PermissionDenied);
        assert_eq!(e.message(), "the credentials for s3://b/k are wrong (InvalidAccessKeyId)");
        assert!(!format!("{e:?}").contains("AKIDSECRET"), "{e:?}");
        assert!(!e.retryable());
        let e = store_error(generic("400 Bad Request: <Code>ExpiredToken</Code>"), "s3://b/k");
        assert!(e.message().contains("have expired"), "{e}");
        assert!(!e.retryable());
    }

    #[test]
    fn a_missing_right_is_told_from_other_refusals() {
        for text in [
            "Error performing list request: Server returned non-2xx status code: 403 Forbidden: \
             <Error><Code>AccessDenied</Code><Message>Access Denied.</Message></Error>",
            "Server returned error response: <Error><Code>AccessDenied</Code></Error>",
            "Server returned non-2xx status code: 403 Forbidden: ",
        ] {
            let e = store_error(generic(text), "s3://b/k");
            assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{text}");
            assert!(e.message().starts_with("access to s3://b/k is denied"), "{e}");
            assert!(e.hint().unwrap().contains("s3:ListBucket"));
            assert!(!e.retryable());
        }
        let e = store_error(generic("status code: 405 Method Not Allowed"), "s3://b/k");
        assert_eq!(e.kind(), ErrorKind::Io);
    }

    #[test]
    fn servers_that_are_none_are_named() {
        let e = store_error(
            generic(
                "Error performing GET http://127.0.0.1:1/b?list-type=2 in 7ms, after 4 retries, \
                 max_retries: 4, retry_timeout: 90s  - HTTP error: error sending request: client error \
                 (Connect): tcp connect error: Connection refused (os error 111)",
            ),
            "s3://b/k",
        );
        assert_eq!(
            e.message(),
            "nothing answers at http://127.0.0.1:1 (connection refused, 5 attempts)"
        );
        assert!(e.hint().unwrap().contains("http or https") && !e.retryable());
        for page in ["status code: 404 Not Found: <!DOCTYPE HTML>\n<html>", "bad: <html><body>"] {
            let e = store_error(
                generic(&format!("Error performing GET http://h:8080/b?x in 3ms - {page}")),
                "s3://b/k",
            );
            assert!(e.message().starts_with("http://h:8080 does not speak S3"), "{e}");
        }
    }

    #[test]
    fn a_missing_bucket_is_named() {
        let e = store_error(
            StoreError::NotFound { path: "k".into(), source: "<Code>NoSuchBucket</Code>".into() },
            "s3://nowhere/k/x",
        );
        assert_eq!(e.message(), "the bucket s3://nowhere does not exist");
    }

    #[test]
    fn only_transport_failures_are_retried() {
        assert!(store_error(generic("connection reset"), "s3://b/k").retryable());
        assert!(
            !store_error(generic("x in 1s, after 4 retries, max_retries: 4"), "s3://b/k")
                .retryable()
        );
        assert!(!store_error(generic("status code: 400 Bad Request"), "s3://b/k").retryable());
    }

    #[test]
    fn a_full_disk_is_a_resource_error() {
        let e = file_error(io::Error::from_raw_os_error(28), "write", "out/x");
        assert_eq!(e.kind(), ErrorKind::Resource);
        assert!(e.to_string().contains("the disk is full"));
    }
}
