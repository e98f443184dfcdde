//! How an execution ended: by the application's word, or by the status of its answer.

use http::{HeaderName, Response, StatusCode};
use semel_core::Code;

/// The header in which an application in any language says how it ended. It never reaches
/// the client.
pub const HEADER: HeaderName = HeaderName::from_static("semel-outcome");

/// What becomes of the record when an execution ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The unit of work is over: the answer is stored and replayed.
    Completed,
    /// It is proven that nothing happened: the next request may execute.
    NotExecuted,
    /// It may have happened: nobody executes until somebody found out.
    Unknown,
    /// Nothing happened, and nothing is remembered.
    Forget,
}

/// The application's own word on how it ended.
///
/// Put it into a response's extensions to say it beside an answer of one's own; or, with
/// axum, return it instead of an answer, and the client is told in the dialect's form.
///
/// ```
/// use semel_http::Outcome;
///
/// let mut answer = http::Response::new("the card network is down");
/// answer.extensions_mut().insert(Outcome::not_executed("network_down"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub(crate) ending: Ending,
    pub(crate) code: Code,
    pub(crate) words: Words,
}

/// Who words the client's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Words {
    /// The response that the outcome came with.
    Application,
    /// The layer, by the ending.
    Layer,
    /// The layer: the upstream was not reached.
    Unreachable,
}

/// In a response's extensions: its end cannot be told from a break. It reaches its first caller,
/// and is not stored, since nobody could say that it is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unframed;

impl Outcome {
    /// The unit of work is over, whatever the status of the answer says.
    pub fn completed() -> Self {
        Self::said(Ending::Completed, Code::new("completed"))
    }

    /// Nothing happened, and that is proven: the same key may execute again.
    pub fn not_executed(code: impl Into<Code>) -> Self {
        Self::said(Ending::NotExecuted, code.into())
    }

    /// It may have happened: a call that timed out, a connection that broke.
    pub fn unknown(code: impl Into<Code>) -> Self {
        Self::said(Ending::Unknown, code.into())
    }

    /// Nothing happened, and the key is as good as new: authentication failed, a rate limit
    /// was hit.
    pub fn forget(code: impl Into<Code>) -> Self {
        Self::said(Ending::Forget, code.into())
    }

    /// The gateway could not hand over a single byte of the request.
    pub fn unreachable() -> Self {
        Self {
            words: Words::Unreachable,
            ..Self::not_executed("upstream_unreachable")
        }
    }

    /// What becomes of the record.
    pub fn ending(&self) -> Ending {
        self.ending
    }

    /// An answer without words of its own: the layer writes them.
    pub fn into_response<B: Default>(mut self) -> Response<B> {
        if self.words == Words::Application {
            self.words = Words::Layer;
        }
        let mut response = Response::new(B::default());
        // Seen by the client only where there is no layer around the handler.
        *response.status_mut() = match self.ending {
            Ending::Completed => StatusCode::NO_CONTENT,
            Ending::NotExecuted | Ending::Forget => StatusCode::SERVICE_UNAVAILABLE,
            Ending::Unknown => StatusCode::GATEWAY_TIMEOUT,
        };
        response.extensions_mut().insert(self);
        response
    }

    fn said(ending: Ending, code: Code) -> Self {
        Self {
            ending,
            code,
            words: Words::Application,
        }
    }
}

impl Ending {
    /// All four.
    pub const ALL: [Self; 4] = [
        Self::Completed,
        Self::NotExecuted,
        Self::Unknown,
        Self::Forget,
    ];

    /// The word as it stands in [`HEADER`] and in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::NotExecuted => "not-executed",
            Self::Unknown => "unknown",
            Self::Forget => "forget",
        }
    }

    /// The ending of that word, if there is one.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ending| ending.as_str() == word)
    }
}

/// The status table of a route: what a status means where the application said nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// What the route decided otherwise; few, so a list.
    overrides: Vec<(StatusCode, Ending)>,
}

