//! A connection that says when it breaks.

use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use tokio::sync::watch;

use crate::Error;
use crate::consume::RECONNECT;

/// How long opening waits for a server. One that is away is waited for in the background.
const OPEN_PATIENCE: Duration = Duration::from_secs(2);

/// How a connection stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) connected: bool,
    /// Grows whenever it breaks or is made: what was asked before is not answered after.
    pub(super) changes: u64,
}

/// A connection, which makes itself anew.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) client: Client,
    pub(super) jetstream: Context,
    pub(super) state: watch::Receiver<State>,
}

impl Link {
    /// Opens a connection to the first of these servers that answers.
    pub(super) async fn open(
        url: &str,
        options: ConnectOptions,
        patience: Duration,
    ) -> Result<Self, Error> {
        let wrong = |error: &dyn std::fmt::Display| Error::Address {
            server: "NATS server",
            reason: format!("{error}. Write nats://HOST:PORT, or tls:// for TLS").into(),
        };
        let servers = url
            .split(',')
            .map(|server| server.trim().parse::<ServerAddr>())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| wrong(&error))?;
        let (sender, mut state) = watch::channel(State::default());
        let client = options
            .name("semel")
            .retry_on_initial_connect()
            .max_reconnects(None)
            .reconnect_delay_callback(|attempts| {
                let attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
                RECONNECT.spread(std::process::id(), attempts)
            })
            .event_callback(move |event| {
                note(&sender, &event);
                std::future::ready(())
            })
            .connect(servers)
            .await
            .map_err(|error| wrong(&error))?;
        let opened = state.wait_for(|state| state.connected);
        if tokio::time::timeout(OPEN_PATIENCE, opened).await.is_err() {
            tracing::warn!("NATS does not answer; it is tried again in the background");
        }
        Ok(Self {
            jetstream: ContextBuilder::new()
                .timeout(patience)
                .build(client.clone()),
            client,
            state,
        })
    }
}

fn note(state: &watch::Sender<State>, event: &Event) {
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
