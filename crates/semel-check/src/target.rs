//! The target of the probes, and how to make it behave as a probe needs.

use std::time::Duration;

use serde::Serialize;

use crate::Address;

/// How keys are written, and which refusals are expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// The IETF draft: a quoted string (RFC 9651); misuse is 422.
    Ietf,
    /// As at Stripe: opaque and unquoted; misuse is 400, since its clients retry a 409.
    Stripe,
}

impl Dialect {
    /// Its name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ietf => "ietf",
            Self::Stripe => "stripe",
        }
    }
}

/// A dialect, or detection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DialectChoice {
    /// Detect it from what the target does with quotes.
    #[default]
    Auto,
    /// This one.
    Fixed(Dialect),
}

/// A header. Its value may be a secret and is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Header {
    /// Its name.
    pub name: String,
    /// Its value, with placeholders.
    pub value: String,
}

/// How a request makes the target behave in a certain way.
#[derive(Clone, PartialEq, Eq)]
pub enum Case {
    /// With an additional header. Retries omit it, so that a second execution shows.
    Header(Header),
    /// With another body. Retries keep it: without it they would be a different request.
    Body(String),
}

/// The behaviours that some probes need.
#[derive(Clone, Default)]
pub struct Cases {
    /// Takes long, longer than a lease.
    pub slow: Option<Case>,
    /// Does its work at once and responds late.
    pub linger: Option<Case>,
    /// Does its work and responds with 504.
    pub timeout: Option<Case>,
    /// Ends with a final refusal.
    pub declined: Option<Case>,
    /// Responds with more than the server stores.
    pub large: Option<Case>,
    /// Does its work and fails to record it.
    pub store_failure: Option<Case>,
}

impl Cases {
    fn headers(&self) -> impl Iterator<Item = &Header> {
        let cases = [
            &self.slow,
            &self.linger,
            &self.timeout,
            &self.declined,
            &self.large,
            &self.store_failure,
        ];
        cases.into_iter().filter_map(|case| match case {
            Some(Case::Header(header)) => Some(header),
            Some(Case::Body(_)) | None => None,
        })
    }
}

/// How effects are counted. Only the target's owner knows what an effect is.
#[derive(Clone)]
pub enum Counter {
    /// `GET` of this URL: a number, an array whose length counts, or one of these within a JSON
    /// document.
    Url {
        /// The URL, with placeholders.
        url: String,
        /// JSON Pointer to the number or the array.
        pointer: Option<String>,
    },
    /// The number that this command prints. It may contain placeholders.
    Command(String),
}

/// Commands that break the target and repair it.
#[derive(Clone, Default)]
pub struct Commands {
    /// Kills and restarts the target; it may be ready later than the command ends.
    pub crash: Option<String>,
    /// Makes the key store fail.
    pub break_store: Option<String>,
    /// Makes the key store work again.
    pub heal_store: Option<String>,
}

/// The target of the probes.
#[derive(Clone)]
#[non_exhaustive]
pub struct Target {
    /// Where requests go.
    pub address: Address,
    /// The HTTP method.
    pub method: String,
    /// The request body, with placeholders.
    pub body: String,
    /// A different body for the same key; by default, the first number is changed.
    pub other_body: Option<String>,
    /// Headers of every request.
    pub headers: Vec<Header>,
    /// Headers of a second tenant's requests.
    pub other_headers: Vec<Header>,
    /// The name of the key's header.
    pub key_header: String,
    /// How keys are written.
    pub dialect: DialectChoice,
    /// How long an operation may take, and how long retries wait for its outcome.
    pub operation_timeout: Duration,
    /// How effects are counted.
    pub counter: Option<Counter>,
    /// How a request makes the target behave in a certain way.
    pub cases: Cases,
    /// Commands that break the target and repair it.
    pub commands: Commands,
    /// Whether disruptive probes run.
    pub disruptive: bool,
}

/// Fits the demonstration, and most payment APIs with little change.
pub(crate) const BODY: &str = r#"{"amount":1000,"currency":"EUR","account":"semel-check","merchant_reference":"{reference}"}"#;

/// Longer than most operations, shorter than a person waits.
pub(crate) const OPERATION_TIMEOUT: Duration = Duration::from_secs(30);

/// Headers without secrets, whose values are common in responses.
const OPEN: [&str; 4] = ["accept", "content-type", "host", "user-agent"];
/// A shorter value may be an ordinary word.
const SHORTEST_SECRET: usize = 6;
/// The value of a case is often a word that the response contains as well, such as `declined`; a
/// test customer's token is longer.
const SHORTEST_IN_A_CASE: usize = 16;

impl Target {
    /// A target with defaults that fit `semel demo`.
    pub fn new(address: Address) -> Self {
        Self {
            address,
            method: "POST".to_owned(),
            body: BODY.to_owned(),
            other_body: None,
            headers: Vec::new(),
            other_headers: Vec::new(),
            key_header: "Idempotency-Key".to_owned(),
            dialect: DialectChoice::Auto,
            operation_timeout: OPERATION_TIMEOUT,
            counter: None,
            cases: Cases::default(),
            commands: Commands::default(),
            disruptive: false,
        }
    }

    /// Header values that reports must not show: a server may echo them in a response.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &str> {
        let sent = self.headers.iter().chain(&self.other_headers);
        let sent = sent.map(|header| (header, SHORTEST_SECRET));
        let cases = self.cases.headers();
        let cases = cases.map(|header| (header, SHORTEST_IN_A_CASE));
        let open = |name: &str| OPEN.iter().any(|open| open.eq_ignore_ascii_case(name));
        sent.chain(cases)
            .filter(move |(header, _)| !open(&header.name))
            .flat_map(|(header, shortest)| {
                parts(&header.value).filter(move |part| part.len() >= shortest)
            })
    }
}

/// The secret parts of a value: all of it and what follows its scheme, without the placeholders,
/// whose values are in every report.
fn parts(value: &str) -> impl Iterator<Item = &str> {
    let value = value.trim();
    let token = value.split_once(' ').map(|(_, token)| token.trim());
    [Some(value), token]
        .into_iter()
        .flatten()
        .flat_map(|part| part.split("{reference}"))
        .flat_map(|part| part.split("{key}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_header_values_that_are_long_and_not_public() {
        let header = |name: &str, value: &str| Header {
            name: name.to_owned(),
            value: value.to_owned(),
        };
        let case = |value| Some(Case::Header(header("X-Case", value)));
        let mut target = Target::new("http://shop/".parse().unwrap());
        target.headers = vec![
            header("Authorization", "Bearer  abcdef"),
            header("X-Signature", "Tag first-{reference}-second-{key}!"),
            header("X-Short", "short"),
            header("Accept", "application/json"),
        ];
        target.other_headers = vec![header("Authorization", "other-customer")];
        target.cases.declined = case("declined");
        target.cases.slow = case("a-token-of-a-slow-one");
        target.cases.large = Some(Case::Body("no header at all".to_owned()));
        assert_eq!(
            target.secrets().collect::<Vec<_>>(),
            [
                "Bearer  abcdef",
                "abcdef",
                "Tag first-",
                "-second-",
                "first-",
                "-second-",
                "other-customer",
                "a-token-of-a-slow-one",
            ]
        );
    }
}
