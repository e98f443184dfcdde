//! Whether all regions use the same list.
//!
//! Two lists may give one key two homes, each of which would execute it. So a list counts only once
//! every other region has confirmed it, and a store remembers that: a gateway that starts while
//! another region is down needs no second confirmation. A process with another list first takes the
//! confirmation back, then waits until no process of its store relies on it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use semel_core::contract::RegionAgreement;
use semel_core::{Store, store};
use semel_http::{ContractChange, ContractError, Layer};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{Peers, Regions, Standing};
use crate::run::Error;

/// How often a process reads from its store whether its list still counts.
const READ_EVERY: Duration = Duration::from_secs(1);

/// The pause between two tries while the list is not confirmed.
const CONFIRM_EVERY: Duration = Duration::from_millis(200);

/// How long a process relies on what it read.
const RELY_FOR: Duration = Duration::from_secs(5);

/// How long a process with another list waits: until no other relies on the earlier one, and until
/// what these may have begun to reserve (ten seconds at most) is in the store.
const TAKE_OVER: Duration = Duration::from_secs(16);

/// How often a document is written again that another process changed meanwhile.
const MAX_TRIES: usize = 8;

/// Publishes the layer's contracts, and makes this process's list the one that its store uses.
///
/// # Errors
/// As [`Layer::publish`]; the earlier list then stays in use.
///
/// # Cancellation
/// The confirmation of an earlier list may be lost; its processes ask for it again.
pub async fn adopt<S: Store>(regions: &Regions, layer: &Layer<S>) -> Result<(), Error> {
    let store = layer.store();
    let earlier = store.contracts().await.map_err(ContractError::from)?;
    let earlier = earlier.contracts.regions;
    let list = regions.fingerprint();
    let is_other = |agreement: &RegionAgreement| *agreement.list != *list;
    let Some(earlier) = earlier.filter(is_other) else {
        layer.publish().await?;
        let start = |known: Option<RegionAgreement>| known.or(Some(unconfirmed(list)));
        write(store, start).await.map_err(ContractError::from)?;
        return Ok(());
    };
    // Refused early, while the processes with the earlier list still serve.
    let changes = layer.plan_contracts().await?.changes;
    let refused: Vec<_> = changes
        .into_iter()
        .filter(ContractChange::is_refused)
        .collect();
    if !refused.is_empty() {
        return Err(ContractError::Refused(refused).into());
    }
    let replaced = write(store, |_| Some(unconfirmed(list))).await;
    replaced.map_err(ContractError::from)?;
    tracing::warn!("another list of regions was in use; waiting until no process relies on it");
    if earlier.confirmed {
        sleep(TAKE_OVER).await;
    }
    // Compared again: they may have reserved keys until now.
    if let Err(error) = layer.publish().await {
        let restored = write(store, |_| Some(earlier.clone())).await;
        restored.map_err(ContractError::from)?;
        return Err(error.into());
    }
    Ok(())
}

/// Asks the other regions until all have confirmed the list, and then watches the store, until
/// `stop`.
pub async fn keep_agreed<S: Store>(peers: Peers, store: S, stop: CancellationToken) {
    let regions = Arc::clone(peers.regions());
    let watching = async {
        loop {
            let asked = Instant::now();
            match look(&regions, &peers, &store).await {
                Ok(Standing::Confirmed(_)) => {
                    regions.set_standing(Standing::Confirmed(asked + RELY_FOR));
                }
                Ok(standing) => regions.set_standing(standing),
                // What was read before counts for a while.
                Err(error) => tracing::warn!(%error, "the list of regions cannot be read"),
            }
            let pause = match regions.standing() {
                Standing::Unconfirmed => CONFIRM_EVERY,
                Standing::Confirmed(_) | Standing::Superseded => READ_EVERY,
            };
            sleep(pause).await;
        }
    };
    tokio::select! { () = stop.cancelled() => {}, () = watching => {} }
}

async fn look<S: Store>(regions: &Regions, peers: &Peers, store: &S) -> store::Result<Standing> {
    let list = regions.fingerprint();
    match store.contracts().await?.contracts.regions {
        Some(agreement) if *agreement.list != *list => {
            if regions.standing() != Standing::Superseded {
                tracing::error!("another process of this store uses another list of regions");
            }
            Ok(Standing::Superseded)
        }
        Some(agreement) if agreement.confirmed => Ok(Standing::Confirmed(Instant::now())),
        Some(_) | None => {
            if !all_confirm(regions, peers).await {
                return Ok(Standing::Unconfirmed);
            }
            // Not over the list of another process, which started meanwhile.
            let confirm = |known: Option<RegionAgreement>| match known {
                Some(other) if *other.list != *list => Some(other),
                Some(_) | None => Some(RegionAgreement {
                    confirmed: true,
                    ..unconfirmed(list)
                }),
            };
            write(store, confirm).await?;
            tracing::info!(
                version = regions.table.version,
                "all regions use the same list"
            );
            // The next look reads it.
            Ok(Standing::Unconfirmed)
        }
    }
}

async fn all_confirm(regions: &Regions, peers: &Peers) -> bool {
    let asking = regions.others().map(async |name| {
        let answer = peers.confirm(name).await;
        if let Err(error) = &answer {
            tracing::debug!(
                region = &**name,
                error,
                "a region has not confirmed the list"
            );
        }
        answer.is_ok()
    });
    join_all(asking).await.into_iter().all(|confirms| confirms)
}

fn unconfirmed(list: &str) -> RegionAgreement {
    RegionAgreement {
        list: list.into(),
        confirmed: false,
    }
}

/// Changes what the store knows about the list.
async fn write<S: Store>(
    store: &S,
    change: impl Fn(Option<RegionAgreement>) -> Option<RegionAgreement>,
) -> store::Result<()> {
    for _ in 0..MAX_TRIES {
        let mut published = store.contracts().await?;
        let known = published.contracts.regions.take();
        let next = change(known.clone());
        if next == known {
            return Ok(());
        }
        published.contracts.regions = next;
        let written = store.publish_contracts(published.revision, published.contracts);
        match written.await {
            Ok(true) => return Ok(()),
            // Another process was faster, or it is not known: compare again.
            Ok(false) => {}
            Err(error) if error.may_have_written() => {}
            Err(error) => return Err(error),
        }
    }
    Err(store::Error::Unavailable {
        reason: "other processes publish at the same time".into(),
        source: None,
    })
}
