//! A NATS connection that reports its state changes.

use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use tokio::sync::watch;

use crate::Error;
use crate::consume::RECONNECT;

/// How long opening waits for a server. After that the client keeps connecting in the background.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether a connection is up, and how often that changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectionState {
    pub(super) connected: bool,
    /// Incremented when the connection is established or lost. Requests sent before a change get no
    /// reply after it.
    pub(super) changes: u64,
}

/// A connection that reconnects by itself.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) jetstream: Context,
    pub(super) state: watch::Receiver<ConnectionState>,
}

impl Connection {
    /// Opens a connection to the first of these servers that responds.
    pub(super) async fn open(
        url: &str,
        options: ConnectOptions,
        request_timeout: Duration,
    ) -> Result<Self, Error> {
        let invalid = |error: &dyn std::fmt::Display| Error::Address {
            server: "NATS server",
            reason: format!("{error}. Write nats://HOST:PORT, or tls:// for TLS").into(),
        };
        let servers = url
            .split(',')
            .map(|server| server.trim().parse::<ServerAddr>())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| invalid(&error))?;
        let (sender, mut state) = watch::channel(ConnectionState::default());
        let client = options
            .name("semel")
            .retry_on_initial_connect()
            .max_reconnects(None)
            .reconnect_delay_callback(|attempts| {
                let attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
                RECONNECT.spread(std::process::id(), attempts)
            })
            .event_callback(move |event| {
                update_state(&sender, &event);
                std::future::ready(())
            })
            .connect(servers)
            .await
            .map_err(|error| invalid(&error))?;
        let opened = state.wait_for(|state| state.connected);
        if tokio::time::timeout(OPEN_TIMEOUT, opened).await.is_err() {
            tracing::warn!("NATS does not respond; connecting in the background");
        }
        Ok(Self {
            jetstream: ContextBuilder::new()
                .timeout(request_timeout)
                .build(client.clone()),
            client,
            state,
        })
    }
}

fn update_state(state: &watch::Sender<ConnectionState>, event: &Event) {
    let connected = match event {
        Event::Connected => true,
        Event::Disconnected | Event::Closed => false,
        Event::LameDuckMode
        | Event::Draining
        | Event::SlowConsumer(_)
        | Event::ServerError(_)
        | Event::ClientError(_) => {
            tracing::warn!("NATS: {event}");
            return;
        }
    };
    tracing::debug!("NATS: {event}");
    state.send_modify(|state| {
        state.connected = connected;
        state.changes += 1;
    });
}
