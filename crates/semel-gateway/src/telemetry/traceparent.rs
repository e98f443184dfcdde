//! The `traceparent` header of [W3C Trace Context](https://www.w3.org/TR/trace-context/).
//!
//! Why not `TraceContextPropagator` of the OpenTelemetry SDK: it takes the first of several
//! `traceparent` lines, accepts fields of the wrong length and a trailing dash, and reads only one
//! `tracestate` line. A client could make up a parent that other software on the way rejects.

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// The trace id and the parent span id.
pub(super) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Vendor-specific data.
pub(super) const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The length of version 00, which is a prefix of every later version.
const LENGTH: usize = 55;

/// The parent of a request's span. `None` if the header is missing, repeated or invalid: then a new
/// trace begins.
pub(super) fn read(headers: &HeaderMap) -> Option<SpanContext> {
    let mut lines = headers.get_all(TRACEPARENT).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return None;
    };
    let (trace, span, flags) = parse(line.as_bytes())?;
    Some(SpanContext::new(trace, span, flags, true, state(headers)))
}

/// The vendor data of all lines; empty if it is invalid, which does not invalidate the parent.
fn state(headers: &HeaderMap) -> TraceState {
    let lines = headers.get_all(TRACESTATE).iter();
    let lines: Result<Vec<_>, _> = lines.map(HeaderValue::to_str).collect();
    let joined = lines.map(|lines| lines.join(",")).unwrap_or_default();
    joined.parse().unwrap_or_default()
}

fn parse(text: &[u8]) -> Option<(TraceId, SpanId, TraceFlags)> {
    let (known, rest) = text.split_at_checked(LENGTH)?;
    let [version, trace, span, flags] =
        [0..2, 3..35, 36..52, 53..55].map(|part| known.get(part).and_then(hex));
    if [2, 35, 52].map(|at| known.get(at)) != [Some(&b'-'); 3] {
        return None;
    }
    match version? {
        // Reserved as invalid.
        0xff => return None,
        0 if !rest.is_empty() => return None,
        // Later versions may add fields after a dash.
        _ if !rest.is_empty() && rest.first() != Some(&b'-') => return None,
        _ => {}
    }
    let trace = TraceId::from(trace?);
    let span = SpanId::from(u64::try_from(span?).ok()?);
    if trace == TraceId::INVALID || span == SpanId::INVALID {
        return None;
    }
    // Only this flag is defined; the others must not be forwarded.
    let sampled = flags? & 1 == 1;
    Some((trace, span, TraceFlags::default().with_sampled(sampled)))
}

/// Lower case only, as the standard requires: `u128::from_str_radix` accepts more.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0_u128, |value, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u128::from(digit))
    })
}

/// Sets `span` as the parent of an outgoing request. Vendor data is kept if it belongs to the same
/// trace.
pub(super) fn write(headers: &mut HeaderMap, span: &SpanContext) {
    let same_trace = read(headers).is_some_and(|parent| parent.trace_id() == span.trace_id());
    if !same_trace {
        headers.remove(TRACESTATE);
    }
    let line = format!(
        "00-{}-{}-{:02x}",
        span.trace_id(),
        span.span_id(),
        span.trace_flags().to_u8() & 1
    );
    // Hexadecimal digits and dashes are always a valid value.
    if let Ok(line) = HeaderValue::from_maybe_shared(bytes::Bytes::from(line)) {
        headers.insert(TRACEPARENT, line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn headers(lines: &[(HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name.clone(), value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn valid_headers_are_accepted_as_a_parent() {
        for (line, sampled) in [
            (format!("00-{TRACE}-{SPAN}-01"), true),
            (format!("00-{TRACE}-{SPAN}-00"), false),
            (format!("00-{TRACE}-{SPAN}-ff"), true),
            (format!("00-{TRACE}-{SPAN}-fe"), false),
            (format!("01-{TRACE}-{SPAN}-01"), true),
            (format!("fe-{TRACE}-{SPAN}-01-more"), true),
            (format!("cc-{TRACE}-{SPAN}-01-"), true),
        ] {
            let parent = read(&headers(&[(TRACEPARENT, &line)]));
            let parent = parent.unwrap_or_else(|| panic!("{line} is refused"));
            assert_eq!(parent.trace_id().to_string(), TRACE);
            assert_eq!(parent.span_id().to_string(), SPAN);
            assert_eq!(parent.is_sampled(), sampled, "{line}");
            assert!(parent.is_remote());
        }
    }

    #[test]
    fn invalid_headers_begin_a_new_trace() {
        let (zero_trace, zero_span) = ("0".repeat(32), "0".repeat(16));
        for line in [
            String::new(),
            "00".into(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{zero_trace}-{SPAN}-01"),
            format!("00-{TRACE}-{zero_span}-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{}-01", SPAN.to_uppercase()),
            format!("00-{TRACE}-{SPAN}-0A"),
            format!("0A-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("01-{TRACE}-{SPAN}-01more"),
            format!("00_{TRACE}_{SPAN}_01"),
            format!("00-{TRACE}-{SPAN}_01"),
            format!("00-{}g-{SPAN}-01", &TRACE[1..]),
            format!("00-+{}-{SPAN}-01", &TRACE[1..]),
            format!("0-{TRACE}0-{SPAN}-01"),
        ] {
            let parent = read(&headers(&[(TRACEPARENT, &line)]));
            assert!(parent.is_none(), "{line:?}");
        }
        let one = format!("00-{TRACE}-{SPAN}-01");
        let twice = headers(&[(TRACEPARENT, &one), (TRACEPARENT, &one)]);
        assert!(read(&twice).is_none(), "a repeated header is ignored");
        assert!(read(&HeaderMap::new()).is_none());
    }

    #[test]
    fn tracestate_is_joined_over_all_lines_and_never_invalidates_the_parent() {
        let one = format!("00-{TRACE}-{SPAN}-01");
        let both = [(TRACESTATE, "a=1"), (TRACESTATE, "b=2,c=3")];
        let mut lines = vec![(TRACEPARENT, &*one)];
        lines.extend(both);
        let parent = read(&headers(&lines)).unwrap();
        assert_eq!(parent.trace_state().header(), "a=1,b=2,c=3");
        let wrong = headers(&[(TRACEPARENT, &one), (TRACESTATE, "=,;")]);
        assert_eq!(read(&wrong).unwrap().trace_state().header(), "");
    }

    #[test]
    fn a_forwarded_request_names_its_span_as_parent() {
        let span = |trace: &str| {
            let trace = TraceId::from_hex(trace).unwrap();
            let span = SpanId::from_hex("b7ad6b7169203331").unwrap();
            SpanContext::new(
                trace,
                span,
                TraceFlags::SAMPLED,
                false,
                TraceState::default(),
            )
        };
        let came = format!("00-{TRACE}-{SPAN}-00");
        let mut known = headers(&[(TRACEPARENT, &came), (TRACESTATE, "a=1")]);
        write(&mut known, &span(TRACE));
        let wanted = format!("00-{TRACE}-b7ad6b7169203331-01");
        assert_eq!(known.get(TRACEPARENT).unwrap(), &*wanted);
        assert_eq!(known.get(TRACESTATE).unwrap(), "a=1");

        // A new trace must not carry the vendor data of another one.
        for came in ["wrong", &came] {
            let mut new = headers(&[(TRACEPARENT, came), (TRACESTATE, "a=1")]);
            write(&mut new, &span("0af7651916cd43dd8448eb211c80319c"));
            assert_eq!(new.get_all(TRACEPARENT).iter().count(), 1);
            assert_eq!(new.get(TRACESTATE), None);
        }
    }
}
