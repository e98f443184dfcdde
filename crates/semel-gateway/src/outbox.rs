//! The outbox of the store: from the configuration to a relay that runs in the worker.

use std::sync::Arc;

use semel_brokers::{http, nats, rabbitmq};
use semel_core::outbox::Sink;
use semel_core::{Chore, Clock, Outbox};
use semel_worker::{BacklogGauge, Relay};

use crate::config::{Destination, OutboxConfig};

/// The broker that a configuration names. One that is away is no error: it is tried again.
///
/// # Errors
/// Where the settings make no sense in a way that the configuration does not catch.
///
/// # Cancellation
/// Nothing is left behind.
pub async fn sink(to: &Destination) -> Result<Arc<dyn Sink>, semel_brokers::Error> {
    Ok(match to {
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

/// What a worker repeats for an outbox: it relays, and shows the backlog.
///
/// # Errors
/// See [`sink`].
///
/// # Cancellation
/// See [`sink`].
pub async fn chores<O: Outbox + Clone>(
    config: &OutboxConfig,
    outbox: O,
    clock: Arc<dyn Clock>,
) -> Result<[Arc<dyn Chore>; 2], semel_brokers::Error> {
    let relay = Relay::new(outbox.clone(), sink(&config.to).await?)
        .max_tries(config.max_tries)
        .in_flight(config.in_flight);
    Ok([Arc::new(relay), Arc::new(BacklogGauge::new(outbox, clock))])
}
