//! Connections, and what is declared on them.

use std::fmt::Display;
use std::time::Duration;

use lapin::options::ExchangeDeclareOptions;
use lapin::types::{FieldTable, ShortString};
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};

use crate::Error;

/// How long a connection may take. A server that is up needs milliseconds.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// The address, without which there is no sink and no consumer.
pub(super) fn address(url: &str) -> Result<AMQPUri, Error> {
    let wrong = |reason: &dyn Display| Error::Address {
        server: "RabbitMQ server",
        reason: format!(
            "{reason}. Write amqp://USER:PASSWORD@HOST:PORT/VHOST, or amqps:// for TLS"
        )
        .into(),
    };
    url.parse().map_err(|reason: String| wrong(&reason))
}

/// A name that the protocol can carry.
pub(super) fn name(what: &'static str, text: &str) -> Result<ShortString, Error> {
    ShortString::try_new(text).map_err(|_| Error::Name {
        what,
        name: text.into(),
        reason: "it has more than 255 bytes",
    })
}

/// Connects, without lapin's own recovery: what becomes of a confirmation that is under way when
/// a connection breaks is for us to say.
pub(super) async fn connect(address: &AMQPUri) -> Result<Connection, String> {
    let properties = ConnectionProperties::default().with_connection_name("semel".into());
    let connecting = Connection::connect_uri(address.clone(), properties);
    match tokio::time::timeout(CONNECT_PATIENCE, connecting).await {
        Ok(connected) => connected.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no connection within {CONNECT_PATIENCE:?}")),
    }
}

/// Creates a durable topic exchange where there is none. The nameless one is always there.
pub(super) async fn declare_exchange(
    channel: &Channel,
    exchange: &ShortString,
) -> lapin::Result<()> {
    if exchange.as_str().is_empty() {
        return Ok(());
    }
    let options = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    channel
        .exchange_declare(
            exchange.clone(),
            ExchangeKind::Topic,
            options,
            FieldTable::default(),
        )
        .await
}
