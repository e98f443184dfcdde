//! Builds the outbox relay that the worker runs.

use std::sync::Arc;

use semel_brokers::http;
#[cfg(feature = "nats")]
use semel_brokers::nats;
#[cfg(feature = "rabbitmq")]
use semel_brokers::rabbitmq;
use semel_core::outbox::Sink;
use semel_core::{BackgroundJob, Clock, Store};
use semel_worker::{BacklogGauge, Relay};

use crate::config::{Destination, OutboxConfig};
use crate::run::Error;

/// Opens the configured broker. An unreachable broker is not an error: the relay retries.
///
/// # Errors
/// If the settings are invalid in a way that loading the configuration does not catch.
///
/// # Cancellation
/// Nothing is left behind.
pub async fn sink(to: &Destination) -> Result<Arc<dyn Sink>, Error> {
    Ok(match to {
        #[cfg(not(feature = "nats"))]
        Destination::Nats { .. } => return Err(not_built("nats")),
        #[cfg(feature = "nats")]
        Destination::Nats {
            url,
            subject,
            stream,
        } => {
            let mut options = nats::Options::new(url.expose());
            if let Some(subject) = subject {
                options = options.subject(subject.clone());
            }
            if let Some(stream) = stream {
                options = options.ensure_stream(nats::Stream::new(stream.clone()));
            }
            Arc::new(options.open().await?)
        }
        #[cfg(not(feature = "rabbitmq"))]
        Destination::RabbitMq { .. } => return Err(not_built("rabbitmq")),
        #[cfg(feature = "rabbitmq")]
        Destination::RabbitMq {
            url,
            exchange,
            routing_key,
        } => {
            let mut options = rabbitmq::Options::new(url.expose(), exchange.clone());
            if let Some(routing_key) = routing_key {
                options = options.routing_key(routing_key.clone());
            }
            Arc::new(options.open()?)
        }
        Destination::Http { url, secrets } => {
            let options = http::Options::new(url.expose());
            let secrets = secrets.iter();
            let options = secrets.fold(options, |options, secret| options.secret(secret.expose()));
            Arc::new(options.open()?)
        }
    })
}

#[cfg(not(all(feature = "nats", feature = "rabbitmq")))]
fn not_built(feature: &'static str) -> Error {
    Error::NotBuilt {
        key: "outbox.to",
        feature,
    }
}

/// The worker's jobs for the outbox: the relay, and the backlog metrics.
///
/// # Errors
/// See [`sink`].
///
/// # Cancellation
/// See [`sink`].
pub async fn jobs<O: Store + Clone>(
    config: &OutboxConfig,
    outbox: O,
    clock: Arc<dyn Clock>,
) -> Result<[Arc<dyn BackgroundJob>; 2], Error> {
    let relay = Relay::new(outbox.clone(), sink(&config.to).await?)
        .max_tries(config.max_tries)
        .in_flight(config.in_flight);
    Ok([Arc::new(relay), Arc::new(BacklogGauge::new(outbox, clock))])
}
