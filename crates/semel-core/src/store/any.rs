//! A store whose type is known at run time only.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;

use super::{Backend, ErasureEpoch, Reply, Request, Result};
use crate::transition::{Completion, Decision, Reserve};
use crate::{Clock, OperationId, RecoveryPoint};

/// Any [`Backend`], behind one pointer. Clones share it.
///
/// A program that chooses its store at run time, as the gateway does, is compiled once instead of
/// once for each store. Each call costs one allocation.
#[derive(Clone)]
pub struct AnyStore(Arc<dyn ErasedBackend>);

impl AnyStore {
    /// Erases the type of a store.
    pub fn new(store: impl Backend) -> Self {
        Self(Arc::new(store))
    }
}

impl fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyStore").finish_non_exhaustive()
    }
}

type CallFuture<'a> = Pin<Box<dyn Future<Output = Result<Reply>> + Send + 'a>>;

/// [`Backend`] without what a trait object cannot have.
trait ErasedBackend: Send + Sync {
    fn call(&self, request: Request) -> CallFuture<'_>;
    fn try_decide(&self, request: &Reserve) -> Option<Decision>;
    fn clock(&self) -> Arc<dyn Clock>;
    fn erasure_epoch(&self) -> Option<ErasureEpoch>;
    fn prepare(&self, id: OperationId, completion: Completion) -> Result<Completion>;
    fn prepare_point(&self, id: OperationId, point: RecoveryPoint) -> Result<RecoveryPoint>;
    fn decrypt_evidence(&self, id: OperationId, evidence: Bytes) -> Result<Bytes>;
}

impl<B: Backend> ErasedBackend for B {
    fn call(&self, request: Request) -> CallFuture<'_> {
        Box::pin(Backend::call(self, request))
    }

    fn try_decide(&self, request: &Reserve) -> Option<Decision> {
        Backend::try_decide(self, request)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Backend::clock(self)
    }

    fn erasure_epoch(&self) -> Option<ErasureEpoch> {
        Backend::erasure_epoch(self)
    }

    fn prepare(&self, id: OperationId, completion: Completion) -> Result<Completion> {
        Backend::prepare(self, id, completion)
    }

    fn prepare_point(&self, id: OperationId, point: RecoveryPoint) -> Result<RecoveryPoint> {
        Backend::prepare_point(self, id, point)
    }

    fn decrypt_evidence(&self, id: OperationId, evidence: Bytes) -> Result<Bytes> {
        Backend::decrypt_evidence(self, id, evidence)
    }
}

impl Backend for AnyStore {
    fn call(&self, request: Request) -> impl Future<Output = Result<Reply>> + Send {
        self.0.call(request)
    }

    fn try_decide(&self, request: &Reserve) -> Option<Decision> {
        self.0.try_decide(request)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }

    fn erasure_epoch(&self) -> Option<ErasureEpoch> {
        self.0.erasure_epoch()
    }

    fn prepare(&self, id: OperationId, completion: Completion) -> Result<Completion> {
        self.0.prepare(id, completion)
    }

    fn prepare_point(&self, id: OperationId, point: RecoveryPoint) -> Result<RecoveryPoint> {
        self.0.prepare_point(id, point)
    }

    fn decrypt_evidence(&self, id: OperationId, evidence: Bytes) -> Result<Bytes> {
        self.0.decrypt_evidence(id, evidence)
    }
}
