//! How an execution ended: as the application says, or else by the status of its response.

use http::{HeaderName, Response, StatusCode};
use semel_core::Code;
use semel_core::key::Dialect;

/// The header in which an application in any language says how the execution ended. The layer
/// removes it from the response.
pub const HEADER: HeaderName = HeaderName::from_static("semel-outcome");

/// What becomes of the record when an execution ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutcomeKind {
    /// The operation is over: the response is stored and replayed.
    Completed,
    /// Nothing happened, for certain: the next request may execute.
    NotExecuted,
    /// It may have happened: nothing executes until it is reconciled.
    Unknown,
    /// Nothing happened, and the record is removed.
    Forget,
}

/// How the execution ended, as the application says.
///
/// Put it into a response's extensions to send that response with it. Or, with axum, return it
/// instead of a response, and the layer writes one in the dialect's form.
///
/// ```
/// use semel_http::Outcome;
///
/// let mut response = http::Response::new("the card network is down");
/// response.extensions_mut().insert(Outcome::not_executed("network_down"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub(crate) kind: OutcomeKind,
    pub(crate) code: Code,
    pub(crate) source: ResponseSource,
}

/// Who writes the client's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseSource {
    /// The application: the response that the outcome came with.
    Application,
    /// The layer, by the kind of outcome.
    Layer,
    /// The layer: the upstream was not reached.
    Unreachable,
}

/// In a response's extensions: the body ends when the connection closes, so that it is not
/// known whether it is complete. It is sent to its first caller and not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseDelimited;

impl Outcome {
    /// The operation is over, whatever the status of the response.
    pub fn completed() -> Self {
        Self::new(OutcomeKind::Completed, Code::new("completed"))
    }

    /// Nothing happened, for certain: the same key may execute again.
    pub fn not_executed(code: impl Into<Code>) -> Self {
        Self::new(OutcomeKind::NotExecuted, code.into())
    }

    /// It may have happened: a call that timed out, a connection that broke.
    pub fn unknown(code: impl Into<Code>) -> Self {
        Self::new(OutcomeKind::Unknown, code.into())
    }

    /// Nothing happened, and the key counts as new: authentication failed, a rate limit was hit.
    pub fn forget(code: impl Into<Code>) -> Self {
        Self::new(OutcomeKind::Forget, code.into())
    }

    /// The gateway could not send a single byte of the request.
    pub fn unreachable() -> Self {
        Self {
            source: ResponseSource::Unreachable,
            ..Self::not_executed("upstream_unreachable")
        }
    }

    /// What becomes of the record.
    pub fn kind(&self) -> OutcomeKind {
        self.kind
    }

    /// A response that the layer writes.
    pub fn into_response<B: Default>(mut self) -> Response<B> {
        if self.source == ResponseSource::Application {
            self.source = ResponseSource::Layer;
        }
        let mut response = Response::new(B::default());
        // Seen by the client only where there is no layer around the handler.
        *response.status_mut() = match self.kind {
            OutcomeKind::Completed => StatusCode::NO_CONTENT,
            OutcomeKind::NotExecuted | OutcomeKind::Forget => StatusCode::SERVICE_UNAVAILABLE,
            OutcomeKind::Unknown => StatusCode::GATEWAY_TIMEOUT,
        };
        response.extensions_mut().insert(self);
        response
    }

    fn new(kind: OutcomeKind, code: Code) -> Self {
        Self {
            kind,
            code,
            source: ResponseSource::Application,
        }
    }
}

impl OutcomeKind {
    /// All four.
    pub const ALL: [Self; 4] = [
        Self::Completed,
        Self::NotExecuted,
        Self::Unknown,
        Self::Forget,
    ];

    /// As written in [`HEADER`] and in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::NotExecuted => "not-executed",
            Self::Unknown => "unknown",
            Self::Forget => "forget",
        }
    }

    /// Reads what [`as_str`](Self::as_str) writes.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// What a status means on a route, where the application does not say.
#[derive(Clone, Debug, Default)]
pub(crate) struct StatusTable {
    /// What the route configures; few, so a list.
    overrides: Vec<(StatusCode, OutcomeKind)>,
    /// What the route configures for the hundred statuses that begin with this digit.
    classes: Vec<(u16, OutcomeKind)>,
}

impl StatusTable {
    pub(crate) fn set(&mut self, status: StatusCode, kind: OutcomeKind) {
        self.overrides.retain(|(other, _)| *other != status);
        self.overrides.push((status, kind));
    }

    pub(crate) fn set_class(&mut self, class: u16, kind: OutcomeKind) {
        self.classes.retain(|(other, _)| *other != class);
        self.classes.push((class, kind));
    }

    fn kind(&self, status: StatusCode, dialect: Dialect) -> OutcomeKind {
        if let Some((_, kind)) = self.overrides.iter().find(|(other, _)| *other == status) {
            return *kind;
        }
        let class = status.as_u16() / 100;
        if let Some((_, kind)) = self.classes.iter().find(|(other, _)| *other == class) {
            return *kind;
        }
        match status.as_u16() {
            // Stripe stores nothing where validation fails: a corrected request has the same key.
            400 if dialect == Dialect::Stripe => OutcomeKind::Forget,
            // Refused before the application: the same key must work once the client is admitted.
            401 | 403 | 407 | 429 => OutcomeKind::Forget,
            // The application did not begin.
            408 | 425 => OutcomeKind::NotExecuted,
            // A component between here and the effect gave up; the effect may be there. A switch
            // of protocols cannot be stored.
            502..=504 | 0..=199 => OutcomeKind::Unknown,
            _ => OutcomeKind::Completed,
        }
    }

