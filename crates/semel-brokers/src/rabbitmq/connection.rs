//! Connections, and the declaration of exchanges.

use std::fmt::Display;
use std::time::Duration;

use lapin::options::ExchangeDeclareOptions;
use lapin::types::{FieldTable, ShortString};
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};

use crate::Error;

/// The timeout of connecting. A healthy server needs milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Parses the address of a server.
pub(super) fn parse_address(url: &str) -> Result<AMQPUri, Error> {
    let invalid = |reason: &dyn Display| Error::Address {
        server: "RabbitMQ server",
        reason: format!(
            "{reason}. Write amqp://USER:PASSWORD@HOST:PORT/VHOST, or amqps:// for TLS"
        )
        .into(),
    };
    url.parse().map_err(|reason: String| invalid(&reason))
}

/// Converts a name, which the protocol limits to 255 bytes.
pub(super) fn short_name(kind: &'static str, text: &str) -> Result<ShortString, Error> {
    ShortString::try_new(text).map_err(|_| Error::Name {
        kind,
        name: text.into(),
        reason: "it is longer than 255 bytes",
    })
}

/// Connects without lapin's own recovery, because the callers themselves handle confirmations that
/// are outstanding when a connection is lost.
pub(super) async fn connect(address: &AMQPUri) -> Result<Connection, String> {
    let properties = ConnectionProperties::default().with_connection_name("semel".into());
    let connecting = Connection::connect_uri(address.clone(), properties);
    match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(connected) => connected.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no connection within {CONNECT_TIMEOUT:?}")),
    }
}

/// Creates a durable topic exchange if it does not exist. The default exchange, whose name is empty,
/// always exists.
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
