//! Finishing what is open in the journal, without the caller's request.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use futures_util::future::join_all;
use url::{Origin, Url};

use crate::core::Core;
use crate::error::Error;
use crate::request::{Request, Response};
use crate::transport::Transport;

pub(crate) type Resumed = Vec<(String, Result<Response, Error>)>;

impl Core {
    /// Finishes all open intents, several at a time, and reports each in the order in which they were stored.
    pub(crate) async fn resume(&self, transport: &dyn Transport) -> Result<Resumed, Error> {
        let mut open = self.journal().list().await?;
        open.retain(|open| self.serves(&open.url));
        let origins: HashSet<_> = open.iter().filter_map(|open| origin(&open.url)).collect();
        let options = self.options();
        let is_unclear =
            options.origins.is_empty() && !options.headers.is_empty() && origins.len() > 1;
        let next = Mutex::new(open.into_iter().enumerate());
        let done = Mutex::new(Vec::new());
        let work = async || {
            loop {
                let taken = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((nth, open)) = taken else {
                    return;
                };
                let result = if is_unclear {
                    Err(foreign(&open.url))
                } else {
                    self.finish(transport, &open.intent).await
                };
                let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                done.push((nth, open.intent, result));
            }
        };
        join_all((0..self.options().resume_at_once.max(1)).map(|_| work())).await;
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by_key(|(nth, ..)| *nth);
        // One that is not there any more was forgotten meanwhile.
        let reports = done
            .into_iter()
            .filter_map(|(_, intent, result)| Some((intent, result.transpose()?)));
        Ok(reports.collect())
    }

    /// Finishes an intent with the entry that the journal has of it: its key and its fingerprint, whatever this version would compute.
    pub(crate) async fn finish(
        &self,
        transport: &dyn Transport,
        intent: &str,
    ) -> Result<Option<Response>, Error> {
        let Some(found) = self.journal().find(intent).await? else {
            return Ok(None);
        };
        if let Some(request) = &found.request {
            if !self.serves(request.url.as_str()) {
                return Err(foreign(request.url.as_str()));
            }
            self.check_credentials(request)?;
        }
        let key_form = self.options().profile.key_form();
        let Some(entry) = self.journal().start(&found, key_form).await? else {
            return Ok(None);
        };
        let Some(request) = &entry.request else {
            return match entry.response {
                Some(response) => self.result(response, true).map(Some),
                None => Ok(None),
            };
        };
        self.share(intent, entry.fingerprint, || {
            self.run(transport, request, entry.clone())
        })
        .await
        .map(Some)
    }

    /// Whether this client's credentials are for the server of a stored request.
    fn serves(&self, url: &str) -> bool {
        let own = &self.options().origins;
        own.is_empty() || own.iter().any(|own| Some(own.origin()) == origin(url))
    }

    /// A stored request has no credentials: their values are empty, also those that only the client which stored it knew as such. Sent
    /// without them it would be refused.
    fn check_credentials(&self, stored: &Request) -> Result<(), Error> {
        let own = &self.options().headers;
        let missing = stored
            .headers
            .iter()
            .find(|(name, value)| value.is_empty() && !own.contains_key(*name));
        match missing {
            None => Ok(()),
            Some((name, _)) => Err(Error::Request(format!(
                "the journal does not keep the header {name}: give it to the client itself, so that it can be resumed"
            ))),
        }
    }
}

fn origin(url: &str) -> Option<Origin> {
    Some(Url::parse(url).ok()?.origin())
}

fn foreign(url: &str) -> Error {
    let origin = origin(url).map_or_else(|| url.to_owned(), |origin| origin.ascii_serialization());
    Error::Request(format!(
        "intents of several APIs share this journal, and this client is not set up for {origin}: name its origins in the options. Nothing was sent, and the intent stays open"
    ))
}
