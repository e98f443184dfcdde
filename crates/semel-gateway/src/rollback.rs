//! Notices a store that went back in time: one restored from a backup, or emptied.
//!
//! Keys that such a store forgot would execute again. Each process remembers a record that it
//! completed, and looks for it every second. The first process that misses its record writes that
//! into the store, so that all processes stop granting executions until a person runs
//! `semel store accept`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::contract::{AcceptedRollback, Contracts, MAX_ACCEPTANCES, Rollback};
use semel_core::store::Result;
use semel_core::{Error, OperationId, State, Store, Timestamp};
use semel_http::rfc3339;
use semel_postgres::{Leader, Postgres};
use tokio_util::sync::CancellationToken;

/// How often a process looks for its record.
const EVERY: Duration = Duration::from_secs(1);

/// A record whose replay window ends within this time may be pruned, whatever our clock shows.
const MARGIN: Duration = Duration::from_mins(1);

/// How often a change of the document is tried again while other processes change it.
const TRIES: usize = 16;

const LOST: &str = "the store lost records: it was restored from a backup, or emptied. Keys that it \
    forgot would execute again. Compare it with the provider, then run `semel store accept`";

const REGIONS: &str = "gateways of this store use a list of regions, and this one has no [region]: it \
    would execute keys whose home is another region";

/// How often the clock of PostgreSQL jumped.
pub(crate) const CLOCK_JUMPS: &str = "semel_postgres_clock_jumps_total";
/// How far the standby is behind, in bytes of the log.
pub(crate) const STANDBY_LAG: &str = "semel_postgres_standby_lag_bytes";

/// What a process knows of its store. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct StoreWatch(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// The last record that this process completed.
    completed: Mutex<Option<OperationId>>,
    rolled_back: AtomicBool,
    /// Whether this process has a list of regions.
    has_regions: bool,
    /// Whether it has none, and other processes have.
    lacks_regions: AtomicBool,
    /// The store, if it is PostgreSQL.
    postgres: Option<Postgres>,
}

/// A completed record, and until when the store must have it.
type Witness = Option<(OperationId, Timestamp)>;

impl StoreWatch {
    pub(crate) fn new(postgres: Option<Postgres>, has_regions: bool) -> Self {
        Self(Arc::new(Shared {
            has_regions,
            postgres,
            ..Shared::default()
        }))
    }

    /// The server that leads, since when, and how far its standby is behind; one line each.
    pub(crate) fn describe_server(&self) -> Vec<String> {
        let Some(leader) = self.0.postgres.as_ref().and_then(Postgres::leader) else {
            return Vec::new();
        };
        let Leader {
            address,
            timeline,
            since,
            standby_lag,
            ..
        } = leader;
        let mut lines = vec![format!(
            "leader {address} (timeline {timeline}) since {}",
            rfc3339(since)
        )];
        if let Some(lag) = standby_lag {
            let time = lag.time.unwrap_or_default().as_secs_f64() * 1000.0;
            lines.push(format!("standby {} bytes, {time:.1} ms behind", lag.bytes));
        }
        lines
    }

    /// Reports what only a metric can: changes over time.
    fn report_server(&self) {
        let Some(postgres) = &self.0.postgres else {
            return;
        };
        metrics::counter!(CLOCK_JUMPS).absolute(postgres.clock_jumps());
        if let Some(lag) = postgres.leader().and_then(|leader| leader.standby_lag) {
            #[allow(clippy::cast_precision_loss, reason = "a gauge is a float")]
            metrics::gauge!(STANDBY_LAG).set(lag.bytes as f64);
        }
    }

    /// Remembers a completed record.
    pub(crate) fn completed(&self, id: OperationId) {
        // Where another thread remembers one at the same moment, that one will do.
        if let Ok(mut completed) = self.0.completed.try_lock() {
            *completed = Some(id);
        }
    }

    /// # Errors
    /// [`Error::Unavailable`] if the store went back in time, or if this process lacks the list of
    /// regions that others of the store have.
    pub(crate) fn check(&self) -> Result<()> {
        let reason = if self.0.rolled_back.load(Ordering::Relaxed) {
            LOST
        } else if self.0.lacks_regions.load(Ordering::Relaxed) {
            REGIONS
        } else {
            return Ok(());
        };
        Err(Error::Unavailable {
            reason: reason.into(),
            source: None,
        })
    }

