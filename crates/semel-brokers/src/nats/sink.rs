//! Events into a stream, each confirmed.

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

use super::link::Link;
use super::{AGGREGATE, DEFAULT_SUBJECT, KIND};
use crate::template::Template;
use crate::{Error, rejected, unavailable};

/// How long a confirmation is waited for, unless it is told. A healthy server needs milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a stream knows an id again, unless it is told. It bounds what a relay may do twice
/// without a consumer's noticing; the consumer's inbox does not rely on it.
const DUPLICATE_WINDOW: Duration = Duration::from_mins(10);

/// How a [`Sink`] is opened.
pub struct Options {
    url: Box<str>,
    subject: Box<str>,
    patience: Duration,
    stream: Option<Stream>,
    connect: ConnectOptions,
}

/// A stream that a sink creates where there is none of its name. One that is there is left as it
/// is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    name: Box<str>,
    subjects: Vec<String>,
    duplicate_window: Duration,
    replicas: usize,
}

/// Publishes into JetStream, over one connection.
pub struct Sink {
    link: Link,
    subject: Template,
    patience: Duration,
    stream: Option<stream::Config>,
    /// Whether the stream is there, as far as we know.
    ensured: AtomicBool,
    ensuring: Mutex<()>,
}

impl Options {
    /// A server by its address, or several with commas between: `nats://`, or `tls://` with the
    /// certificates that the system trusts; user and password as usual.
    pub fn new(url: impl Into<Box<str>>) -> Self {
        Self {
            url: url.into(),
            subject: DEFAULT_SUBJECT.into(),
            patience: PATIENCE,
            stream: None,
            connect: ConnectOptions::new(),
        }
    }

    /// The subject of an event, [`DEFAULT_SUBJECT`] unless it is told: `{kind}` and `{aggregate}`
    /// are filled in. Dots of a kind are levels; nothing else of a name is. The first level has no
    /// name in it, so that no event reaches the server's own subjects.
    pub fn subject(self, template: impl Into<Box<str>>) -> Self {
        Self {
            subject: template.into(),
            ..self
        }
    }

    /// How long a confirmation is waited for.
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Creates the stream where there is none.
    pub fn ensure_stream(self, stream: Stream) -> Self {
        Self {
            stream: Some(stream),
            ..self
        }
    }

    /// Connects in a way of the caller's: credentials, certificates. Name, reconnection and events
    /// are the sink's.
    pub fn connect_with(self, connect: ConnectOptions) -> Self {
        Self { connect, ..self }
    }

    /// Opens the sink. A server that is away is waited for a moment, warned about, and tried again
    /// in the background.
    ///
    /// # Errors
    /// [`Error`], where the settings make no sense.
    ///
    /// # Cancellation
    /// Dropped, it leaves nothing behind.
    pub async fn open(self) -> Result<Sink, Error> {
        let subject = Template::parse("subject", &self.subject)?;
        let prefix = subject.literal_prefix();
        let whole = prefix.contains('.') || prefix.len() == self.subject.len();
        let levels = self.subject.split('.').all(|level| !level.is_empty());
        if !whole || !levels || prefix.starts_with(['$', '_']) {
            return Err(Error::Name {
                what: "subject",
                name: self.subject,
                reason: "its first level is a word of its own, without `$`, `_` or a name to be \
                         filled in, and no level is empty",
            });
        }
        let stream = self.stream.map(|stream| stream.config(&self.subject));
        Ok(Sink {
            link: Link::open(&self.url, self.connect, self.patience).await?,
            subject,
            patience: self.patience,
            ensured: AtomicBool::new(stream.is_none()),
            stream,
            ensuring: Mutex::default(),
        })
    }
}

impl Stream {
    /// A stream in files that takes all subjects of the sink, and knows an id again for ten
    /// minutes.
    pub fn new(name: impl Into<Box<str>>) -> Self {
        Self {
            name: name.into(),
            subjects: Vec::new(),
            duplicate_window: DUPLICATE_WINDOW,
            replicas: 1,
        }
    }

