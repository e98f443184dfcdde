//! `[outbox]`: where the application's events are published.

use std::fmt;
use std::ops::Range;

use semel_worker::webhook::Scheme;
use toml::Spanned;

use super::problem::Problems;
use super::table::Table;
use super::{Environment, SecretUrl, StoreUrl, secrets};

/// Default of `max_tries`.
const DEFAULT_MAX_TRIES: usize = 20;

/// Maximum of `max_tries`.
const MAX_MAX_TRIES: usize = 1000;

/// Maximum of `in_flight`.
const MAX_IN_FLIGHT: usize = 4096;

/// Default of `in_flight` for brokers, which confirm hundreds of events as fast as one.
const DEFAULT_IN_FLIGHT: usize = 256;

/// Default of `in_flight` for HTTP: each event takes a connection.
const DEFAULT_IN_FLIGHT_HTTP: usize = 32;

/// The destination of events, and the limits of publishing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxConfig {
    /// The destination.
    pub to: Destination,
    /// How often the destination may refuse an event before it is dead-lettered.
    pub max_tries: u32,
    /// How many events may wait for a confirmation at once.
    pub in_flight: usize,
}

/// Where events are published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A NATS `JetStream` stream.
    Nats {
        /// The server.
        url: SecretUrl,
        /// The subject template of an event.
        subject: Option<Box<str>>,
        /// The stream to create if it does not exist.
        stream: Option<Box<str>>,
    },
    /// A `RabbitMQ` exchange.
    RabbitMq {
        /// The server.
        url: SecretUrl,
        /// The exchange.
        exchange: Box<str>,
        /// The routing key template of an event.
        routing_key: Option<Box<str>>,
    },
    /// A receiver of Standard Webhooks.
    Http {
        /// Its address.
        url: SecretUrl,
        /// Signing secrets; the first is the newest.
        secrets: Vec<SigningSecret>,
    },
}

/// A secret that `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningSecret(Box<str>);

impl SigningSecret {
    /// The secret, to sign with.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// The kind of destination.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DestinationKind {
    Nats,
    RabbitMq,
    Http,
}

/// Keys that apply to one kind of destination only.
const SPECIFIC_KEYS: [(&str, DestinationKind); 6] = [
    ("subject", DestinationKind::Nats),
    ("stream", DestinationKind::Nats),
    ("exchange", DestinationKind::RabbitMq),
    ("routing_key", DestinationKind::RabbitMq),
    ("secret_env", DestinationKind::Http),
    ("secret_file", DestinationKind::Http),
];

/// Reports a store whose database has no outbox.
pub(super) fn check_store(span: Range<usize>, store: &StoreUrl, problems: &Problems) {
    let message = match store {
        StoreUrl::Memory => {
            "[outbox] needs a database that the application can write to: use a SQLite or \
             PostgreSQL store instead of `memory:`"
        }
        StoreUrl::Dynamodb(_) => {
            "[outbox] is not supported with DynamoDB: publish from the Streams of the \
             application's table, or use a PostgreSQL store"
        }
        StoreUrl::Sqlite(_) | StoreUrl::Postgres(_) => return,
    };
    problems.at(span, message);
}

pub(super) fn read(mut table: Table<'_>, environment: &Environment) -> Option<OutboxConfig> {
    let problems = table.problems;
    let to = read_address(&mut table, environment);
    let kind = to.as_ref().map(|to| to.get_ref().0);
    let subject = table.parsed("subject", subject);
    let stream = table.parsed("stream", |text| name("stream", text));
    let exchange = table.parsed("exchange", |text| name("exchange", text));
    let routing_key = table.parsed("routing_key", |text| {
        template(text).map(|()| Box::from(text))
    });
    let required = (kind == Some(DestinationKind::Http)).then_some(
        "[outbox] has no secret to sign events with: add `secret_env = \"OUTBOX_SECRET\"` or \
         `secret_file = \"outbox.secret\"`",
    );
    let secrets = secrets::read(&mut table, Some(&Scheme::Standard), environment, required);
    for (key, of) in SPECIFIC_KEYS {
        if kind.is_some_and(|kind| kind != of) {
            table.reject([key], |key| {
                format!(
                    "`{key}` applies to {} only, and has no effect here",
                    of.example()
                )
            });
        }
    }
    if kind == Some(DestinationKind::RabbitMq) && table.key_span("exchange").is_none() {
        let message = "RabbitMQ needs an `exchange`: add `exchange = \"events\"`";
        problems.at(table.span(), message);
    }
    let max_tries = table.integer("max_tries", 1..=MAX_MAX_TRIES);
    let in_flight = table.integer("in_flight", 1..=MAX_IN_FLIGHT);
    table.finish();

    let (kind, url) = to?.into_inner();
    let inner = |text: Option<Spanned<Box<str>>>| text.map(Spanned::into_inner);
    let to = match kind {
        DestinationKind::Nats => Destination::Nats {
            url,
            subject: inner(subject),
            stream: inner(stream),
        },
        DestinationKind::RabbitMq => Destination::RabbitMq {
            url,
            exchange: exchange?.into_inner(),
            routing_key: inner(routing_key),
        },
        DestinationKind::Http => Destination::Http {
            url,
            secrets: secrets?
                .into_iter()
                .map(|secret| SigningSecret(secret.into()))
                .collect(),
        },
    };
    let default_in_flight = match kind {
        DestinationKind::Nats | DestinationKind::RabbitMq => DEFAULT_IN_FLIGHT,
        DestinationKind::Http => DEFAULT_IN_FLIGHT_HTTP,
    };
    let max_tries = max_tries.map_or(DEFAULT_MAX_TRIES, Spanned::into_inner);
    Some(OutboxConfig {
        to,
        max_tries: u32::try_from(max_tries).unwrap_or(u32::MAX),
        in_flight: in_flight.map_or(default_in_flight, Spanned::into_inner),
    })
}

