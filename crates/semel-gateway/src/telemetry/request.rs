//! The span of a request, and its parent in a trace.

use http::{HeaderMap, Method, Request, StatusCode};
use tracing::field::Empty;
use tracing::{Span, debug_span};

/// The span of a request, from its head to the head of its response. The client's span is its
/// parent, if there is one.
pub(crate) fn span<B>(request: &Request<B>) -> Span {
    // Without the query and headers, which may contain secrets.
    let span = debug_span!(
        "request",
        otel.kind = "server",
        otel.name = method(request.method()),
        http.request.method = method(request.method()),
        url.path = request.uri().path(),
        http.response.status_code = Empty,
        otel.status_code = Empty,
    );
    #[cfg(feature = "otlp")]
    set_parent(&span, request.headers());
    span
}

/// Records the status of the response.
pub(crate) fn record_status(span: &Span, status: StatusCode) {
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
}

/// Sets the current span as the parent of a forwarded request. If nothing is traced, the client's
/// headers are forwarded unchanged.
pub(crate) fn inject_parent(headers: &mut HeaderMap) {
    #[cfg(feature = "otlp")]
    {
        use opentelemetry::trace::TraceContextExt as _;
        use tracing::level_filters::LevelFilter;
        use tracing_opentelemetry::OpenTelemetrySpanExt as _;

        // The trace layer raises the level to DEBUG, so without it this check returns early.
        if LevelFilter::current() < LevelFilter::DEBUG {
            return;
        }
        let context = Span::current().context();
        let span = context.span();
        if span.span_context().is_valid() {
            super::traceparent::write(headers, span.span_context());
        }
    }
    #[cfg(not(feature = "otlp"))]
    let _ = headers;
}

#[cfg(feature = "otlp")]
fn set_parent(span: &Span, headers: &HeaderMap) {
    use opentelemetry::Context;
    use opentelemetry::trace::TraceContextExt as _;
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    if !span.is_disabled()
        && let Some(parent) = super::traceparent::read(headers)
    {
        // Fails if no trace layer is installed; then there is no trace.
        let _ = span.set_parent(Context::new().with_remote_span_context(parent));
    }
}

/// Unknown methods become `_OTHER`, as the OpenTelemetry conventions say: clients must not be able
/// to create span names without bound.
fn method(method: &Method) -> &'static str {
    static KNOWN: [Method; 9] = [
        Method::CONNECT,
        Method::DELETE,
        Method::GET,
        Method::HEAD,
        Method::OPTIONS,
        Method::PATCH,
        Method::POST,
        Method::PUT,
        Method::TRACE,
    ];
    let known = KNOWN.iter().find(|known| *known == method);
    known.map_or("_OTHER", Method::as_str)
}
