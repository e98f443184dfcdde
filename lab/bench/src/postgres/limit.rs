//! The limit: what the same server gives to a loop without callers, queue or answers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use semel_core::OperationId;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, Statement};

use super::server::connect;
use crate::load::{BODY, request};

const SCHEMA: &str = include_str!("../../queries/limit_schema.sql");
const RESERVE: &str = include_str!("../../queries/limit_reserve.sql");
const COMPLETE: &str = include_str!("../../queries/limit_complete.sql");

/// Keys in a statement.
const BATCH: usize = 64;

/// A plan that was made for the empty table reads all of it at every batch later on. The limit
/// must not depend on when the table was analysed: only the index is left to be used.
const SETTINGS: &str = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off \
                        -c enable_hashjoin=off -c enable_mergejoin=off";

/// Connections that reserve and complete batches, one after the other, without any wait.
pub(super) struct Limit {
    connections: Vec<Connection>,
}

struct Connection {
    client: Client,
    reserve: Statement,
    complete: Statement,
}

impl Limit {
    /// Makes the table, so the database must be empty.
    pub(super) async fn open(url: &str, connections: usize) -> Result<Self> {
        connect(url, "").await?.batch_execute(SCHEMA).await?;
        let mut opened = Vec::new();
        for _ in 0..connections {
            let client = connect(url, SETTINGS).await?;
            opened.push(Connection {
                reserve: client.prepare(RESERVE).await?,
                complete: client.prepare(COMPLETE).await?,
                client,
            });
        }
        Ok(Self {
            connections: opened,
        })
    }

    pub(super) fn operations(self, runtime: &Runtime, time: Duration) -> Result<u64> {
        let end = Instant::now() + time;
        let begun: Vec<_> = self
            .connections
            .into_iter()
            .map(|connection| {
                runtime.spawn(async move {
                    let mut done = 0;
                    while Instant::now() < end {
                        connection.batch().await?;
                        done += BATCH as u64;
                    }
                    anyhow::Ok(done)
                })
            })
            .collect();
        let mut total = 0;
        for begun in begun {
            total += runtime
                .block_on(begun)
                .context("a connection's loop panicked")??;
        }
        Ok(total)
    }
}

impl Connection {
    async fn batch(&self) -> Result<()> {
        let now = semel_core::Clock::now(&semel_core::SystemClock).as_micros();
        let (mut hashes, mut ids, mut fingerprints) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..BATCH {
            let request = request(&OperationId::generate().to_string())?;
            hashes.push(request.identity.hash().0);
            ids.push(*request.id.as_bytes());
            fingerprints.push(*request.fingerprints.newest().digest());
        }
        let [hashes, ids] = [&hashes, &ids].map(|all| all.iter().map(slice).collect::<Vec<_>>());
        let fingerprints: Vec<_> = fingerprints.iter().map(slice).collect();
        let granted = self
            .client
            .query(
                &self.reserve,
                &[&hashes, &ids, &fingerprints, &(now + 30_000_000)],
            )
            .await?;
        ensure!(granted.len() == BATCH, "a new key is not granted");

        let (attempts, responses) = ([1; BATCH], [&BODY[..]; BATCH]);
        let completed = self
            .client
            .execute(
                &self.complete,
                &[
                    &hashes,
                    &&attempts[..],
                    &&responses[..],
                    &(now + 86_400_000_000),
                ],
            )
            .await?;
        ensure!(completed == BATCH as u64, "a completion found no row");
        Ok(())
    }
}

/// As the driver knows `bytea`.
fn slice<const N: usize>(bytes: &[u8; N]) -> &[u8] {
    bytes
}
