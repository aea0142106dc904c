//! Spans to an OpenTelemetry collector, over OTLP with protocol buffers on HTTP.

use forebay::{Error, ErrorKind, Result};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

/// The variables of OpenTelemetry that name the collector. Without one nothing is sent.
const VARIABLES: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// Sends spans until it is dropped.
pub struct Traces(SdkTracerProvider);

impl Drop for Traces {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown() {
            tracing::warn!(%error, "the last spans did not reach the collector");
        }
    }
}

/// What sends spans, and the layer that makes them; `None` where no collector is named.
///
/// # Errors
/// An address that is none.
pub fn start<S>() -> Result<Option<(Traces, impl Layer<S> + Send + Sync + 'static)>>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    if !VARIABLES.iter().any(|name| std::env::var_os(name).is_some_and(|v| !v.is_empty())) {
        return Ok(None);
    }
    let exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .build()
        .map_err(|e| {
            Error::new(ErrorKind::InvalidInput, "cannot send traces to the OpenTelemetry collector")
                .with_source(e)
                .at_place(VARIABLES[1])
                .with_hint("write its address as http://HOST:4318, or unset the variable")
        })?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(Resource::builder().with_service_name("forebay").build())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("forebay"));
    // The exporter's own requests must not become spans that are exported.
    let filter = Targets::new().with_target("forebay", tracing::Level::INFO);
    Ok(Some((Traces(provider), layer.with_filter(filter))))
}
