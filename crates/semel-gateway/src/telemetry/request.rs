//! The span around a request, and the trace that it is part of.

use http::{HeaderMap, Method, Request, StatusCode};
use tracing::field::Empty;
use tracing::{Span, debug_span};

/// Around a request to the upstream, from its head to the head of its answer. The client's span is
/// its parent, if there is one.
pub(crate) fn span<B>(request: &Request<B>) -> Span {
    // Of what may be a secret there is nothing here: neither the query nor a header.
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
    adopt(&span, request.headers());
    span
}

/// What the client is told.
pub(crate) fn answered(span: &Span, status: StatusCode) {
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
}

/// Names the present span as the parent of a request that goes on. Where nothing is traced, what
/// the client wrote goes on as it is.
pub(crate) fn pass_on(headers: &mut HeaderMap) {
    #[cfg(feature = "otlp")]
    {
        use opentelemetry::trace::TraceContextExt as _;
        use tracing::level_filters::LevelFilter;
        use tracing_opentelemetry::OpenTelemetrySpanExt as _;

        // Whoever collects traces has raised it: a look at one number, and the usual way out.
        if LevelFilter::current() < LevelFilter::DEBUG {
            return;
        }
        let context = Span::current().context();
        let span = context.span();
        if span.span_context().is_valid() {
            super::parent::write(headers, span.span_context());
        }
    }
    #[cfg(not(feature = "otlp"))]
    let _ = headers;
}

#[cfg(feature = "otlp")]
fn adopt(span: &Span, headers: &HeaderMap) {
    use opentelemetry::Context;
    use opentelemetry::trace::TraceContextExt as _;
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    if !span.is_disabled()
        && let Some(parent) = super::parent::read(headers)
    {
        // Fails where nobody collects traces, and then there is no trace to be part of.
        let _ = span.set_parent(Context::new().with_remote_span_context(parent));
    }
}

/// As the HTTP conventions have it: a client must not be able to make up names without end.
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