/// The address, from the file or, if it contains a password, from the environment.
fn read_address(
    table: &mut Table<'_>,
    environment: &Environment,
) -> Option<Spanned<(DestinationKind, SecretUrl)>> {
    let in_file = table.parsed("to", address);
    let in_environment = table.parsed("to_env", |variable| {
        address(&environment.require(variable)?)
            .map_err(|problem| format!("environment variable {variable}: {problem}"))
    });
    let problems = table.problems;
    match (table.key_span("to"), table.key_span("to_env")) {
        (None, None) => {
            let message = "[outbox] has no destination: add `to = \"nats://127.0.0.1:4222\"`, \
                           \"amqp://…\" or \"https://…\"";
            problems.at(table.span(), message);
        }
        (Some(_), Some(span)) => problems.at(span, "set `to` or `to_env`, not both"),
        (Some(_), None) | (None, Some(_)) => {}
    }
    in_file.or(in_environment)
}

/// Messages do not repeat the address, which may contain a password.
fn address(text: &str) -> Result<(DestinationKind, SecretUrl), String> {
    let advice = "write \"nats://127.0.0.1:4222\", \"amqp://127.0.0.1:5672/%2f\" or \
                  \"https://example.com/events\"";
    let (scheme, rest) = text
        .split_once("://")
        .ok_or_else(|| format!("invalid broker address: {advice}"))?;
    let kind = match scheme {
        "nats" | "tls" => DestinationKind::Nats,
        "amqp" | "amqps" => DestinationKind::RabbitMq,
        "http" | "https" => DestinationKind::Http,
        _ => return Err(format!("unknown broker scheme `{scheme}://`: {advice}")),
    };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default();
    if host.is_empty() || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(format!(
            "the broker address has no host, or contains whitespace: {advice}"
        ));
    }
    if kind == DestinationKind::Http
        && rest
            .split('/')
            .next()
            .is_some_and(|host| host.contains('@'))
    {
        return Err(
            "remove the user from the address: it would not be sent; events are signed instead"
                .to_owned(),
        );
    }
    Ok((kind, SecretUrl::new(text)))
}

/// Checks the name of a stream or an exchange.
fn name(what: &str, text: &str) -> Result<Box<str>, String> {
    let fits = (1..=255).contains(&text.len())
        && !text.contains(|c: char| c.is_whitespace() || c.is_control());
    let dots = what == "stream" && text.contains(['.', '*', '>', '/', '\\']);
    if !fits || dots {
        return Err(format!(
            "invalid {what} name {text:?}: use 1 to 255 characters without whitespace, and for a \
             stream without `.`, `*`, `>`, `/` and `\\`"
        ));
    }
    Ok(text.into())
}

/// The first level must be literal, so that events cannot be published to the broker's own
/// subjects.
fn subject(text: &str) -> Result<Box<str>, String> {
    template(text)?;
    let refused = |problem: &str| format!("invalid subject {text:?}: {problem}");
    if text.split('.').any(str::is_empty) {
        return Err(refused("a level is empty"));
    }
    let first = text.split('.').next().unwrap_or_default();
    if first.contains('{') || first.starts_with(['$', '_']) {
        return Err(refused(
            "the first level must be literal, for example \"semel.{kind}\"",
        ));
    }
    Ok(text.into())
}

/// Checks a template with the placeholders `{kind}` and `{aggregate}`.
fn template(text: &str) -> Result<(), String> {
    let refused = |problem: &str| format!("invalid template {text:?}: {problem}");
    let plain = text.replace("{kind}", "").replace("{aggregate}", "");
    if plain.contains(['{', '}']) {
        return Err(refused("only {kind} and {aggregate} are replaced"));
    }
    if text.is_empty()
        || plain.contains(|c: char| "*>#".contains(c) || c.is_whitespace() || c.is_control())
    {
        return Err(refused("it is empty, or contains wildcards or whitespace"));
    }
    Ok(())
}

impl DestinationKind {
    fn example(self) -> &'static str {
        match self {
            Self::Nats => "`to = \"nats://…\"`",
            Self::RabbitMq => "`to = \"amqp://…\"`",
            Self::Http => "`to = \"https://…\"`",
        }
    }
}