    /// Takes these subjects instead, wildcards and all.
    pub fn subjects(self, subjects: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            subjects: subjects.into_iter().map(Into::into).collect(),
            ..self
        }
    }

    /// How long the stream knows an id again: longer than a relay may be away between a
    /// confirmation and its next try.
    pub fn duplicate_window(self, duplicate_window: Duration) -> Self {
        Self {
            duplicate_window,
            ..self
        }
    }

    /// How many servers keep it. With one, what is confirmed survives the server's process, and
    /// its power only where `sync_interval` says so.
    pub fn replicas(self, replicas: usize) -> Self {
        Self { replicas, ..self }
    }

    fn config(self, template: &str) -> stream::Config {
        let subjects = if self.subjects.is_empty() {
            // Everything under the first level, which has no name in it.
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
            let mut state = self.link.state.clone();
            let before = *state.borrow_and_update();
            if !before.connected {
                return Err(unavailable("NATS is not connected"));
            }
            tokio::select! {
                // A confirmation that came is one, whatever became of the connection since.
                biased;
                sent = self.send(event) => sent,
                () = tokio::time::sleep(self.patience) => {
                    Err(unavailable(format!("no confirmation within {:?}", self.patience)))
                }
                _ = state.wait_for(|state| state.changes != before.changes) => {
                    Err(unavailable("the connection to NATS broke before the confirmation"))
                }
            }
        })
    }
}

impl Sink {
    async fn send(&self, event: &Event) -> Result<(), Refused> {
        self.ensure().await?;
        let message = PublishMessage::build()
            .payload(event.payload.clone())
            .message_id(event.id.to_string())
            .header(KIND, &*event.kind)
            .header(AGGREGATE, &*event.aggregate);
        let subject = self.subject.fill(event);
        let published = async {
            let confirmed = self.link.jetstream.send_publish(subject.clone(), message);
            confirmed.await?.await
        };
        match published.await {
            // A duplicate is there already, which is all that was asked for.
            Ok(_) => Ok(()),
            Err(error) => Err(self.refused(&error, &subject)),
        }
    }

    /// Creates the stream, once for all that wait for it.
    async fn ensure(&self) -> Result<(), Refused> {
        let Some(stream) = &self.stream else {
            return Ok(());
        };
        if self.ensured.load(Ordering::Acquire) {
            return Ok(());
        }
        let _one = self.ensuring.lock().await;
        if self.ensured.load(Ordering::Acquire) {
            return Ok(());
        }
        self.link
            .jetstream
            .get_or_create_stream(stream.clone())
            .await
            .map_err(|error| {
                let name = &stream.name;
                unavailable(format!("the stream {name:?} cannot be created: {error}"))
            })?;
        self.ensured.store(true, Ordering::Release);
        Ok(())
    }

    /// Only what is wrong with the event itself rejects it: anything else is the same for all
    /// events, and goes away.
    fn refused(&self, error: &PublishError, subject: &str) -> Refused {
        match error.kind() {
            PublishErrorKind::StreamNotFound => {
                // It may have been deleted.
                self.ensured.store(self.stream.is_none(), Ordering::Release);
                unavailable(format!("no stream takes the subject {subject:?}"))
            }
            PublishErrorKind::MaxPayloadExceeded => rejected(error),
            PublishErrorKind::Other if is_events_fault(error) => rejected(error),
            PublishErrorKind::Other
            | PublishErrorKind::TimedOut
            | PublishErrorKind::BrokenPipe
            | PublishErrorKind::MaxAckPending
            | PublishErrorKind::WrongLastMessageId
            | PublishErrorKind::WrongLastSequence => unavailable(error),
        }
    }
}

/// Whether the stream says that this message is too large for it.
fn is_events_fault(error: &PublishError) -> bool {
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