    /// Watches the store, which is read without a cache.
    pub(crate) async fn run<S: Store>(self, store: S, stop: CancellationToken) {
        let mut witness = None;
        loop {
            // A store that does not answer has lost nothing yet.
            let _ = self.look(&store, &mut witness).await;
            self.report_server();
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }

    async fn look<S: Store>(&self, store: &S, witness: &mut Witness) -> Result<()> {
        let was_rolled_back = self.0.rolled_back.load(Ordering::Relaxed);
        let now = store.clock().now();
        if let Some((id, until)) = *witness {
            if now >= until {
                *witness = None;
            } else if !was_rolled_back && store.find(id).await?.is_none() {
                report(store, id).await?;
                *witness = None;
            }
        }
        let contracts = store.contracts().await?.contracts;
        let lacks_regions = !self.0.has_regions && contracts.regions.is_some();
        if !self.0.lacks_regions.swap(lacks_regions, Ordering::Relaxed) && lacks_regions {
            tracing::error!("{REGIONS}");
        }
        let rolled_back = contracts.unaccepted_rollback().is_some();
        self.0.rolled_back.store(rolled_back, Ordering::Relaxed);
        match (was_rolled_back, rolled_back) {
            (false, true) => tracing::error!("{LOST}"),
            (true, false) => tracing::warn!("the store is trusted again"),
            (true, true) | (false, false) => {}
        }
        let completed = self.0.completed.lock();
        let completed = completed.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(id) = completed
            && let Some(record) = store.find(id).await?
            && let State::Completed(completed) = record.state
        {
            *witness = Some((id, completed.expires_at.saturating_sub(MARGIN)));
        }
        Ok(())
    }
}

/// Writes into the store that it lost this record.
async fn report<S: Store>(store: &S, id: OperationId) -> Result<()> {
    change(store, |rollbacks, now| {
        if rollbacks.iter().all(|lost| lost.accepted.is_some()) {
            rollbacks.push(Rollback {
                noticed_at: now.as_micros(),
                record: id.to_string().into(),
                accepted: None,
            });
        }
    })
    .await
}

/// Trusts a store again, and keeps who decided so and why. Returns how many losses were accepted.
///
/// # Errors
/// The store does not answer.
pub async fn accept_rollback<S: Store>(store: &S, by: &str, reason: &str) -> Result<usize> {
    let published = store.contracts().await?.contracts;
    let open = published.rollbacks.iter();
    let count = open.filter(|lost| lost.accepted.is_none()).count();
    change(store, |rollbacks, now| {
        for lost in rollbacks.iter_mut().filter(|lost| lost.accepted.is_none()) {
            lost.accepted = Some(AcceptedRollback {
                at: now.as_micros(),
                by: by.into(),
                reason: reason.into(),
            });
        }
    })
    .await?;
    Ok(count)
}

/// Changes the list in the store's document.
async fn change<S: Store>(store: &S, edit: impl Fn(&mut Vec<Rollback>, Timestamp)) -> Result<()> {
    change_contracts(store, |next, now| {
        edit(&mut next.rollbacks, now);
        let old = next.rollbacks.len().saturating_sub(MAX_ACCEPTANCES);
        next.rollbacks.drain(..old);
    })
    .await
}

/// Changes the document of contracts, and returns what the last call of `edit` returned.
pub(crate) async fn change_contracts<S: Store, T>(
    store: &S,
    mut edit: impl FnMut(&mut Contracts, Timestamp) -> T,
) -> Result<T> {
    for _ in 0..TRIES {
        let published = store.contracts().await?;
        let mut next = published.contracts.clone();
        let edited = edit(&mut next, store.clock().now());
        if next == published.contracts {
            return Ok(edited);
        }
        match store.publish_contracts(published.revision, next).await {
            Ok(true) => return Ok(edited),
            // Another process was faster, or it is not known: look again.
            Ok(false) => {}
            Err(error) if error.may_have_written() => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::Unavailable {
        reason: "other processes keep changing the document of contracts; try again".into(),
        source: None,
    })
}

#[cfg(test)]
mod tests {
    use semel_core::contract::{AgreementState, RegionAgreement};
    use semel_core::{Completion, Decision, Fingerprint, Identity, Key, Memory, Policy, Reserve};

    use super::*;

    async fn look(watch: &StoreWatch, store: &Memory, witness: &mut Witness) -> bool {
        watch.look(store, witness).await.unwrap();
        watch.check().is_ok()
    }

    #[tokio::test]
    async fn a_store_that_lost_a_completed_record_is_distrusted_until_a_person_accepts_it() {
        let (store, restored) = (Memory::default(), Memory::default());
        let (watch, mut witness) = (StoreWatch::default(), None);
        let request = Reserve {
            id: OperationId::generate(),
            identity: Identity::new("tenant-1", "pay", Key::new("key-1").unwrap()).unwrap(),
            fingerprints: Fingerprint::from_parts(1, [1; 32]).into(),
            owner: "test".into(),
            policy: Policy::default(),
        };
        let Decision::Execute(grant) = store.reserve(request).await.unwrap() else {
            panic!("not granted");
        };
        let completion = Completion::new(201, Vec::new(), "{}");
        store.complete(grant.fence, completion).await.unwrap();
        watch.completed(grant.fence.id);
        assert!(look(&watch, &store, &mut witness).await);
        assert!(look(&watch, &store, &mut witness).await);

        assert!(!look(&watch, &restored, &mut witness).await);
        assert!(!look(&watch, &restored, &mut witness).await);
        // A process that lost nothing finds it in the store.
        let (other, mut nothing) = (StoreWatch::default(), None);
        assert!(!look(&other, &restored, &mut nothing).await);

        let accepted = accept_rollback(&restored, "ada", "compared").await;
        assert_eq!(accepted.unwrap(), 1);
        assert!(look(&watch, &restored, &mut witness).await);
        assert!(look(&other, &restored, &mut nothing).await);
        let accepted = accept_rollback(&restored, "ada", "again").await;
        assert_eq!(accepted.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_process_without_regions_grants_nothing_beside_one_with_them() {
        let store = Memory::default();
        let (alone, region) = (StoreWatch::new(None, false), StoreWatch::new(None, true));
        let agree = |agreement: Option<RegionAgreement>| {
            change_contracts(&store, move |contracts, _now| {
                contracts.regions.clone_from(&agreement);
            })
        };
        for (agreement, expected) in [
            (None, true),
            (
                Some(RegionAgreement {
                    list: "a hash".into(),
                    version: 7,
                    state: AgreementState::Replacing,
                }),
                false,
            ),
            (None, true),
        ] {
            agree(agreement).await.unwrap();
            assert_eq!(look(&alone, &store, &mut None).await, expected);
            assert!(look(&region, &store, &mut None).await);
        }
    }
}
