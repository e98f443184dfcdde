//! A worker has one connection and serves a queue, a batch at a time.
//!
//! Calls that arrive while a statement runs share the next one. A lone call does not wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::connection::{Session, Shared};
use crate::error::Failure;
use crate::queue::Queue;
use crate::time::Time;

/// How long a batch may take, on the wire and in the server. Longer than the server's own bound on
/// a statement: a server that has not answered by then is unreachable.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);

/// The first pause after a failed connection attempt; it doubles up to [`MAX_RECONNECT_PAUSE`].
const MIN_RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause between two connection attempts: a server that is back is found soon.
const MAX_RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// How often a call is retried because other requests were faster.
const MAX_TRIES: u32 = 40;

/// How often a call is retried at once: enough for requests that met in one instant.
const IMMEDIATE_TRIES: u32 = 2;

/// The pause before every later retry.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// The calls that a worker performs.
pub(crate) trait Workload: 'static {
    type Call: Send + 'static;

    /// Most calls that share a statement.
    const MAX_BATCH: usize;

    /// Takes calls out of `waiting` that can share one statement.
    fn batch(waiting: &mut Vec<Self::Call>) -> Vec<Self::Call>;

    /// Performs a batch, and answers the calls that are done. The worker retries those that it
    /// leaves in the batch.
    async fn perform(
        session: &mut Session,
        time: &Time,
        batch: &mut Vec<Self::Call>,
    ) -> Result<(), Failure>;

    /// How often this call was retried.
    fn tries(call: &mut Self::Call) -> &mut u32;

    /// Answers a call that failed.
    fn fail(call: Self::Call, failure: Failure);

    /// Answers a call that was never sent.
    fn refuse(call: Self::Call, reason: &str);
}

/// Serves a queue with one connection.
pub(crate) struct ConnectionWorker<W: Workload> {
    pub(crate) connector: Shared,
    pub(crate) time: Arc<Time>,
    pub(crate) queue: Arc<Queue<W::Call>>,
    /// The first worker of a queue has the index 0; see [`Queue::take`].
    pub(crate) index: usize,
}

impl<W: Workload> ConnectionWorker<W> {
    /// Serves the queue until it is closed and empty. Connects when there is something to do.
    pub(crate) async fn run(self, first: Option<Session>) {
        let mut connected = first.map(|session| Connected::new(&self.queue, session));
        let mut waiting = Vec::new();
        let mut pause = MIN_RECONNECT_PAUSE;
        loop {
            // Callers that were just answered can send their next call meanwhile.
            tokio::task::yield_now().await;
            if !self.queue.take(&mut waiting, self.index).await {
                return;
            }
            // A connection that broke while it was idle has sent nothing.
            connected = connected.filter(|link| self.connector.is_usable(&link.session));
            let Some(link) = &mut connected else {
                connected = self.connect(&mut waiting).await;
                if connected.is_some() {
                    pause = MIN_RECONNECT_PAUSE;
                } else {
                    sleep(pause).await;
                    pause = (pause * 2).min(MAX_RECONNECT_PAUSE);
                }
                continue;
            };
            let batch = W::batch(&mut waiting);
            if !serve::<W>(&mut link.session, &self.time, batch, &mut waiting).await {
                self.connector.retire(&link.session.health);
                connected = None;
            }
            self.delay_retries(&mut waiting);
        }
    }

    /// Connects. Where that fails, refuses all calls that would wait for a connection.
    async fn connect(&self, waiting: &mut Vec<W::Call>) -> Option<Connected<W::Call>> {
        let failure = match self.connector.session().await {
            Ok(session) => return Some(Connected::new(&self.queue, session)),
            Err(failure) => failure,
        };
        let reason = describe(&failure, &self.connector.address);
        tracing::warn!(reason, "cannot connect to PostgreSQL");
        for call in waiting.drain(..).chain(self.queue.stranded()) {
            W::refuse(call, &reason);
        }
        None
    }

    /// Returns calls to the queue after a pause if their row is locked, so that other calls do not
    /// wait for them.
    fn delay_retries(&self, waiting: &mut Vec<W::Call>) {
        let later: Vec<_> = waiting
            .extract_if(.., |call| *W::tries(call) > IMMEDIATE_TRIES)
            .collect();
        if later.is_empty() {
            return;
        }
        let queue = Arc::clone(&self.queue);
        tokio::task::spawn_local(async move {
            sleep(RETRY_PAUSE).await;
            for call in later {
                // A queue that is full or closed drops the call, and with it its reply channel.
                let _ = queue.push(call);
            }
        });
    }
}

/// A session that its queue counts.
struct Connected<T> {
    session: Session,
    queue: Arc<Queue<T>>,
}

impl<T> Connected<T> {
    fn new(queue: &Arc<Queue<T>>, session: Session) -> Self {
        queue.connected();
        Self {
            session,
            queue: Arc::clone(queue),
        }
    }
}

impl<T> Drop for Connected<T> {
    fn drop(&mut self) {
        self.queue.disconnected();
    }
}

fn describe(failure: &Failure, address: &str) -> String {
    match failure {
        Failure::Refused(error) | Failure::Broken(Some(error)) => {
            format!("{address}: {}", crate::error::chain(&**error))
        }
        Failure::Broken(None) => format!("{address} does not answer"),
        Failure::NoServer(none) => format!("{address}: {}", none.reason),
        Failure::NotReplicated => format!("{address} commits without its standby"),
        Failure::Corrupt(reason) => format!("{address}: {reason}"),
        Failure::Contended => address.to_owned(),
    }
}

/// Performs a batch, or each of its calls alone where one of them makes the batch fail. Returns
/// whether the connection can still be used.
async fn serve<W: Workload>(
    session: &mut Session,
    time: &Time,
    mut batch: Vec<W::Call>,
    waiting: &mut Vec<W::Call>,
) -> bool {
    let many = batch.len() > 1;
    let performed = timeout(ANSWER_WITHIN, W::perform(session, time, &mut batch)).await;
    let failure = match performed {
        Ok(Ok(())) => {
            retry::<W>(batch, waiting);
            return true;
        }
        Ok(Err(failure)) => failure,
        // Only after the connection is dropped is it certain that the statement has no later effect.
        Err(_) => Failure::Broken(None),
    };
    if failure.was_sent_to_wrong_server() {
        // The next connection sends them, or is refused.
        retry::<W>(batch, waiting);
        return false;
    }
    if failure.breaks_the_connection() {
        for call in batch {
            W::fail(call, failure.clone());
        }
        return false;
    }
    if failure.is_passing() {
        retry::<W>(batch, waiting);
        return true;
    }
    if !many {
        for call in batch {
            W::fail(call, failure.clone());
        }
        return true;
    }
    let mut alone = batch.into_iter();
    while let Some(call) = alone.next() {
        if !Box::pin(serve::<W>(session, time, vec![call], waiting)).await {
            // Not sent yet: the next connection sends them.
            waiting.extend(alone);
            return false;
        }
    }
    true
}

/// Keeps calls that lost a race for the next statement, up to a bound.
fn retry<W: Workload>(batch: Vec<W::Call>, waiting: &mut Vec<W::Call>) {
    for mut call in batch {
        let tries = W::tries(&mut call);
        *tries += 1;
        if *tries > MAX_TRIES {
            W::fail(call, Failure::Contended);
        } else {
            waiting.push(call);
        }
    }
}
