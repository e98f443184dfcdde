//! Many intents against a server that resets and stalls connections, refuses, loses outcomes, and is down for a while.
//!
//! Each intent ends with a final response or as a typed unknown; the ledger has one charge for each; and while the server
//! is down, the quota keeps the clients from multiplying their requests.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use semel_client::{
    BoxFuture, Client, Error, Journal, Options, Received, Request, Reqwest, Transport,
    TransportError,
};

use crate::demo::{Demo, payment};
use crate::proxy::Proxy;

/// The share of charges whose response the provider loses.
const UNKNOWN: f64 = 0.02;
/// The most requests per intent while the server is down.
const MAX_AMPLIFICATION: f64 = 1.6;
/// How long an attempt may take: a stalled one waits no longer.
const ATTEMPT: Duration = Duration::from_secs(2);
/// How long a call may take. Reconciling takes a few seconds.
const CALL: Duration = Duration::from_secs(30);
/// How often the open intents are taken up again.
const ROUNDS: usize = 20;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The built `semel`, which serves the demo
    #[arg(long)]
    semel: PathBuf,
    /// How many intents
    #[arg(long, default_value_t = 10_000)]
    intents: usize,
    /// How many are under way at a time
    #[arg(long, default_value_t = 100)]
    concurrency: usize,
    /// How long the server is down, in seconds, after a third of the intents
    #[arg(long, default_value_t = 10.0)]
    down: f64,
}

/// Counts what is sent while the server is down.
#[derive(Default)]
struct Counts {
    sent: u64,
    /// Attempts whose outcome the gateway did not know. Only the first attempt of an operation gets a 504.
    lost_outcomes: u64,
    is_down: bool,
    sent_while_down: u64,
    keys_while_down: HashSet<Vec<u8>>,
}

#[derive(Clone)]
struct Counted {
    inner: Reqwest,
    counts: Arc<Mutex<Counts>>,
}

impl Counted {
    fn with<T>(&self, use_counts: impl FnOnce(&mut Counts) -> T) -> T {
        use_counts(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Transport for Counted {
    fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'_, Result<Received, TransportError>> {
        let key = request.headers().get("idempotency-key");
        self.with(|counts| {
            counts.sent += 1;
            if counts.is_down {
                counts.sent_while_down += 1;
                counts
                    .keys_while_down
                    .extend(key.map(|key| key.as_bytes().to_vec()));
            }
        });
        Box::pin(async move {
            let received = self.inner.send(request).await?;
            let is_unknown = received.status() == 504;
            self.with(|counts| counts.lost_outcomes += u64::from(is_unknown));
            Ok(received)
        })
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    tokio::runtime::Runtime::new()?.block_on(load(args))
}

async fn load(args: &Args) -> Result<()> {
    let demo = Demo::start(&args.semel)?;
    demo.lose_responses(UNKNOWN).await?;
    let mut proxy = Proxy::start(&demo.gateway).await?;
    let url = format!("http://{}/payments", proxy.address);
    let directory = tempfile::tempdir()?;
    // A connection for each request: the proxy fails by connection.
    let plain = reqwest::Client::builder()
        .no_proxy()
        .pool_max_idle_per_host(0);
    let transport = Counted {
        inner: Reqwest::from_builder(plain)?,
        counts: Arc::default(),
    };
    let options = Options {
        deadline: CALL,
        attempt_timeout: ATTEMPT,
        ..Options::default()
    };
    let client = Client::builder(Journal::sqlite(directory.path().join("journal.db"))?)
        .options(options)
        .build_with(transport.clone());

    let third = args.intents / 3;
    let call_all = |numbers: std::ops::Range<usize>| {
        let (client, url) = (&client, &url);
        stream::iter(numbers)
            .map(move |nth| async move {
                let intent = format!("load-{nth}");
                let request = Request::post(url)?.json(payment(&intent));
                client.call(&intent, request).await
            })
            .buffer_unordered(args.concurrency)
            .for_each(|ended| {
                match ended {
                    Ok(_) | Err(Error::Unknown { .. } | Error::GaveUp { .. }) => {}
                    Err(error) => eprintln!("unexpected: {error}"),
                }
                std::future::ready(())
            })
    };
    call_all(0..third).await;
    proxy.stop().await;
    transport.with(|counts| counts.is_down = true);
    let outage = async {
        tokio::time::sleep(Duration::from_secs_f64(args.down)).await;
        transport.with(|counts| counts.is_down = false);
        proxy.restart().await
    };
    let (restarted, ()) = tokio::join!(outage, call_all(third..args.intents));
    restarted?;

    // What gave up is open, and is taken up again, as a process does when it starts.
    let mut unknown = HashSet::new();
    for _ in 0..ROUNDS {
        let open: Vec<String> = client
            .journal()
            .list()
            .await?
            .into_iter()
            .map(|open| open.intent)
            .filter(|intent| !unknown.contains(intent))
            .collect();
        if open.is_empty() {
            break;
        }
        let ended: Vec<_> = stream::iter(open)
            .map(|intent| async { (client.finish(&intent).await, intent) })
            .buffer_unordered(args.concurrency)
            .collect()
            .await;
        for (ended, intent) in ended {
            if matches!(ended, Err(Error::Unknown { .. })) {
                unknown.insert(intent);
            }
        }
    }
    report(args, &demo, &client, &transport, &unknown).await
}

async fn report(
    args: &Args,
    demo: &Demo,
    client: &Client,
    transport: &Counted,
    unknown: &HashSet<String>,
) -> Result<()> {
    let open = client.journal().list().await?;
    let is_typed = open.iter().all(|open| unknown.contains(&open.intent));
    ensure!(
        is_typed,
        "{} intents are open, and not all are typed as unknown",
        open.len()
    );
    let open_names: HashSet<&str> = open.iter().map(|open| open.intent.as_str()).collect();
    let charges = demo.charges().await?;
    let mut succeeded = 0;
    for nth in 0..args.intents {
        let intent = format!("load-{nth}");
        let count = charges.get(&intent).copied().unwrap_or(0);
        if open_names.contains(intent.as_str()) {
            ensure!(
                count <= 1,
                "{intent} is unknown and was charged {count} times"
            );
            continue;
        }
        let ended = client.finish(&intent).await?;
        let ended = ended.with_context(|| format!("{intent} is not in the journal"))?;
        ensure!(ended.replayed_from_journal, "{intent} was not finished");
        ensure!(
            ended.status == 201,
            "{intent} ended with status {}",
            ended.status
        );
        ensure!(
            count == 1,
            "{intent} succeeded and was charged {count} times"
        );
        succeeded += 1;
    }
    let (sent, lost, while_down, keys) = transport.with(|counts| {
        let keys = counts.keys_while_down.len();
        (
            counts.sent,
            counts.lost_outcomes,
            counts.sent_while_down,
            keys,
        )
    });
    ensure!(lost > 0, "no outcome was lost");
    ensure!(keys > 0, "nothing was sent while the server was down");
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    let amplification = while_down as f64 / keys as f64;
    ensure!(
        amplification <= MAX_AMPLIFICATION,
        "{while_down} requests for {keys} intents while the server was down: {amplification:.2} each"
    );
    println!(
        "{} intents: {succeeded} final with one charge each, {} unknown; {sent} requests, {lost} of them with a lost outcome; {while_down} requests for \
         {keys} intents in {} s without a server, {amplification:.2} each",
        args.intents,
        open.len(),
        args.down
    );
    Ok(())
}
