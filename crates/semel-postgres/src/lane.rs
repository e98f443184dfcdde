//! A lane: one connection that serves a queue, a group at a time.
//!
//! What arrives while a statement is under way goes together in the next one. A lone call waits
//! for nobody.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::connection::{Session, Shared};
use crate::error::Failure;
use crate::queue::Queue;
use crate::time::Time;

/// How long a group may take, on the wire and in the server. Longer than the server's own
/// bound on a statement: past it nobody is there.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);

/// The first pause after a connection could not be made; it doubles up to [`SLOWEST`].
const SOONEST: Duration = Duration::from_millis(50);

/// The longest pause between two tries to connect: a server that is back is found soon.
const SLOWEST: Duration = Duration::from_secs(1);

/// How often a call is asked again because others were faster.
const MOST_TRIES: u32 = 40;

/// How often a call is asked again at once: enough for those that met in one instant.
const SOON_TRIES: u32 = 2;

/// The pause before a call is asked once more after that.
const PAUSE: Duration = Duration::from_millis(5);

/// What a lane carries.
pub(crate) trait Kind: 'static {
    type Call: Send + 'static;

    /// Most calls that share a statement.
    const MOST: usize;

    /// Takes calls out of `waiting` that can share one statement.
    fn batch(waiting: &mut Vec<Self::Call>) -> Vec<Self::Call>;

    /// Performs a batch, and answers those of its calls that are done. Those it leaves have to
    /// be asked again.
    async fn perform(
        session: &mut Session,
        time: &Time,
        batch: &mut Vec<Self::Call>,
    ) -> Result<(), Failure>;

    /// How often this call was asked again.
    fn tries(call: &mut Self::Call) -> &mut u32;

    /// Tells the caller why there is no answer.
    fn fail(call: Self::Call, failure: Failure);

    /// Tells the caller that nothing was sent.
    fn refuse(call: Self::Call, reason: &str);
}

/// Serves the queue until it is closed and empty. It connects when there is something to do.
pub(crate) async fn run<K: Kind>(
    connector: Shared,
    time: Arc<Time>,
    queue: Arc<Queue<K::Call>>,
    lane: usize,
    first: Option<Session>,
) {
    let mut connected = first.map(|session| Connected::new(&queue, session));
    let mut waiting = Vec::new();
    let mut pause = SOONEST;
    loop {
        // Those who were just answered come back while we give way.
        tokio::task::yield_now().await;
        if !queue.take(&mut waiting, lane).await {
            return;
        }
        // A connection that broke while nothing was asked has sent nothing.
        connected = connected.filter(|link| !link.session.client.is_closed());
        let Some(link) = &mut connected else {
            connected = connect::<K>(&connector, &queue, &mut waiting).await;
            if connected.is_some() {
                pause = SOONEST;
            } else {
                sleep(pause).await;
                pause = (pause * 2).min(SLOWEST);
            }
            continue;
        };
        let batch = K::batch(&mut waiting);
        if !serve::<K>(&mut link.session, &time, batch, &mut waiting).await {
            connected = None;
        }
        put_off::<K>(&queue, &mut waiting);
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

/// Connects. Where it cannot, nobody is left waiting for a lane that has no connection.
async fn connect<K: Kind>(
    connector: &Shared,
    queue: &Arc<Queue<K::Call>>,
    waiting: &mut Vec<K::Call>,
) -> Option<Connected<K::Call>> {
    let failure = match connector.session().await {
        Ok(session) => return Some(Connected::new(queue, session)),
        Err(failure) => failure,
    };
    let reason = describe(&failure, &connector.address);
    tracing::warn!(reason, "no connection to PostgreSQL");
    for call in waiting.drain(..).chain(queue.stranded()) {
        K::refuse(call, &reason);
    }
    None
}

fn describe(failure: &Failure, address: &str) -> String {
    match failure {
        Failure::Refused(error) | Failure::Broken(Some(error)) => {
            format!("{address}: {}", crate::error::chain(&**error))
        }
        Failure::Broken(None) => format!("{address} does not answer"),
        Failure::Corrupt(reason) => format!("{address}: {reason}"),
        Failure::Contended => address.to_owned(),
    }
}

/// Performs a batch, or each of its calls alone where one of them spoils it for all. Says
/// whether the connection is still good.
async fn serve<K: Kind>(
    session: &mut Session,
    time: &Time,
    mut batch: Vec<K::Call>,
    waiting: &mut Vec<K::Call>,
) -> bool {
    let many = batch.len() > 1;
    let performed = timeout(ANSWER_WITHIN, K::perform(session, time, &mut batch)).await;
    let failure = match performed {
        Ok(Ok(())) => {
            ask_again::<K>(batch, waiting);
            return true;
        }
        Ok(Err(failure)) => failure,
        // Dropping the connection is the only way to be sure that nothing more comes of it.
        Err(_) => Failure::Broken(None),
    };
    if failure.breaks_the_connection() {
        for call in batch {
            K::fail(call, failure.clone());
        }
        return false;
    }
    if failure.is_passing() {
        ask_again::<K>(batch, waiting);
        return true;
    }
    if !many {
        for call in batch {
            K::fail(call, failure.clone());
        }
        return true;
    }
    let mut alone = batch.into_iter();
    while let Some(call) = alone.next() {
        if !Box::pin(serve::<K>(session, time, vec![call], waiting)).await {
            // Not sent any more: with the next connection.
            waiting.extend(alone);
            return false;
        }
    }
    true
}

/// Keeps what others were faster with for the next statement, up to a bound.
fn ask_again<K: Kind>(batch: Vec<K::Call>, waiting: &mut Vec<K::Call>) {
    for mut call in batch {
        let tries = K::tries(&mut call);
        *tries += 1;
        if *tries > MOST_TRIES {
            K::fail(call, Failure::Contended);
        } else {
            waiting.push(call);
        }
    }
}

/// Takes out for a moment what was asked again before: somebody holds the row, and nobody else
/// has to wait for that.
fn put_off<K: Kind>(queue: &Arc<Queue<K::Call>>, waiting: &mut Vec<K::Call>) {
    let later: Vec<_> = waiting
        .extract_if(.., |call| *K::tries(call) > SOON_TRIES)
        .collect();
    if later.is_empty() {
        return;
    }
    let queue = Arc::clone(queue);
    tokio::task::spawn_local(async move {
        sleep(PAUSE).await;
        for call in later {
            // Where it is not taken any more it is dropped, which its caller is told.
            let _ = queue.push(call);
        }
    });
}
