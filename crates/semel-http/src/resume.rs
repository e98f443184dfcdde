//! Resuming operations whose clients never come back.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures_util::future::join_all;
use http::Request;
use semel_core::background_job::{self, BackgroundJob};
use semel_core::transition::Grant;
use semel_core::{Record, State, Store, store};
use serde::de::DeserializeOwned;
use tracing::Instrument as _;

use crate::body::RequestBody;
use crate::bounds::BoxError;
use crate::context::{AttemptContext, AttemptGrant};
use crate::extract::Extracted;
use crate::layer::Layer;
use crate::operation::Operation;
use crate::phases::Stopped;
use crate::pipeline;
use crate::route::{Error, Guard};
use crate::spans;

/// How many records are claimed at once.
const BATCH: usize = 16;

/// How often the job looks for abandoned records.
const INTERVAL: Duration = Duration::from_secs(1);

/// A worker job that resumes abandoned records of one operation: it claims those whose lease ran
/// out, and runs their handler from the last phase that is over. Give it to a worker in every
/// process that has the handler.
pub struct ResumeJob<S> {
    layer: Layer<S>,
    guard: Arc<Guard>,
    operation: Box<str>,
    handler: Handler,
}

type Handler = Arc<dyn Fn(Operation) -> Responding + Send + Sync>;
type Responding = Pin<Box<dyn Future<Output = Result<Response, BoxError>> + Send>>;

impl<S: Store> Layer<S> {
    /// A job that resumes abandoned records of one operation with the same function that the
    /// handler calls. `handler` is given the request that was passed to [`Operation::begin`].
    ///
    /// # Errors
    /// [`Error::NoPhases`] where no route of that operation is
    /// [made of phases](crate::Route::phases).
    pub fn resume_job<T, H, F>(&self, operation: &str, handler: H) -> Result<ResumeJob<S>, Error>
    where
        T: DeserializeOwned + Send + 'static,
        H: Fn(Operation, T) -> F + Send + Sync + 'static,
        F: Future<Output: IntoResponse> + Send + 'static,
    {
        let guard = self.rules.made_of_phases(operation);
        let guard = guard.ok_or_else(|| Error::NoPhases(operation.into()))?;
        let handler = move |operation: Operation| -> Responding {
            match operation.request() {
                Some(Ok(request)) => {
                    let responding = handler(operation, request);
                    Box::pin(async move { Ok(responding.await.into_response()) })
                }
                // The request is written with the first phase: before that, nothing happened.
                None => stop(Stopped::released("nothing_begun")),
                Some(Err(error)) => {
                    tracing::error!(id = %operation.id(), %error, "an abandoned request cannot be read");
                    stop(Stopped::unknown("request_unreadable"))
                }
            }
        };
        Ok(ResumeJob {
            layer: self.clone(),
            guard: Arc::clone(guard),
            operation: operation.into(),
            handler: Arc::new(handler),
        })
    }
}

fn stop(stopped: Stopped) -> Responding {
    Box::pin(std::future::ready(Ok(IntoResponse::into_response(stopped))))
}

impl<S: Store> ResumeJob<S> {
    /// Claims a batch of abandoned records, runs each to its end, and returns how many there were.
    ///
    /// # Errors
    /// The store could not be asked.
    ///
    /// # Cancellation
    /// The attempts that were started go on.
    pub async fn resume_once(&self) -> store::Result<usize> {
        let state = &self.layer.state;
        if state.executions.is_closed() {
            return Ok(0);
        }
        let lease = self.guard.route.policy.lease;
        let owner = state.owner.clone();
        let identity = self.guard.identity_name().unwrap_or(&self.operation);
        let abandoned = state.store.claim_abandoned(identity, owner, lease, BATCH);
        let executions: Vec<_> = abandoned
            .await?
            .into_iter()
            .filter_map(|record| self.execution(record))
            .map(|execution| state.executions.spawn(execution))
            .collect();
        let claimed = executions.len();
        for ended in join_all(executions).await {
            if let Err(error) = ended {
                tracing::error!(%error, "an abandoned operation could not be finished");
            }
        }
        Ok(claimed)
    }

    fn execution(&self, record: Record) -> Option<impl Future<Output = ()> + use<S>> {
        let fence = record.fence();
        let State::InProgress(lease) = record.state else {
            return None;
        };
        tracing::info!(id = %fence.id, attempt = fence.attempt, operation = %self.operation, "an abandoned operation is taken up");
        let state = Arc::clone(&self.layer.state);
        let grant = AttemptGrant {
            grant: Grant {
                fence,
                locked_until: lease.locked_until,
                recovery: record.recovery,
            },
            resumed: true,
            granted_at: state.clock.now(),
        };
        let extracted = Extracted {
            guard: Arc::clone(&self.guard),
            identity: record.identity,
            request: Request::default(),
            held: state.request_bytes.hold(),
        };
        let span = spans::guard(&self.guard);
        spans::resumed(&span, fence);
        let rules = Arc::clone(&self.layer.rules);
        let fingerprints = record.fingerprint.into();
        let context = AttemptContext::new(state, rules, extracted, fingerprints, span.clone());
        let handler = Arc::clone(&self.handler);
        let service = tower::service_fn(move |request: Request<RequestBody<Body>>| {
            let operation = request.extensions().get::<Operation>().cloned();
            let responding = operation.map(|operation| handler(operation));
            async move {
                match responding {
                    Some(responding) => responding.await,
                    None => Err("there is no operation".into()),
                }
            }
        });
        let resuming = pipeline::resume::<S, _, Body, Body>(context, grant, service);
        Some(Box::pin(resuming.instrument(span)))
    }
}

impl<S: Store> BackgroundJob for ResumeJob<S> {
    fn name(&self) -> &'static str {
        "complete"
    }

    fn every(&self) -> Duration {
        INTERVAL
    }

    fn round(&self) -> background_job::Round<'_> {
        Box::pin(async { Ok(self.resume_once().await? == BATCH) })
    }
}

impl<S> fmt::Debug for ResumeJob<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResumeJob")
            .field("operation", &self.operation)
            .finish_non_exhaustive()
    }
}
