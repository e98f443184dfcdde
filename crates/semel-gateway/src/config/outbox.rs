//! `[outbox]`: where the events go that an application writes.

use std::fmt;

use semel_worker::webhook::{MAX_SECRETS, Scheme};
use toml::Spanned;

use super::table::Table;
use super::{Environment, Secret, webhook};

/// How often a broker may refuse an event before it waits for a person, unless it is told.
const MAX_TRIES: usize = 20;

/// The most tries that can be asked for.
const MOST_TRIES: usize = 1000;

/// The most events on their way at once that can be asked for.
const MOST_IN_FLIGHT: usize = 4096;

/// How many events are on their way to a broker at once, unless it is told. It confirms them by
/// the hundred as fast as one by one.
const IN_FLIGHT: usize = 256;

/// The same for a receiver over HTTP: each takes a connection.
const IN_FLIGHT_HTTP: usize = 32;

/// Where events go, and how hard it is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxConfig {
    /// Where to.
    pub to: Destination,
    /// How often one may be refused before it waits for a person.
    pub max_tries: u32,
    /// How many may be on their way at once.
    pub in_flight: usize,
}

/// Who takes the events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A stream of NATS `JetStream`.
    Nats {
        /// The server.
        url: Secret,
        /// The subject of an event, with places for its names.
        subject: Option<Box<str>>,
        /// The stream that is created where there is none.
        stream: Option<Box<str>>,
    },
    /// An exchange of `RabbitMQ`.
    RabbitMq {
        /// The server.
        url: Secret,
        /// The exchange.
        exchange: Box<str>,
        /// The routing key of an event, with places for its names.
        routing_key: Option<Box<str>>,
    },
    /// A receiver of Standard Webhooks.
    Http {
        /// Its address.
        url: Secret,
        /// What is signed with; the first is the newest.
        secrets: Vec<Hidden>,
    },
}

/// A secret that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Hidden(Box<str>);

impl Hidden {
    /// The secret, for whoever signs.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// Which broker an address is of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Nats,
    RabbitMq,
    Http,
}

/// Keys that belong to one kind of broker.
const OWN: [(&str, Kind); 6] = [
    ("subject", Kind::Nats),
    ("stream", Kind::Nats),
    ("exchange", Kind::RabbitMq),
    ("routing_key", Kind::RabbitMq),
    ("secret_env", Kind::Http),
    ("secret_file", Kind::Http),
];

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
    let secrets = read_secrets(&mut table, kind, environment);
    for (key, of) in OWN {
        if let (Some(kind), Some(span)) = (kind, table.key_span(key))
            && kind != of
        {
            let message = format!("`{key}` is for {}, and has no effect here", of.example());
            problems.at(span, message);
        }
    }
    if kind == Some(Kind::RabbitMq) && table.key_span("exchange").is_none() {
        let message = "RabbitMQ needs an `exchange`; write `exchange = \"events\"`";
        problems.at(table.span(), message);
    }
    let max_tries = table.integer("max_tries", 1..=MOST_TRIES);
    let in_flight = table.integer("in_flight", 1..=MOST_IN_FLIGHT);
    table.finish();

    let (kind, url) = to?.into_inner();
    let inner = |text: Option<Spanned<Box<str>>>| text.map(Spanned::into_inner);
    let to = match kind {
        Kind::Nats => Destination::Nats {
            url,
            subject: inner(subject),
            stream: inner(stream),
        },
        Kind::RabbitMq => Destination::RabbitMq {
            url,
            exchange: exchange?.into_inner(),
            routing_key: inner(routing_key),
        },
        Kind::Http => Destination::Http {
            url,
            secrets: secrets?,
        },
    };
    let most = match kind {
        Kind::Nats | Kind::RabbitMq => IN_FLIGHT,
        Kind::Http => IN_FLIGHT_HTTP,
    };
    let max_tries = max_tries.map_or(MAX_TRIES, Spanned::into_inner);
    Some(OutboxConfig {
        to,
        max_tries: u32::try_from(max_tries).unwrap_or(u32::MAX),
        in_flight: in_flight.map_or(most, Spanned::into_inner),
    })
}

/// The address, written here or, where it holds a password, in the environment.
fn read_address(
    table: &mut Table<'_>,
    environment: &Environment,
) -> Option<Spanned<(Kind, Secret)>> {
    let here = table.parsed("to", address);
    let elsewhere = table.parsed("to_env", |variable| {
        let value = environment.value(variable)?;
        let value = value.ok_or_else(|| format!("the environment has no variable {variable}"))?;
        address(&value).map_err(|problem| format!("the variable {variable}: {problem}"))
    });
    let problems = table.problems;
    match (table.key_span("to"), table.key_span("to_env")) {
        (None, None) => {
            let message = "`[outbox]` does not say where events go; write \
                           `to = \"nats://127.0.0.1:4222\"`, \"amqp://…\" or \"https://…\"";
            problems.at(table.span(), message);
        }
        (Some(_), Some(span)) => problems.at(span, "write `to` or `to_env`, not both"),
        (Some(_), None) | (None, Some(_)) => {}
    }
    here.or(elsewhere)
}

