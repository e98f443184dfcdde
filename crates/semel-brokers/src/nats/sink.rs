//! Publishes events to a stream, and waits for the confirmation of each.

use std::error::Error as _;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::ConnectOptions;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, ErrorCode, stream};
use semel_core::outbox::{self, Event, Publishing, Refused};
use tokio::sync::Mutex;

use super::connection::Connection;
use super::{AGGREGATE, DEFAULT_SUBJECT, KIND};
use crate::template::Template;
use crate::{Error, rejected, unavailable};

/// The default time to wait for a confirmation. A healthy server needs milliseconds.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);

/// The default time for which a stream detects duplicate ids. Within it, consumers do not see that a
/// relay published an event twice. A consumer's inbox does not rely on it.
const DUPLICATE_WINDOW: Duration = Duration::from_mins(10);

/// The settings of a [`Sink`].
pub struct Options {
    url: Box<str>,
    subject: Box<str>,
    timeout: Duration,
    stream: Option<Stream>,
    connect: ConnectOptions,
}

/// A stream that a sink creates if there is none of that name. An existing stream is not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    name: Box<str>,
    subjects: Vec<String>,
    duplicate_window: Duration,
    replicas: usize,
}

/// Publishes to JetStream over one connection.
pub struct Sink {
    connection: Connection,
    subject: Template,
    timeout: Duration,
    stream: Option<stream::Config>,
    /// Whether the stream is known to exist.
    is_ensured: AtomicBool,
    /// Held while the stream is created, so that one caller does it for all.
    ensure_lock: Mutex<()>,
}

impl Options {
    /// The address of a server, or of several, separated by commas: `nats://`, or `tls://` with the
    /// operating system's root certificates. It may contain a user and a password.
    pub fn new(url: impl Into<Box<str>>) -> Self {
        Self {
            url: url.into(),
            subject: DEFAULT_SUBJECT.into(),
            timeout: CONFIRM_TIMEOUT,
            stream: None,
            connect: ConnectOptions::new(),
        }
    }

    /// The template of subjects, by default [`DEFAULT_SUBJECT`], with the placeholders `{kind}` and
    /// `{aggregate}`. Dots in a kind separate levels; all other special characters are replaced. The
    /// first level must not contain a placeholder, so that no event is published to the server's own
    /// subjects.
    pub fn subject(self, template: impl Into<Box<str>>) -> Self {
        Self {
            subject: template.into(),
            ..self
        }
    }

    /// How long the sink waits for a confirmation.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Creates the stream if it does not exist.
    pub fn ensure_stream(self, stream: Stream) -> Self {
        Self {
            stream: Some(stream),
            ..self
        }
    }

    /// Connects with these options, for example credentials or certificates. The sink sets the name,
    /// the reconnection policy and the event callback.
    pub fn connect_with(self, connect: ConnectOptions) -> Self {
        Self { connect, ..self }
    }

    /// Opens the sink. If the server does not respond within two seconds, the sink logs a warning and
    /// connects in the background.
    ///
    /// # Errors
    /// [`Error`] if the settings are invalid.
    ///
    /// # Cancellation
    /// Nothing is left behind.
    pub async fn open(self) -> Result<Sink, Error> {
        let subject = Template::parse("subject", &self.subject)?;
        let prefix = subject.literal_prefix();
        let is_first_level_literal = prefix.contains('.') || prefix.len() == self.subject.len();
        let has_empty_level = self.subject.split('.').any(str::is_empty);
        if !is_first_level_literal || has_empty_level || prefix.starts_with(['$', '_']) {
            return Err(Error::Name {
                kind: "subject",
                name: self.subject,
                reason: "the first level must not contain a placeholder or begin with `$` or `_`, \
                         and no level may be empty",
            });
        }
        let stream = self.stream.map(|stream| stream.config(&self.subject));
        Ok(Sink {
            connection: Connection::open(&self.url, self.connect, self.timeout).await?,
            subject,
            timeout: self.timeout,
            is_ensured: AtomicBool::new(stream.is_none()),
            stream,
            ensure_lock: Mutex::default(),
        })
    }
}

impl Stream {
    /// A stream with file storage that stores all subjects of the sink, and detects duplicate ids
    /// for ten minutes.
    pub fn new(name: impl Into<Box<str>>) -> Self {
        Self {
            name: name.into(),
            subjects: Vec::new(),
            duplicate_window: DUPLICATE_WINDOW,
            replicas: 1,
        }
    }