impl Table {
    pub(crate) fn set(&mut self, status: StatusCode, ending: Ending) {
        self.overrides.retain(|(other, _)| *other != status);
        self.overrides.push((status, ending));
    }

    fn ending(&self, status: StatusCode) -> Ending {
        if let Some((_, ending)) = self.overrides.iter().find(|(other, _)| *other == status) {
            return *ending;
        }
        match status.as_u16() {
            // Refused at the door: the same key must work once the client is let in.
            401 | 403 | 407 | 429 => Ending::Forget,
            // The application did not begin.
            408 | 425 => Ending::NotExecuted,
            // Somebody between here and the effect gave up; the effect may be there. A
            // switch of protocols is no answer that could ever be stored.
            502..=504 | 0..=199 => Ending::Unknown,
            _ => Ending::Completed,
        }
    }

    /// How an answered execution ended. Takes the application's word out of the response, so
    /// that no client ever sees it.
    pub(crate) fn judge<B>(&self, response: &mut Response<B>) -> Outcome {
        let status = response.status();
        let said = strip(response);
        said.unwrap_or_else(|| Outcome {
            ending: self.ending(status),
            code: Code::new(format!("status_{}", status.as_u16())),
            words: Words::Application,
        })
    }
}

/// Takes what the application said out of a response: the extension before the header, since
/// only code in this process can set it.
pub(crate) fn strip<B>(response: &mut Response<B>) -> Option<Outcome> {
    // Two headers that disagree are no word at all; neither is one that is misspelt. What
    // cannot be understood may mean that it happened.
    let by_header = response.headers().contains_key(&HEADER).then(|| {
        let mut words = response.headers().get_all(&HEADER).iter();
        match (
            words.next().and_then(|word| word.to_str().ok()),
            words.next(),
        ) {
            (Some(word), None) => Ending::from_word(word.trim()),
            (_, _) => None,
        }
        .map_or_else(
            || Outcome::unknown("outcome_header_malformed"),
            |ending| Outcome::said(ending, Code::new("application_said_so")),
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

    #[test]
    fn words_lead_back() {
        for ending in Ending::ALL {
            assert_eq!(Ending::from_word(ending.as_str()), Some(ending));
        }
    }

    #[test]
    fn every_status_has_its_ending() {
        let table = Table::default();
        for status in 100..1000u16 {
            let expected = match status {
                101..=199 | 100 | 502 | 503 | 504 => Ending::Unknown,
                401 | 403 | 407 | 429 => Ending::Forget,
                408 | 425 => Ending::NotExecuted,
                _ => Ending::Completed,
            };
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(table.ending(status), expected, "{status}");
        }
    }

    #[test]
    fn a_route_may_know_better() {
        let mut table = Table::default();
        table.set(StatusCode::SERVICE_UNAVAILABLE, Ending::Completed);
        table.set(StatusCode::SERVICE_UNAVAILABLE, Ending::NotExecuted);
        assert_eq!(
            table.ending(StatusCode::SERVICE_UNAVAILABLE),
            Ending::NotExecuted
        );
        assert_eq!(table.ending(StatusCode::BAD_GATEWAY), Ending::Unknown);
    }

    #[test]
    fn a_misspelt_word_is_unknown_and_stripped() {
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
            let outcome = Table::default().judge(&mut response);
            assert_eq!(outcome.ending, Ending::Unknown, "{lines:?}");
            assert!(!response.headers().contains_key(HEADER));
        }
    }

    #[test]
    fn the_extension_beats_the_header_beats_the_status() {
        let mut response = Response::new(());
        response
            .headers_mut()
            .insert(HEADER, "forget".parse().unwrap());
        let said = Table::default().judge(&mut response.clone());
        assert_eq!(said.ending, Ending::Forget);
        response
            .extensions_mut()
            .insert(Outcome::unknown("psp_timeout"));
        let said = Table::default().judge(&mut response);
        assert_eq!(said, Outcome::unknown("psp_timeout"));
    }
}