/// The message does not repeat the address, which may hold a password.
fn address(text: &str) -> Result<(Kind, Secret), String> {
    let advice = "write \"nats://127.0.0.1:4222\", \"amqp://127.0.0.1:5672/%2f\" or \
                  \"https://example.com/events\"";
    let (scheme, rest) = text
        .split_once("://")
        .ok_or_else(|| format!("this is no address of a broker; {advice}"))?;
    let kind = match scheme {
        "nats" | "tls" => Kind::Nats,
        "amqp" | "amqps" => Kind::RabbitMq,
        "http" | "https" => Kind::Http,
        _ => return Err(format!("there is no broker `{scheme}://`; {advice}")),
    };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default();
    if host.is_empty() || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(format!("the address has no host, or blanks; {advice}"));
    }
    if kind == Kind::Http
        && rest
            .split('/')
            .next()
            .is_some_and(|host| host.contains('@'))
    {
        return Err(
            "the address has a user, which would not be sent; events are signed".to_owned(),
        );
    }
    Ok((kind, Secret::new(text)))
}

/// What is asked of a place that events go to by name.
fn name(what: &str, text: &str) -> Result<Box<str>, String> {
    let fits = (1..=255).contains(&text.len())
        && !text.contains(|c: char| c.is_whitespace() || c.is_control());
    let dots = what == "stream" && text.contains(['.', '*', '>', '/', '\\']);
    if !fits || dots {
        return Err(format!("{text:?} cannot be the name of the {what}"));
    }
    Ok(text.into())
}

/// The broker's own subjects must be out of an event's reach, so its first level is a word.
fn subject(text: &str) -> Result<Box<str>, String> {
    template(text)?;
    let refused = |problem: &str| format!("{text:?} is no subject: {problem}");
    if text.split('.').any(str::is_empty) {
        return Err(refused("a level is empty"));
    }
    let first = text.split('.').next().unwrap_or_default();
    if first.contains('{') || first.starts_with(['$', '_']) {
        return Err(refused(
            "its first level is a word of its own, such as in \"semel.{kind}\"",
        ));
    }
    Ok(text.into())
}

/// A text with places for `{kind}` and `{aggregate}`.
fn template(text: &str) -> Result<(), String> {
    let refused = |problem: &str| format!("{text:?} cannot be sent to: {problem}");
    let plain = text.replace("{kind}", "").replace("{aggregate}", "");
    if plain.contains(['{', '}']) {
        return Err(refused("only {kind} and {aggregate} are filled in"));
    }
    if text.is_empty()
        || plain.contains(|c: char| "*>#".contains(c) || c.is_whitespace() || c.is_control())
    {
        return Err(refused("it is empty, or has wildcards or blanks"));
    }
    Ok(())
}

/// Where there is a problem, it is told.
fn read_secrets(
    table: &mut Table<'_>,
    kind: Option<Kind>,
    environment: &Environment,
) -> Option<Vec<Hidden>> {
    let scheme = Scheme::Standard;
    let (asked, all) = webhook::each_secret(table, Some(&scheme), environment);
    if kind != Some(Kind::Http) {
        return None;
    }
    let given = ["secret_env", "secret_file"]
        .into_iter()
        .filter_map(|key| table.key_span(key))
        .next_back();
    match given {
        None => table.problems.at(
            table.span(),
            "without a secret nobody could tell who sent an event; write \
             `secret_env = \"OUTBOX_SECRET\"` or `secret_file = \"outbox.secret\"`",
        ),
        Some(span) if asked == 0 || asked > MAX_SECRETS => {
            let message = format!("an outbox has 1 to {MAX_SECRETS} secrets, and this has {asked}");
            table.problems.at(span, message);
        }
        Some(_) => {}
    }
    let whole = asked == all.len() && (1..=MAX_SECRETS).contains(&asked);
    whole.then(|| {
        all.into_iter()
            .map(|secret| Hidden(secret.into()))
            .collect()
    })
}

impl Kind {
    fn example(self) -> &'static str {
        match self {
            Self::Nats => "`to = \"nats://…\"`",
            Self::RabbitMq => "`to = \"amqp://…\"`",
            Self::Http => "`to = \"https://…\"`",
        }
    }
}