    /// Stores these subjects instead. They may contain wildcards.
    pub fn subjects(self, subjects: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            subjects: subjects.into_iter().map(Into::into).collect(),
            ..self
        }
    }

    /// How long the stream detects duplicate ids. It should be longer than a relay may be down
    /// between a confirmation and its next try.
    pub fn duplicate_window(self, duplicate_window: Duration) -> Self {
        Self {
            duplicate_window,
            ..self
        }
    }

    /// The number of servers that store the stream. With one, a confirmed event survives a crash of
    /// the server process, but a power failure only after the file was synced (`sync_interval`).
    pub fn replicas(self, replicas: usize) -> Self {
        Self { replicas, ..self }
    }

    fn config(self, template: &str) -> stream::Config {
        let subjects = if self.subjects.is_empty() {
            // Everything below the first level, which has no placeholder.
            let first = template.split('.').next().unwrap_or(template);
            if first == template {
                vec![first.to_owned()]
            } else {
                vec![format!("{first}.>")]
            }
        } else {
            self.subjects
        };
        stream::Config {
            name: self.name.into(),
            subjects,
            storage: stream::StorageType::File,
            duplicate_window: self.duplicate_window,
            num_replicas: self.replicas,
            ..stream::Config::default()
        }
    }
}

impl outbox::Sink for Sink {
    fn publish<'a>(&'a self, event: &'a Event) -> Publishing<'a> {
        Box::pin(async move {
            event.check().map_err(rejected)?;
            let mut state = self.connection.state.clone();
            let before = *state.borrow_and_update();
            if !before.connected {
                return Err(unavailable("NATS is not connected"));
            }
            tokio::select! {
                // A confirmation that has arrived counts, even if the connection broke since.
                biased;
                sent = self.send(event) => sent,
                () = tokio::time::sleep(self.timeout) => {
                    Err(unavailable(format!("no confirmation within {:?}", self.timeout)))
                }
                _ = state.wait_for(|state| state.changes != before.changes) => {
                    Err(unavailable("the connection to NATS was lost before the confirmation"))
                }
            }
        })
    }
}

impl Sink {
    async fn send(&self, event: &Event) -> Result<(), Refused> {
        self.ensure_stream().await?;
        let message = PublishMessage::build()
            .payload(event.payload.clone())
            .message_id(event.id.to_string())
            .header(KIND, &*event.kind)
            .header(AGGREGATE, &*event.aggregate);
        let subject = self.subject.fill(event);
        let published = async {
            let confirmed = self
                .connection
                .jetstream
                .send_publish(subject.clone(), message);
            confirmed.await?.await
        };
        match published.await {
            // A duplicate is stored already, so it counts as published.
            Ok(_) => Ok(()),
            Err(error) => Err(self.classify(&error, &subject)),
        }
    }

    /// Creates the stream. Concurrent callers wait for the first.
    async fn ensure_stream(&self) -> Result<(), Refused> {
        let Some(stream) = &self.stream else {
            return Ok(());
        };
        if self.is_ensured.load(Ordering::Acquire) {
            return Ok(());
        }
        let _guard = self.ensure_lock.lock().await;
        if self.is_ensured.load(Ordering::Acquire) {
            return Ok(());
        }
        self.connection
            .jetstream
            .get_or_create_stream(stream.clone())
            .await
            .map_err(|error| {
                let name = &stream.name;
                unavailable(format!("cannot create the stream {name:?}: {error}"))
            })?;
        self.is_ensured.store(true, Ordering::Release);
        Ok(())
    }

    /// Rejects the event only if the event itself is the cause. All other errors are temporary and
    /// affect every event.
    fn classify(&self, error: &PublishError, subject: &str) -> Refused {
        match error.kind() {
            PublishErrorKind::StreamNotFound => {
                // The stream may have been deleted: create it again before the next event.
                self.is_ensured
                    .store(self.stream.is_none(), Ordering::Release);
                unavailable(format!("no stream stores the subject {subject:?}"))
            }
            PublishErrorKind::MaxPayloadExceeded => rejected(error),
            PublishErrorKind::Other if is_message_too_large(error) => rejected(error),
            PublishErrorKind::Other
            | PublishErrorKind::TimedOut
            | PublishErrorKind::BrokenPipe
            | PublishErrorKind::MaxAckPending
            | PublishErrorKind::WrongLastMessageId
            | PublishErrorKind::WrongLastSequence => unavailable(error),
        }
    }
}

/// Whether the stream refused the message because of its size.
fn is_message_too_large(error: &PublishError) -> bool {
    error
        .source()
        .and_then(|source| source.downcast_ref::<jetstream::Error>())
        .is_some_and(|error| {
            [
                ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM,
                ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM,
            ]
            .contains(&error.error_code())
        })
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the address, which may hold a password.
        f.debug_struct("Sink")
            .field("subject", &self.subject)
            .field("stream", &self.stream.as_ref().map(|stream| &stream.name))
            .finish_non_exhaustive()
    }
}
