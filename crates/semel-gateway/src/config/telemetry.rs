//! `[telemetry]`: where traces go.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use toml::Spanned;
use toml::de::DeValue;

use super::Pick;
use super::table::Table;

/// What OTLP over HTTP adds to a collector's address.
const TRACES: &str = "/v1/traces";

/// Where traces go, and how many.
#[derive(Clone, Debug, PartialEq)]
pub struct OtlpConfig {
    /// Who takes them.
    pub collector: Collector,
    /// How many of the traces that begin here; of one that began elsewhere, whoever began it
    /// decides.
    pub ratio: Ratio,
}

/// A collector's address: `http://host:4318`, with a path if it has one.
#[derive(Clone, PartialEq, Eq)]
pub struct Collector(Uri);

/// A part of a whole, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio(f64);

/// What the file says.
#[derive(Default)]
pub(super) struct Telemetry {
    collector: Option<Spanned<Collector>>,
    ratio: Option<Spanned<Ratio>>,
}

impl Telemetry {
    pub(super) fn read(table: Option<Table<'_>>) -> Self {
        let Some(mut table) = table else {
            return Self::default();
        };
        let collector = table.parsed("otlp", Collector::from_str);
        let ratio = table.raw("ratio").and_then(|value| {
            let text = match value.get_ref() {
                DeValue::Float(float) => float.as_str(),
                DeValue::Integer(integer) => integer.as_str(),
                other @ (DeValue::String(_)
                | DeValue::Boolean(_)
                | DeValue::Datetime(_)
                | DeValue::Array(_)
                | DeValue::Table(_)) => other.as_str().unwrap_or("what is no number"),
            };
            let ratio = text.parse();
            let ratio = ratio.map_err(|problem: String| table.problems.at(value.span(), problem));
            Some(Spanned::new(value.span(), ratio.ok()?))
        });
        table.finish();
        Self { collector, ratio }
    }

    /// With what flags and variables say.
    pub(super) fn merge(self, flag: Option<Collector>, pick: &Pick<'_>) -> Option<OtlpConfig> {
        let collector = pick.of(
            flag,
            "--otlp-endpoint",
            "SEMEL_OTLP_ENDPOINT",
            self.collector,
        );
        let ratio = pick.of(None, "", "SEMEL_OTLP_RATIO", self.ratio);
        match (collector, ratio) {
            (Some((_, from)), _) if !cfg!(feature = "otlp") => {
                let message =
                    "this program was built without traces: build it with `--features otlp`";
                pick.problems.from(from, message);
                None
            }
            (Some((collector, _)), ratio) => Some(OtlpConfig {
                collector,
                ratio: ratio.map_or(Ratio::ALL, |(ratio, _)| ratio),
            }),
            (None, Some((_, from))) => {
                let message = "it has no effect without a collector: `[telemetry] otlp`, \
                               SEMEL_OTLP_ENDPOINT or --otlp-endpoint";
                pick.problems.from(from, message);
                None
            }
            (None, None) => None,
        }
    }
}

impl Collector {
    /// Where traces are posted.
    pub fn traces(&self) -> String {
        let base = self.0.to_string();
        let base = base.trim_end_matches('/');
        if base.ends_with(TRACES) {
            return base.to_owned();
        }
        format!("{base}{TRACES}")
    }
}

impl FromStr for Collector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The address is not repeated: where it has a user, it has a password.
        let refused =
            |problem: &str| format!("no collector: {problem}; write \"http://127.0.0.1:4318\"");
        // `Uri` drops a fragment without a word.
        if text.contains('#') {
            return Err(refused("the address has a fragment"));
        }
        let uri: Uri = text.parse().map_err(|_| refused("the address is no URL"))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(refused("the address has neither http:// nor https://"));
        }
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        if authority.is_empty() || authority.starts_with(':') {
            return Err(refused("the address has no host"));
        }
        if authority.contains('@') {
            return Err(refused(
                "the address has a user; give what the collector wants to see by \
                 OTEL_EXPORTER_OTLP_HEADERS",
            ));
        }
        if uri.query().is_some() {
            return Err(refused("the address has a query"));
        }
        if uri.port_u16() == Some(4317) {
            return Err(refused("port 4317 is for gRPC, and this speaks HTTP"));
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
    /// Every one.
    pub const ALL: Self = Self(1.0);

    /// From 0 to 1.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Ratio {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("{text:?} is no part of a whole; write a number from 0 to 1");
        let ratio: f64 = text.parse().map_err(|_| refused())?;
        if (0.0..=1.0).contains(&ratio) {
            Ok(Self(ratio))
        } else {
            Err(refused())
        }
    }
}
