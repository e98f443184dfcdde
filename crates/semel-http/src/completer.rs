//! Finishing operations whose clients never come back.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::future::join_all;
use http::Request;
use semel_core::chore::{self, Chore};
use semel_core::transition::Grant;
use semel_core::{Maintain, OperationId, Record, Reserve, State, Store, store};
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tracing::Instrument as _;

use crate::body::RequestBody;
use crate::execute::{Granted, perform};
use crate::guarded::Job;
use crate::layer::Layer;
use crate::route::{Error, Guard};
use crate::service::BoxError;
use crate::spans;
use crate::{Operation, Stopped};

/// How many operations are taken up at once.
const BATCH: usize = 16;

/// How often it is looked for abandoned operations.
const EVERY: Duration = Duration::from_secs(1);

/// Goes on with operations of one command where a silent owner stopped. Give it to a worker, in
/// every process that has the handler: it is a [`Chore`].
pub struct Completer<S> {
    layer: Layer<S>,
    guard: Arc<Guard>,
    operation: Box<str>,
    handler: Handler,
}

type Handler = Arc<dyn Fn(Operation) -> Answering + Send + Sync>;
type Answering = Pin<Box<dyn Future<Output = Result<Response, BoxError>> + Send>>;

impl<S: Store + Maintain> Layer<S> {
    /// Finishes operations of one command whose clients never come back, with the same function
    /// that the handler calls. `handler` is given what was written down when the operation
    /// [began](Operation::begin).
    ///
    /// # Errors
    /// Where no route of that command is [made of phases](crate::Route::phases).
    pub fn completer<T, H, F>(&self, operation: &str, handler: H) -> Result<Completer<S>, Error>
    where
        T: DeserializeOwned + Send + 'static,
        H: Fn(Operation, T) -> F + Send + Sync + 'static,
        F: Future<Output: IntoResponse> + Send + 'static,
    {
        let guard = self.rules.made_of_phases(operation);
        let guard = guard.ok_or_else(|| Error::NoPhases(operation.into()))?;
        let handler = move |operation: Operation| -> Answering {
            match operation.request() {
                Some(Ok(request)) => {
                    let ending = handler(operation, request);
                    Box::pin(async move { Ok(ending.await.into_response()) })
                }
                // Nothing is done before the request is written down.
                None => answer(Stopped::released("nothing_begun")),
                Some(Err(error)) => {
                    tracing::error!(id = %operation.id(), %error, "an abandoned request cannot be read");
                    answer(Stopped::unknown("request_unreadable"))
                }
            }
        };
        Ok(Completer {
            layer: self.clone(),
            guard: Arc::clone(guard),
            operation: operation.into(),
            handler: Arc::new(handler),
        })
    }
}

fn answer(stopped: Stopped) -> Answering {
    Box::pin(std::future::ready(Ok(IntoResponse::into_response(stopped))))
}

impl<S: Store + Maintain> Completer<S> {
    /// Takes up some abandoned operations and performs each to its end; says how many.
    ///
    /// # Errors
    /// The store could not be asked.
    ///
    /// # Cancellation
    /// What was taken up goes on.
    pub async fn complete_once(&self) -> store::Result<usize> {
        let state = &self.layer.state;
        if state.executions.is_closed() {
            return Ok(0);
        }
        let lease = self.guard.route.policy.lease;
        let owner = state.owner.clone();
        let abandoned = state
            .store
            .claim_abandoned(&self.operation, owner, lease, BATCH);
        let executions: Vec<_> = abandoned
            .await?
            .into_iter()
            .filter_map(|record| self.execution(record))
            .map(|execution| state.executions.spawn(execution))
            .collect();
        let taken = executions.len();
        for ended in join_all(executions).await {
            if let Err(error) = ended {
                tracing::error!(%error, "an abandoned operation could not be finished");
            }
        }
        Ok(taken)
    }

    fn execution(&self, record: Record) -> Option<impl Future<Output = ()> + use<S>> {
        let fence = record.fence();
        let State::InProgress(lease) = record.state else {
            return None;
        };
        tracing::info!(id = %fence.id, attempt = fence.attempt, operation = %self.operation, "an abandoned operation is taken up");
        let grant = Grant {
            fence,
            locked_until: lease.locked_until,
            recovery: record.recovery,
        };
        let request = Reserve {
            id: OperationId::from_bytes([0; 16]),
            identity: record.identity,
            fingerprints: record.fingerprint.into(),
            owner: lease.owner,
            policy: self.guard.route.policy.clone(),
        };
        let handler = Arc::clone(&self.handler);
        let inner = tower::service_fn(move |request: Request<RequestBody<Body>>| {
            let operation = request.extensions().get::<Operation>().cloned();
            let ending = operation.map(|operation| handler(operation));
            async move {
                match ending {
                    Some(ending) => ending.await,
                    None => Err("there is no operation".into()),
                }
            }
        });
        let span = spans::guard(&self.guard);
        spans::granted(&span, fence);
        let job = Job {
            layer: self.layer.clone(),
            guard: Arc::clone(&self.guard),
            request,
            head: Request::new(()).into_parts().0,
            body: Bytes::new(),
            inner,
            span: span.clone(),
        };
        // Nobody waits for the answer.
        let (reply, _) = oneshot::channel();
        let granted = Granted {
            grant,
            resumed: true,
        };
        let performing = span.in_scope(|| perform(Box::new(job), granted, reply));
        Some(Box::pin(performing.instrument(span)))
    }
}

impl<S: Store + Maintain> Chore for Completer<S> {
    fn name(&self) -> &'static str {
        "complete"
    }

    fn every(&self) -> Duration {
        EVERY
    }

    fn round(&self) -> chore::Round<'_> {
        Box::pin(async { Ok(self.complete_once().await? == BATCH) })
    }
}

impl<S> fmt::Debug for Completer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completer")
            .field("operation", &self.operation)
            .finish_non_exhaustive()
    }
}
