//! Callers that reserve, complete and replay, as many at once as asked for.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use semel_core::transition::{Completion, Decision, Held};
use semel_core::{Fingerprint, Identity, Key, OperationId, Policy, Reserve, Response, Store};
use tokio::runtime::Runtime;

use crate::client::Latencies;
use crate::measure::Work;

/// The body of every response.
pub(crate) const BODY: [u8; 1024] = [b'x'; 1024];

/// A request under `key`, as a payment route would make it.
pub(crate) fn request(key: &str) -> Result<Reserve> {
    Ok(Reserve {
        id: OperationId::generate(),
        identity: Identity::new("tenant-1234", "create_payment", Key::new(key)?)?,
        fingerprints: Fingerprint::from_parts(1, [1; 32]).into(),
        owner: "host-1/12345".into(),
        policy: Policy::default(),
    })
}

pub(crate) fn completion() -> Completion {
    let headers = vec![(
        "content-type".into(),
        Bytes::from_static(b"application/json"),
    )];
    Completion {
        response: Response {
            status: 201,
            headers,
            body: Some(Bytes::from_static(&BODY)),
            schema_version: 0,
        },
        resource: None,
    }
}

/// A store of Semel, or what is measured beside it.
pub(crate) trait Contender: Clone + Send + Sync + 'static {
    /// Reserves a new key and completes it.
    fn complete_new(&self, key: &str) -> impl Future<Output = Result<()>> + Send;

    /// Finds the answer that is stored under a key.
    fn replay(&self, key: &str) -> impl Future<Output = Result<()>> + Send;
}

impl<S: Store + Clone> Contender for S {
    async fn complete_new(&self, key: &str) -> Result<()> {
        let Decision::Execute(grant) = self.reserve(request(key)?).await? else {
            bail!("a new key is not granted");
        };
        match self.complete(grant.fence, completion()).await? {
            Held::Applied => Ok(()),
            other => bail!("a completion is {other:?}"),
        }
    }

    async fn replay(&self, key: &str) -> Result<()> {
        match self.reserve(request(key)?).await? {
            Decision::Replay(replay) if replay.response.body.is_some() => Ok(()),
            other => bail!("a retry is answered with {other:?}"),
        }
    }
}

/// New operations by `callers` at once, each reserved and completed, for some time.
pub(crate) fn new_operations(
    runtime: &Runtime,
    contender: &impl Contender,
    callers: usize,
    time: Duration,
) -> Result<Work> {
    let contender = contender.clone();
    run(runtime, callers, time, move |_| {
        let contender = contender.clone();
        async move {
            let key = OperationId::generate().to_string();
            contender.complete_new(&key).await
        }
    })
}

/// Replays of `keys`, in turn, by `callers` at once.
pub(crate) fn replays(
    runtime: &Runtime,
    contender: &impl Contender,
    keys: &Arc<[String]>,
    callers: usize,
    time: Duration,
) -> Result<Work> {
    let (contender, keys) = (contender.clone(), Arc::clone(keys));
    run(runtime, callers, time, move |turn| {
        let (contender, keys) = (contender.clone(), Arc::clone(&keys));
        async move {
            // A stride that is prime to any number of keys of use here.
            let key = &keys[(turn as usize).wrapping_mul(7919) % keys.len()];
            contender.replay(key).await
        }
    })
}

/// Stores operations, and gives back their keys.
pub(crate) fn completed(
    runtime: &Runtime,
    contender: &impl Contender,
    count: usize,
) -> Result<Arc<[String]>> {
    let keys: Arc<[String]> = (0..count)
        .map(|_| OperationId::generate().to_string())
        .collect();
    // As many at once as the store lets wait, and not more.
    for some in keys.chunks(4096) {
        all_at_once(runtime, contender, some, |contender, key| async move {
            contender.complete_new(&key).await
        })?;
    }
    Ok(keys)
}

/// Does `work` for every key, all of them at the same time.
pub(crate) fn all_at_once<C: Contender, F>(
    runtime: &Runtime,
    contender: &C,
    keys: &[String],
    work: impl Fn(C, String) -> F,
) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let begun: Vec<_> = keys
        .iter()
        .map(|key| runtime.spawn(work(contender.clone(), key.clone())))
        .collect();
    for begun in begun {
        runtime.block_on(begun).context("a caller panicked")??;
    }
    Ok(())
}

/// Keeps `callers` tasks busy with `work` for some time.
fn run<F, W>(runtime: &Runtime, callers: usize, time: Duration, work: W) -> Result<Work>
where
    F: Future<Output = Result<()>> + Send + 'static,
    W: Fn(u64) -> F + Clone + Send + 'static,
{
    let end = Instant::now() + time;
    let call = move |caller: u64| {
        let work = work.clone();
        async move {
            let mut times = Vec::new();
            let mut start = Instant::now();
            while start < end {
                work(caller * 1_000_003 + times.len() as u64).await?;
                let now = Instant::now();
                times.push(now - start);
                start = now;
            }
            anyhow::Ok(times)
        }
    };
    let others: Vec<_> = (1..callers as u64)
        .map(|caller| runtime.spawn(call(caller)))
        .collect();
    let mut latencies = Latencies::new();
    // One of them is this thread.
    let mut record = |times: Vec<Duration>| {
        for time in &times {
            latencies.record(*time);
        }
        times.len() as u64
    };
    let mut operations = record(runtime.block_on(call(0))?);
    for caller in others {
        operations += record(runtime.block_on(caller).context("a caller panicked")??);
    }
    Ok(Work {
        operations,
        latencies: Some(latencies),
    })
}