    /// How an execution with a response ended. Removes the application's outcome from the
    /// response.
    pub(crate) fn judge<B>(&self, response: &mut Response<B>, dialect: Dialect) -> Outcome {
        let status = response.status();
        let given = strip(response);
        given.unwrap_or_else(|| Outcome {
            kind: self.kind(status, dialect),
            code: Code::new(format!("status_{}", status.as_u16())),
            source: ResponseSource::Application,
        })
    }
}

/// Removes the application's outcome from a response: the extension before the header, since only
/// code in this process can set it.
pub(crate) fn strip<B>(response: &mut Response<B>) -> Option<Outcome> {
    // Two header lines, or a misspelt one, may mean that it happened.
    let by_header = response.headers().contains_key(&HEADER).then(|| {
        let mut lines = response.headers().get_all(&HEADER).iter();
        match (
            lines.next().and_then(|line| line.to_str().ok()),
            lines.next(),
        ) {
            (Some(line), None) => OutcomeKind::parse(line.trim()),
            (_, _) => None,
        }
        .map_or_else(
            || Outcome::unknown("outcome_header_malformed"),
            |kind| Outcome::new(kind, Code::new("application_said_so")),
        )
    });
    if by_header.is_some() {
        response.headers_mut().remove(&HEADER);
    }
    response.extensions_mut().remove::<Outcome>().or(by_header)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IETF: Dialect = Dialect::Ietf { lenient: true };

    #[test]
    fn parse_reads_what_as_str_writes() {
        for kind in OutcomeKind::ALL {
            assert_eq!(OutcomeKind::parse(kind.as_str()), Some(kind));
        }
    }

    #[test]
    fn every_status_has_a_kind() {
        let table = StatusTable::default();
        for status in 100..1000u16 {
            let expected = match status {
                101..=199 | 100 | 502 | 503 | 504 => OutcomeKind::Unknown,
                401 | 403 | 407 | 429 => OutcomeKind::Forget,
                408 | 425 => OutcomeKind::NotExecuted,
                _ => OutcomeKind::Completed,
            };
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(table.kind(status, IETF), expected, "{status}");
            let for_stripe = match status.as_u16() {
                400 => OutcomeKind::Forget,
                _ => expected,
            };
            assert_eq!(table.kind(status, Dialect::Stripe), for_stripe, "{status}");
        }
    }

    #[test]
    fn an_exact_status_overrides_its_class_and_both_override_the_default() {
        let mut table = StatusTable::default();
        table.set_class(4, OutcomeKind::Completed);
        table.set_class(4, OutcomeKind::Forget);
        table.set_class(5, OutcomeKind::NotExecuted);
        table.set(StatusCode::NOT_FOUND, OutcomeKind::Completed);
        for (status, expected) in [
            (400, OutcomeKind::Forget),
            (404, OutcomeKind::Completed),
            (408, OutcomeKind::Forget),
            (499, OutcomeKind::Forget),
            (500, OutcomeKind::NotExecuted),
            (503, OutcomeKind::NotExecuted),
            (201, OutcomeKind::Completed),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(table.kind(status, IETF), expected, "{status}");
            assert_eq!(table.kind(status, Dialect::Stripe), expected, "{status}");
        }
    }

    #[test]
    fn a_route_overrides_the_default_kind() {
        let mut table = StatusTable::default();
        table.set(StatusCode::SERVICE_UNAVAILABLE, OutcomeKind::Completed);
        table.set(StatusCode::SERVICE_UNAVAILABLE, OutcomeKind::NotExecuted);
        assert_eq!(
            table.kind(StatusCode::SERVICE_UNAVAILABLE, IETF),
            OutcomeKind::NotExecuted
        );
        assert_eq!(
            table.kind(StatusCode::BAD_GATEWAY, IETF),
            OutcomeKind::Unknown
        );
    }

    #[test]
    fn a_misspelt_header_is_unknown_and_removed() {
        for lines in [
            &["done"][..],
            &["completed", "completed"],
            &["completed, unknown"],
            &[""],
        ] {
            let mut response = Response::new(());
            for line in lines {
                response.headers_mut().append(HEADER, line.parse().unwrap());
            }
            let outcome = StatusTable::default().judge(&mut response, IETF);
            assert_eq!(outcome.kind, OutcomeKind::Unknown, "{lines:?}");
            assert!(!response.headers().contains_key(HEADER));
        }
    }

    #[test]
    fn the_extension_overrides_the_header_and_the_header_the_status() {
        let mut response = Response::new(());
        response
            .headers_mut()
            .insert(HEADER, "forget".parse().unwrap());
        let outcome = StatusTable::default().judge(&mut response.clone(), IETF);
        assert_eq!(outcome.kind, OutcomeKind::Forget);
        response
            .extensions_mut()
            .insert(Outcome::unknown("psp_timeout"));
        let outcome = StatusTable::default().judge(&mut response, IETF);
        assert_eq!(outcome, Outcome::unknown("psp_timeout"));
    }
}
