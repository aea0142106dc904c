//! An S3 client from storage options and the usual AWS variables.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Result};
use forebay_plan::StorageOptions;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};

use super::pages::Paged;
use crate::retries::CountingConnector;

/// Longest time for one request with its body. A range is at most 16 MiB, so this is 270 KB/s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest time to connect: the server is then down or unreachable, and the user should hear of it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Retries of one request inside the client, on 5xx, 429 and broken connections.
const RETRIES: usize = 4;

/// A client for one bucket. `var` looks up environment variables; it is a parameter so that nothing
/// but the process's entry decides where they come from.
///
/// An option wins over a variable, `AWS_ENDPOINT_URL_S3` over `AWS_ENDPOINT_URL`, and `AWS_REGION`
/// over `AWS_DEFAULT_REGION`; without either the region is `us-east-1`.
pub fn s3_store(
    bucket: &str,
    options: &StorageOptions,
    var: &dyn Fn(&str) -> Option<String>,
) -> Result<Arc<dyn ObjectStore>> {
    let set = |name: &str| var(name).filter(|v| !v.is_empty());
    let endpoint = options
        .endpoint
        .clone()
        .or_else(|| set("AWS_ENDPOINT_URL_S3"))
        .or_else(|| set("AWS_ENDPOINT_URL"));
    let region = options
        .region
        .clone()
        .or_else(|| set("AWS_REGION"))
        .or_else(|| set("AWS_DEFAULT_REGION"))
        .unwrap_or_else(|| "us-east-1".to_owned());
    let path_style = options.path_style.unwrap_or(endpoint.is_some());

    let mut client = ClientOptions::new()
        .with_timeout(REQUEST_TIMEOUT)
        .with_connect_timeout(CONNECT_TIMEOUT)
        // One connection carries one stream at full speed; HTTP/2 would share one window.
        .with_http1_only();
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(bucket)
        .with_region(region)
        .with_virtual_hosted_style_request(!path_style)
        .with_http_connector(CountingConnector)
        // Sent over TLS or on loopback; signing every byte of a part costs a hash over the data.
        .with_retry(RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(100),
                max_backoff: Duration::from_secs(5),
                base: 2.0,
            },
            max_retries: RETRIES,
            retry_timeout: Duration::from_secs(90),
        });

    if let Some(endpoint) = &endpoint {
        let url = url::Url::parse(endpoint)
            .ok()
            .filter(|u| matches!(u.scheme(), "http" | "https") && u.host_str().is_some());
        let Some(url) = url else {
            return Err(Error::invalid(format!("the endpoint {endpoint:?} is not an http(s) URL"))
                .with_hint("write it as https://host or http://host:port"));
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Error::invalid("the endpoint holds a user name or password")
                .with_hint("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead"));
        }
        client = client.with_allow_http(url.scheme() == "http");
        let base = endpoint.trim_end_matches('/');
        builder = builder.with_endpoint(if path_style {
            base.to_owned()
        } else {
            // The client takes the endpoint of a virtual host with the bucket already in it.
            base.replacen("://", &format!("://{bucket}."), 1)
        });
    }

    if options.anonymous == Some(true) {
        builder = builder.with_skip_signature(true);
    } else {
        use AmazonS3ConfigKey as K;
        for (name, key) in [
            ("AWS_ACCESS_KEY_ID", K::AccessKeyId),
            ("AWS_SECRET_ACCESS_KEY", K::SecretAccessKey),
            ("AWS_SESSION_TOKEN", K::Token),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", K::WebIdentityTokenFile),
            ("AWS_ROLE_ARN", K::RoleArn),
            ("AWS_ROLE_SESSION_NAME", K::RoleSessionName),
            ("AWS_ENDPOINT_URL_STS", K::StsEndpoint),
            ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", K::ContainerCredentialsRelativeUri),
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", K::ContainerCredentialsFullUri),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", K::ContainerAuthorizationTokenFile),
            ("AWS_METADATA_ENDPOINT", K::MetadataEndpoint),
        ] {
            if let Some(value) = set(name) {
                builder = builder.with_config(key, value);
            }
        }
    }
    let store = builder.with_client_options(client).build().map_err(|e| {
        Error::invalid(format!("cannot set up the client for s3://{bucket}: {e}"))
            .with_hint("check the AWS variables; both parts of a key pair must be set")
    })?;
    let endpoint = endpoint.unwrap_or_else(|| "AWS".to_owned());
    Ok(Arc::new(Paged::new(store, endpoint)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn bad_endpoints_are_refused_and_secrets_stay_out() {
        let options = |e: &str| StorageOptions { endpoint: Some(e.into()), ..Default::default() };
        let none = |_: &str| None;
        for bad in ["localhost:9000", "ftp://x", "not a url"] {
            let e = s3_store("b", &options(bad), &none).unwrap_err();
            assert!(e.to_string().contains("endpoint"), "{e}");
        }
        let e = s3_store("b", &options("http://me:hunter2@x"), &none).unwrap_err();
        assert!(!format!("{e:?}").contains("hunter2"));
        let half = |n: &str| (n == "AWS_ACCESS_KEY_ID").then(|| "AKIDEXAMPLE".to_owned());
        let e = s3_store("b", &StorageOptions::default(), &half).unwrap_err();
        assert!(!format!("{e:?}").contains("AKIDEXAMPLE"));
    }
}
