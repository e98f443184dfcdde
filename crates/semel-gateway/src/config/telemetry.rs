//! `[telemetry]`: where traces are sent.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use toml::Spanned;
use toml::de::DeValue;

use super::Settings;
use super::table::{Table, type_name};

/// The path that OTLP over HTTP appends to a collector's URL.
const TRACES_PATH: &str = "/v1/traces";

/// Where traces are sent, and which share of them.
#[derive(Clone, Debug, PartialEq)]
pub struct OtlpConfig {
    /// The receiver.
    pub collector: Collector,
    /// The share of traces that begin here; for other traces the caller's sampling decision counts.
    pub ratio: Ratio,
}

/// A collector's URL: `http://host:4318`, with an optional path.
#[derive(Clone, PartialEq, Eq)]
pub struct Collector(Uri);

/// A share from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio(f64);

/// `[telemetry]` of the file, before flags and variables override it.
#[derive(Default)]
pub(super) struct TelemetryDocument {
    collector: Option<Spanned<Collector>>,
    ratio: Option<Spanned<Ratio>>,
}

impl TelemetryDocument {
    pub(super) fn read(table: Option<Table<'_>>) -> Self {
        let Some(mut table) = table else {
            return Self::default();
        };
        let collector = table.parsed("otlp", Collector::from_str);
        let ratio = table.value("ratio").and_then(|value| {
            let text = match value.get_ref() {
                DeValue::Float(float) => float.as_str(),
                DeValue::Integer(integer) => integer.as_str(),
                other @ (DeValue::String(_)
                | DeValue::Boolean(_)
                | DeValue::Datetime(_)
                | DeValue::Array(_)
                | DeValue::Table(_)) => other.as_str().unwrap_or(type_name(other)),
            };
            let ratio = text.parse();
            let ratio = ratio.map_err(|problem: String| table.problems.at(value.span(), problem));
            Some(Spanned::new(value.span(), ratio.ok()?))
        });
        table.finish();
        Self { collector, ratio }
    }

    /// Applies flags and variables.
    pub(super) fn merge(
        self,
        flag: Option<Collector>,
        settings: &Settings<'_>,
    ) -> Option<OtlpConfig> {
        let collector = settings.resolve(
            flag,
            "--otlp-endpoint",
            "SEMEL_OTLP_ENDPOINT",
            self.collector,
        );
        let ratio = settings.resolve(None, "", "SEMEL_OTLP_RATIO", self.ratio);
        match (collector, ratio) {
            (Some((_, from)), _) if !cfg!(feature = "otlp") => {
                let message =
                    "this program was built without traces: build it with `--features otlp`";
                settings.problems.report(from, message);
                None
            }
            (Some((collector, _)), ratio) => Some(OtlpConfig {
                collector,
                ratio: ratio.map_or(Ratio::ALL, |(ratio, _)| ratio),
            }),
            (None, Some((_, from))) => {
                let message = "it has no effect without a collector: `[telemetry] otlp`, \
                               SEMEL_OTLP_ENDPOINT or --otlp-endpoint";
                settings.problems.report(from, message);
                None
            }
            (None, None) => None,
        }
    }
}

impl Collector {
    /// The URL to post traces to.
    pub fn traces(&self) -> String {
        let base = self.0.to_string();
        let base = base.trim_end_matches('/');
        if base.ends_with(TRACES_PATH) {
            return base.to_owned();
        }
        format!("{base}{TRACES_PATH}")
    }
}

impl FromStr for Collector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Messages do not repeat the URL, which may contain a password.
        let refused = |problem: &str| {
            format!("invalid collector URL: {problem}; write \"http://127.0.0.1:4318\"")
        };
        // `Uri` silently drops a fragment.
        if text.contains('#') {
            return Err(refused("it has a fragment"));
        }
        let uri: Uri = text.parse().map_err(|_| refused("it is not a URL"))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(refused("it must begin with http:// or https://"));
        }
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        if authority.is_empty() || authority.starts_with(':') {
            return Err(refused("it has no host"));
        }
        if authority.contains('@') {
            return Err(refused(
                "remove the user, and set credentials in OTEL_EXPORTER_OTLP_HEADERS",
            ));
        }
        if uri.query().is_some() {
            return Err(refused("it has a query"));
        }
        if uri.port_u16() == Some(4317) {
            return Err(refused(
                "port 4317 is for gRPC: use the HTTP port, usually 4318",
            ));
        }
        Ok(Self(uri))
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Ratio {
    /// All traces.
    pub const ALL: Self = Self(1.0);

    /// The share, from 0 to 1.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Ratio {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("invalid ratio {text:?}: write a number from 0 to 1");
        let ratio: f64 = text.parse().map_err(|_| refused())?;
        if (0.0..=1.0).contains(&ratio) {
            Ok(Self(ratio))
        } else {
            Err(refused())
        }
    }
}
