//! The client with a transport of its own.

use std::sync::Arc;

use crate::builder::Builder;
use crate::core::Core;
use crate::error::Error;
use crate::journal::Journal;
use crate::request::{Request, Response};
use crate::transport::Transport;

/// Makes requests happen once. Clones share journal, quota and connections.
#[derive(Clone)]
pub struct Client {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) core: Core,
}

impl Client {
    /// Sets a client up over a journal.
    pub fn builder(journal: Journal) -> Builder {
        Builder::new(journal)
    }

    /// Makes the request of an intent happen once, and returns its final response: from the server, or, if the intent is
    /// finished, from the journal.
    ///
    /// # Errors
    /// See [`Error`]. After [`Error::Unknown`] and [`Error::GaveUp`] the intent is open, and a later call continues with its key.
    ///
    /// # Cancellation
    /// Dropping the future leaves the intent open. The request may have been executed.
    pub async fn call(&self, intent: &str, request: Request) -> Result<Response, Error> {
        self.core.call(&*self.transport, intent, request).await
    }

    /// Sends a request without an intent. A `GET` is retried, and a request that has a key of the caller's own.
    ///
    /// # Errors
    /// See [`Error`].
    ///
    /// # Cancellation
    /// Dropping the future leaves nothing behind.
    pub async fn send(&self, request: Request) -> Result<Response, Error> {
        self.core.send(&*self.transport, &request, None).await
    }

    /// Finishes the intents that this or an earlier process left open, several at a time, and reports each, in the order in which they
    /// were stored. Call it at start, before the first call.
    ///
    /// # Errors
    /// [`Error::Journal`] if the journal cannot be read.
    ///
    /// # Cancellation
    /// Dropping the future leaves the remaining intents open.
    pub async fn resume(&self) -> Result<Vec<(String, Result<Response, Error>)>, Error> {
        self.core.resume(&*self.transport).await
    }

    /// Finishes one open intent with the request that the journal has of it. `None`: the journal does not know it.
    ///
    /// # Errors
    /// As [`Client::call`].
    ///
    /// # Cancellation
    /// As [`Client::call`].
    pub async fn finish(&self, intent: &str) -> Result<Option<Response>, Error> {
        self.core.finish(&*self.transport, intent).await
    }

    /// Where the intents are.
    pub fn journal(&self) -> &Journal {
        self.core.journal()
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
