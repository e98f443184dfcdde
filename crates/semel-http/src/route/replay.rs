//! What a retry of a completed operation gets: the stored response, or what the application says
//! now.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use semel_core::{Identity, OperationId, Resource};

use super::{Error, Route};
use crate::bounds::BoxError;

/// What a route's replays consist of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplayMode {
    /// The stored response, byte for byte.
    #[default]
    Stored,
    /// The current representation: see [`Route::reconstruct`]. The body of a success is not stored.
    Reconstruct,
}

/// What a retry gets where the stored response has another schema version than the route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnSchemaChange {
    /// The stored response, with its version in `Semel-Schema-Version`.
    #[default]
    Replay,
    /// The current representation, as with [`ReplayMode::Reconstruct`].
    Reconstruct,
    /// 410 `idempotency_response_not_stored`, with the reference of the resource.
    Refuse,
}

/// A retry of a completed operation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Retry {
    /// The record's public id.
    pub id: OperationId,
    /// Tenant, operation and key.
    pub identity: Identity,
    /// What the operation created, where the application named it.
    pub resource: Option<Resource>,
    /// The stored status.
    pub status: StatusCode,
    /// The head of the retry, with the caller's credentials.
    pub head: Parts,
}

/// A function of the application that a replay waits for.
#[derive(Clone)]
pub(crate) struct ReplayCall(Arc<dyn Fn(Retry) -> Calling + Send + Sync>);

type Calling = Pin<Box<dyn Future<Output = Result<Response<Bytes>, BoxError>> + Send>>;

/// The settings of a route that concern replays.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplayRules {
    pub(crate) schema: u16,
    mode: ReplayMode,
    on_schema_change: OnSchemaChange,
    pub(crate) reconstruct: Option<ReplayCall>,
    pub(crate) authorize: Option<ReplayCall>,
}

/// Where the response to a retry comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplaySource {
    Stored,
    Current,
    Refused,
}

impl Route {
    /// The schema version of this route's responses, from 1. It is stored with each response,
    /// unless the response says another in `Semel-Schema-Version`. 0, the default, is none.
    pub fn schema(mut self, version: u16) -> Self {
        self.replay.schema = version;
        self
    }

    /// What a retry gets; the stored response by default.
    pub fn replay(mut self, mode: ReplayMode) -> Self {
        self.replay.mode = mode;
        self
    }

    /// What a retry gets where the stored response has another [`schema`](Route::schema).
    pub fn on_schema_change(mut self, answer: OnSchemaChange) -> Self {
        self.replay.on_schema_change = answer;
        self
    }

