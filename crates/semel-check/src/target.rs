//! What is probed, and how it is told to do what a probe needs.

use std::time::Duration;

use serde::Serialize;

use crate::Address;

/// How keys are written, and which refusals are expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// The IETF draft: a quoted string (RFC 9651); misuse is 422.
    Ietf,
    /// As Stripe has it: opaque and unquoted; misuse is 400, since its clients retry a 409.
    Stripe,
}

impl Dialect {
    /// Its name, as flags and reports have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ietf => "ietf",
            Self::Stripe => "stripe",
        }
    }
}

/// A dialect, or that it is to be found out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Chosen {
    /// By what the target does with quotes.
    #[default]
    Auto,
    /// This one.
    Fixed(Dialect),
}

/// A header as it is sent. Its value may be a secret and is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Header {
    /// Its name.
    pub name: String,
    /// Its value, with places to fill.
    pub value: String,
}

/// How the target is brought to behave in some way.
#[derive(Clone, PartialEq, Eq)]
pub enum Case {
    /// By one more header, which retries do not carry: one that is executed again then shows.
    Header(Header),
    /// By another body, which retries carry, too: they would be another request without.
    Body(String),
}

/// The ways to behave that some probes need.
#[derive(Clone, Default)]
pub struct Cases {
    /// Takes long, longer than a lease.
    pub slow: Option<Case>,
    /// Does its work at once, and takes long to answer.
    pub linger: Option<Case>,
    /// Does its work and answers 504.
    pub timeout: Option<Case>,
    /// Is over without success, for good.
    pub declined: Option<Case>,
    /// Answers with more than is stored.
    pub large: Option<Case>,
    /// Does its work, and cannot record it.
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

/// How effects are counted. Only the target's owner knows.
#[derive(Clone)]
pub enum Counter {
    /// `GET` of this URL, with places to fill: a number, an array whose length counts, or one of
    /// these within a JSON document.
    Url {
        /// With places to fill.
        url: String,
        /// JSON Pointer to the number or the array.
        pointer: Option<String>,
    },
    /// What this command prints, with places to fill.
    Command(String),
}

/// What breaks the target and repairs it.
#[derive(Clone, Default)]
pub struct Commands {
    /// Kills and restarts the target; it may be ready later than the command ends.
    pub crash: Option<String>,
    /// From here on the store of the keys does not answer.
    pub break_store: Option<String>,
    /// From here on it does.
    pub heal_store: Option<String>,
}

/// What is probed.
#[derive(Clone)]
#[non_exhaustive]
pub struct Target {
    /// Where requests go.
    pub address: Address,
    /// How they are sent.
    pub method: String,
    /// What they carry, with places to fill.
    pub body: String,
    /// Another request for the same key; the first number changed where absent.
    pub other_body: Option<String>,
    /// What every request carries.
    pub headers: Vec<Header>,
    /// What another tenant's requests carry instead.
    pub other_headers: Vec<Header>,
    /// The name of the header that the key is in.
    pub key_header: String,
    /// How keys are written.
    pub dialect: Chosen,
    /// How long an operation may take, and how long its outcome is waited for.
    pub operation_timeout: Duration,
    /// How effects are counted.
    pub counter: Option<Counter>,
    /// How the target is brought to behave in some way.
    pub cases: Cases,
    /// What breaks it and repairs it.
    pub commands: Commands,
    /// Whether probes run that need faults or take long.
    pub disruptive: bool,
}

/// Fits the demonstration, and most payment APIs with little change.
pub(crate) const BODY: &str = r#"{"amount":1000,"currency":"EUR","account":"semel-check","merchant_reference":"{reference}"}"#;

/// Longer than most operations, shorter than a person waits.
pub(crate) const OPERATION_TIMEOUT: Duration = Duration::from_secs(30);

/// Headers that hold no secret, and whose values are common in answers.
const OPEN: [&str; 4] = ["accept", "content-type", "host", "user-agent"];
/// A shorter value is a word that any answer may have.
const SHORTEST_SECRET: usize = 6;
/// What asks for a behaviour is mostly the word that the answer has, too, as `declined`; a test
/// customer's token is longer.
const SHORTEST_IN_A_CASE: usize = 16;

impl Target {
    /// With defaults that fit `semel demo`.
    pub fn new(address: Address) -> Self {
        Self {
            address,
            method: "POST".to_owned(),
            body: BODY.to_owned(),
            other_body: None,
            headers: Vec::new(),
            other_headers: Vec::new(),
            key_header: "Idempotency-Key".to_owned(),
            dialect: Chosen::Auto,
            operation_timeout: OPERATION_TIMEOUT,
            counter: None,
            cases: Cases::default(),
            commands: Commands::default(),
            disruptive: false,
        }
    }

    /// Values that are nobody's business: a server may repeat them in an answer.
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

/// What is secret of a value: all of it and what follows its scheme, each but for the places to
/// fill. What they are filled with is in every report.
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
    fn secrets_are_all_that_a_caller_sends_and_nobody_else_knows() {
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
