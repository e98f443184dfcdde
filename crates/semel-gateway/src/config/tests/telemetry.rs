//! `[telemetry]`.

use super::*;

#[test]
fn trace_headers_cannot_be_part_of_a_fingerprint() {
    for name in ["traceparent", "TraceState", "baggage"] {
        let fingerprint = format!("fingerprint = {{ headers = [\"{name}\"] }}");
        let report = load(&format!("[[route]]\nmatch = \"POST /p\"\n{fingerprint}"));
        let report = report.unwrap_err().to_string();
        assert!(report.contains("differs on every retry"), "{report}");
    }
}

#[cfg(not(feature = "otlp"))]
#[test]
fn a_collector_needs_the_otlp_feature() {
    let report = load("[telemetry]\notlp = \"http://a:4318\"")
        .unwrap_err()
        .to_string();
    assert!(report.contains("built without traces"), "{report}");
}

#[cfg(feature = "otlp")]
mod with_traces {
    use super::*;

    fn flag(collector: &str) -> Flags {
        Flags {
            upstream: Some("http://app".parse().unwrap()),
            otlp_endpoint: Some(collector.parse().unwrap()),
            ..Flags::default()
        }
    }

    fn otlp(config: Result<Config, Report>) -> Option<(String, f64)> {
        let otlp = config.unwrap().otlp?;
        Some((otlp.collector.traces(), otlp.ratio.get()))
    }

    #[test]
    fn without_a_collector_there_are_no_traces() {
        assert_eq!(otlp(load("")), None);
        assert_eq!(otlp(load("[telemetry]")), None);
    }

    #[test]
    fn flags_override_the_environment_which_overrides_the_file() {
        let file = "[telemetry]\notlp = \"http://file:4318\"\nratio = 0.25";
        let variable = ("SEMEL_OTLP_ENDPOINT", "http://variable:4318");
        let in_file = ("http://file:4318/v1/traces".to_owned(), 0.25);
        assert_eq!(otlp(load(file)), Some(in_file));
        let upstream = || Flags {
            otlp_endpoint: None,
            ..flag("http://x")
        };
        let both = load_with(file, upstream(), &[variable, ("SEMEL_OTLP_RATIO", "0.5")]);
        let in_variable = ("http://variable:4318/v1/traces".to_owned(), 0.5);
        assert_eq!(otlp(both), Some(in_variable));
        let all = load_with(file, flag("http://flag:4318"), &[variable]);
        assert_eq!(otlp(all), Some(("http://flag:4318/v1/traces".into(), 0.25)));
        let alone = load_with("", flag("https://flag/otlp/"), &[]);
        assert_eq!(
            otlp(alone),
            Some(("https://flag/otlp/v1/traces".into(), 1.0))
        );
        let whole = load("[telemetry]\notlp = \"http://a/v1/traces\"\nratio = 0");
        assert_eq!(otlp(whole), Some(("http://a/v1/traces".into(), 0.0)));
    }

    #[test]
    fn invalid_settings_are_refused() {
        for (text, message) in [
            (
                "otlp = \"127.0.0.1:4318\"",
                "must begin with http:// or https://",
            ),
            ("otlp = \"ftp://a\"", "must begin with http:// or https://"),
            ("otlp = \"http://u:secret@a\"", "OTEL_EXPORTER_OTLP_HEADERS"),
            ("otlp = \"http://a?b\"", "a query"),
            ("otlp = \"http://a#b\"", "a fragment"),
            ("otlp = \"http://a:4317\"", "for gRPC"),
            ("otlp = \"http://a\"\nratio = 1.5", "from 0 to 1"),
            ("otlp = \"http://a\"\nratio = -1", "from 0 to 1"),
            ("otlp = \"http://a\"\nratio = nan", "from 0 to 1"),
            ("otlp = \"http://a\"\nratio = []", "from 0 to 1"),
            ("ratio = 0.5", "no effect without a collector"),
            ("oltp = \"http://a\"", "did you mean `otlp`?"),
        ] {
            let report = load(&format!("[telemetry]\n{text}"))
                .unwrap_err()
                .to_string();
            assert!(report.contains(message), "{text}: {report}");
        }
    }
}