    /// How the current representation is fetched, for [`ReplayMode::Reconstruct`] and
    /// [`OnSchemaChange::Reconstruct`]. The retry gets its body and the headers that the route
    /// stores, with the stored status and `Location`.
    ///
    /// Anything but a 2xx within [`execute_max`](Route::execute_max) and
    /// [`max_response`](Route::max_response) is a failure: the retry gets 503
    /// `idempotency_replay_unavailable`. Nothing is executed again.
    ///
    /// ```
    /// use http::Response;
    /// use semel_http::{ReplayMode, Route};
    ///
    /// async fn load_payment(id: &str) -> Result<String, std::io::Error> {
    ///     Ok(format!(r#"{{"id":"{id}","state":"settled"}}"#))
    /// }
    ///
    /// let route = Route::default()
    ///     .replay(ReplayMode::Reconstruct)
    ///     .reconstruct(|retry| async move {
    ///         let resource = retry.resource.ok_or(std::io::ErrorKind::NotFound)?;
    ///         let payment = load_payment(&resource.id).await?;
    ///         Ok::<_, std::io::Error>(Response::new(payment))
    ///     });
    /// ```
    pub fn reconstruct<F, B, E>(
        mut self,
        fetch: impl Fn(Retry) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Response<B>, E>> + Send + 'static,
        B: Into<Bytes>,
        E: Into<BoxError>,
    {
        self.replay.reconstruct = Some(ReplayCall::new(fetch));
        self
    }

    /// Asks before every replay whether the caller may still see the response. A 2xx replays it, a
    /// 401 or 403 is sent to the caller instead. Anything else, or nothing within
    /// [`execute_max`](Route::execute_max), is 503 `idempotency_replay_unavailable`. Nothing is
    /// executed again.
    pub fn authorize<F, B, E>(mut self, ask: impl Fn(Retry) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Response<B>, E>> + Send + 'static,
        B: Into<Bytes>,
        E: Into<BoxError>,
    {
        self.replay.authorize = Some(ReplayCall::new(ask));
        self
    }
}

impl ReplayRules {
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.on_schema_change != OnSchemaChange::Replay && self.schema == 0 {
            return Err(Error::Settings(
                "`on_schema_change` needs the schema version of the route: set `schema`",
            ));
        }
        let needs_fetch = self.mode == ReplayMode::Reconstruct
            || self.on_schema_change == OnSchemaChange::Reconstruct;
        if needs_fetch && self.reconstruct.is_none() {
            return Err(Error::Settings(
                "a reconstructed replay needs a request that fetches it: set `reconstruct`",
            ));
        }
        Ok(())
    }

    /// Whether every replay is the stored response, without a question.
    pub(crate) fn is_plain(&self) -> bool {
        self.mode == ReplayMode::Stored
            && self.on_schema_change == OnSchemaChange::Replay
            && self.authorize.is_none()
    }

    /// Whether the body of a response is stored.
    pub(crate) fn stores_body(&self, status: StatusCode) -> bool {
        self.mode == ReplayMode::Stored || !has_representation(status)
    }

    /// Where the replay of a response comes from.
    pub(crate) fn source(&self, status: StatusCode, schema: u16) -> ReplaySource {
        let fetched = if has_representation(status) {
            ReplaySource::Current
        } else {
            ReplaySource::Stored
        };
        match (self.mode, self.on_schema_change) {
            (ReplayMode::Reconstruct, _) if fetched == ReplaySource::Current => fetched,
            (_, OnSchemaChange::Refuse) if schema != self.schema => ReplaySource::Refused,
            (_, OnSchemaChange::Reconstruct) if schema != self.schema => fetched,
            (_, _) => ReplaySource::Stored,
        }
    }
}

/// Whether a response describes something that can be fetched. A refusal by the application does
/// not: its retry gets the stored refusal.
fn has_representation(status: StatusCode) -> bool {
    status.is_success() && status != StatusCode::NO_CONTENT && status != StatusCode::RESET_CONTENT
}

impl ReplayCall {
    fn new<F, B, E>(call: impl Fn(Retry) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Response<B>, E>> + Send + 'static,
        B: Into<Bytes>,
        E: Into<BoxError>,
    {
        Self(Arc::new(move |retry| {
            let calling = call(retry);
            Box::pin(async move {
                let response = calling.await.map_err(Into::into)?;
                Ok(response.map(Into::into))
            })
        }))
    }

    pub(crate) fn call(&self, retry: Retry) -> Calling {
        (self.0)(retry)
    }
}

impl fmt::Debug for ReplayCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplayCall")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_a_replay_follows_mode_status_and_schema() {
        use ReplaySource::{Current, Refused, Stored};
        let rules = |mode, on_schema_change| ReplayRules {
            schema: 3,
            mode,
            on_schema_change,
            ..ReplayRules::default()
        };
        let (stored, fetched) = (ReplayMode::Stored, ReplayMode::Reconstruct);
        // For 201 and 422 of the same schema, and of another one.
        for (mode, on_schema_change, expected) in [
            (
                stored,
                OnSchemaChange::Replay,
                [Stored, Stored, Stored, Stored],
            ),
            (
                stored,
                OnSchemaChange::Reconstruct,
                [Stored, Stored, Current, Stored],
            ),
            (
                stored,
                OnSchemaChange::Refuse,
                [Stored, Stored, Refused, Refused],
            ),
            (
                fetched,
                OnSchemaChange::Replay,
                [Current, Stored, Current, Stored],
            ),
            (
                fetched,
                OnSchemaChange::Reconstruct,
                [Current, Stored, Current, Stored],
            ),
            (
                fetched,
                OnSchemaChange::Refuse,
                [Current, Stored, Current, Refused],
            ),
        ] {
            let rules = rules(mode, on_schema_change);
            let cases = [(201, 3), (422, 3), (201, 2), (422, 2)];
            let found = cases.map(|(status, schema)| {
                rules.source(StatusCode::from_u16(status).unwrap(), schema)
            });
            assert_eq!(found, expected, "{mode:?} {on_schema_change:?}");
        }
    }

    #[test]
    fn a_response_without_a_representation_is_stored() {
        let route = Route::default().replay(ReplayMode::Reconstruct);
        for (status, stored) in [
            (200, false),
            (201, false),
            (204, true),
            (303, true),
            (422, true),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(route.replay.stores_body(status), stored, "{status}");
            assert!(Route::default().replay.stores_body(status));
        }
    }

    #[test]
    fn settings_that_lack_another_are_refused() {
        let fetch = |_| async { Ok::<_, std::io::Error>(Response::new(Bytes::new())) };
        let route = Route::default;
        for (refused, allowed) in [
            (
                route().replay(ReplayMode::Reconstruct),
                route().replay(ReplayMode::Reconstruct).reconstruct(fetch),
            ),
            (
                route()
                    .schema(1)
                    .on_schema_change(OnSchemaChange::Reconstruct),
                route()
                    .schema(1)
                    .on_schema_change(OnSchemaChange::Reconstruct)
                    .reconstruct(fetch),
            ),
            (
                route().on_schema_change(OnSchemaChange::Refuse),
                route().schema(1).on_schema_change(OnSchemaChange::Refuse),
            ),
        ] {
            assert!(refused.replay.check().is_err());
            assert_eq!(allowed.replay.check(), Ok(()));
        }
    }
}
