//! Whether all regions use the same list.
//!
//! Two lists may give one key two homes, each of which would execute it. So a list counts only once
//! every other region has confirmed it, and a store remembers that: a gateway that starts while
//! another region is down needs no second confirmation. A store goes from one list only to one with
//! a higher version, and confirms it to others only after no process relies on the earlier one.
//! Hence at most one list counts, in whatever order processes start.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use http::StatusCode;
use semel_core::Store;
use semel_core::contract::{AgreementState, Contracts, RegionAgreement};
use semel_http::{ContractChange, ContractError, Layer};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{Peers, Regions, Standing};
use crate::rollback::change_contracts;
use crate::run::Error;

/// How often a process reads from its store whether its list still counts.
const READ_EVERY: Duration = Duration::from_secs(1);

/// The pause between two tries while the list is not confirmed.
const CONFIRM_EVERY: Duration = Duration::from_millis(200);

/// How often a process logs why the list is not confirmed.
const REPORT_EVERY: Duration = Duration::from_mins(1);

/// How long a process relies on what it read.
const RELY_FOR: Duration = Duration::from_secs(5);

/// How long a process with another list waits: until no other relies on the earlier one, and until
/// what these may have begun to reserve (ten seconds at most) is in the store.
const TAKE_OVER: Duration = Duration::from_secs(16);

/// Publishes the layer's contracts, and makes this process's list the one that its store uses.
///
/// # Errors
/// As [`Layer::publish`] and [`check`]. Where that is found before the wait, the earlier list stays
/// in use.
///
/// # Cancellation
/// The earlier list may be out of use; the next process with this list waits again.
pub async fn adopt<S: Store>(regions: Option<&Regions>, layer: &Layer<S>) -> Result<(), Error> {
    let store = layer.store();
    let Some(regions) = regions else {
        check(None, &read(store).await?)?;
        layer.publish().await?;
        // Also afterwards: a process with a list sees either these contracts, or is seen here.
        return check(None, &read(store).await?);
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
    let has_to_wait = change(store, |contracts| {
        check(Some(regions), contracts)?;
        if regions.is_adopted(contracts) {
            return Ok(false);
        }
        contracts.regions = Some(regions.agreement(AgreementState::Replacing));
        // No process serves with a store in which nothing is published.
        Ok(!contracts.routes.is_empty())
    })
    .await?;
    if has_to_wait {
        tracing::warn!("another list of regions was in use; waiting until no process relies on it");
        sleep(TAKE_OVER).await;
    }
    // Compared again: they may have reserved keys until now.
    layer.publish().await?;
    change(store, |contracts| {
        check(Some(regions), contracts)?;
        match &mut contracts.regions {
            Some(agreement) if regions.is_own(agreement) => {
                if agreement.state == AgreementState::Replacing {
                    agreement.state = AgreementState::Unconfirmed;
                }
                Ok(())
            }
            Some(_) | None => Err(Error::Regions(
                "another process has changed the list of regions meanwhile: start again".into(),
            )),
        }
    })
    .await
}

/// Whether processes of a store may use this list, or none, after what they used before.
///
/// # Errors
/// [`Error::Regions`] says why not.
pub fn check(regions: Option<&Regions>, contracts: &Contracts) -> Result<(), Error> {
    let Some(known) = &contracts.regions else {
        return Ok(());
    };
    let Some(regions) = regions else {
        return Err(Error::Regions(format!(
            "it is missing, and the store's gateways use version {} of a list of regions: this one would \
             execute keys whose home is another region. To leave the regions, stop the gateways of all \
             of them, then run `semel contract accept` with this configuration",
            known.version
        )));
    };
    let version = regions.table.version;
    if !regions.is_own(known) && version <= known.version {
        return Err(Error::Regions(format!(
            "the store's gateways use version {} of the list of regions; another list, or other rules for \
             tenants and keys, need a higher `version` than that, not {version}",
            known.version
        )));
    }
    Ok(())
}

/// Makes a store forget the regions, for a configuration without them.
///
/// # Errors
/// The store does not answer.
pub async fn leave<S: Store>(store: &S) -> Result<(), Error> {
    change(store, |contracts| {
        contracts.regions = None;
        Ok(())
    })
    .await
}

/// Asks the other regions until all have confirmed the list, and then watches the store, until
/// `stop`.
pub async fn keep_agreed<S: Store>(peers: Peers, store: S, stop: CancellationToken) {
    let regions = Arc::clone(peers.regions());
    let watching = async {
        let mut reported: Option<Instant> = None;
        loop {
            let asked = Instant::now();
            match look(&regions, &peers, &store).await {
                Ok(Standing::Confirmed(_)) => {
                    regions.set_standing(Standing::Confirmed(asked + RELY_FOR));
                    reported = None;
                }
                Ok(standing) => regions.set_standing(standing),
                // What was read before counts for a while.
                Err(error) if reported.is_none_or(|at| at.elapsed() >= REPORT_EVERY) => {
                    tracing::warn!(%error, "the list of regions is not confirmed");
                    reported = Some(asked);
                }
                Err(_) => {}
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

async fn look<S: Store>(regions: &Regions, peers: &Peers, store: &S) -> Result<Standing, Error> {
    let contracts = read(store).await?;
    let state = contracts.regions.as_ref();
    let state = state.filter(|agreement| regions.is_own(agreement));
    match state.map(|agreement| agreement.state) {
        None => {
            if regions.standing() != Standing::Superseded {
                tracing::error!("another process of this store uses another list of regions");
            }
            Ok(Standing::Superseded)
        }
        Some(AgreementState::Replacing) => Ok(Standing::Unconfirmed),
        Some(AgreementState::Confirmed) => Ok(Standing::Confirmed(Instant::now())),
        Some(AgreementState::Unconfirmed) => {
            regions.set_standing(Standing::Unconfirmed);
            ask_all(regions, peers).await?;
            change(store, |contracts| {
                // Not over the list of another process, which started meanwhile.
                if let Some(agreement) = &mut contracts.regions
                    && *agreement == regions.agreement(AgreementState::Unconfirmed)
                {
                    agreement.state = AgreementState::Confirmed;
                }
                Ok(())
            })
            .await?;
            tracing::info!(
                version = regions.table.version,
                "all regions use the same list"
            );
            // The next look reads it.
            Ok(Standing::Unconfirmed)
        }
    }
}

/// The answer to a region that asks whether this one uses the same list, which was compared before.
/// It is read from the store: a process that cannot read may have been superseded.
pub(super) async fn answer<S: Store>(regions: &Regions, store: &S) -> StatusCode {
    match store.contracts().await {
        Ok(published) if regions.is_adopted(&published.contracts) => StatusCode::NO_CONTENT,
        Ok(_) | Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn ask_all(regions: &Regions, peers: &Peers) -> Result<(), Error> {
    let asking = regions.others().map(async |name| {
        let answer = peers.confirm(name).await;
        answer.map_err(|error| {
            Error::Regions(format!(
                "nothing executes until region {name:?} confirms the list: {error}"
            ))
        })
    });
    join_all(asking).await.into_iter().collect()
}

impl Regions {
    fn agreement(&self, state: AgreementState) -> RegionAgreement {
        RegionAgreement {
            list: self.fingerprint().into(),
            version: self.table.version,
            state,
        }
    }

    /// Whether it is about this process's list.
    fn is_own(&self, agreement: &RegionAgreement) -> bool {
        *agreement.list == *self.fingerprint()
    }

    /// Whether no process of the store relies on another list.
    fn is_adopted(&self, contracts: &Contracts) -> bool {
        contracts.regions.as_ref().is_some_and(|agreement| {
            self.is_own(agreement) && agreement.state != AgreementState::Replacing
        })
    }
}

async fn read<S: Store>(store: &S) -> Result<Contracts, Error> {
    let published = store.contracts().await.map_err(ContractError::from)?;
    Ok(published.contracts)
}

async fn change<S: Store, T>(
    store: &S,
    mut edit: impl FnMut(&mut Contracts) -> Result<T, Error>,
) -> Result<T, Error> {
    let changed = change_contracts(store, |contracts, _now| edit(contracts)).await;
    changed.map_err(ContractError::from)?
}

#[cfg(test)]
mod tests;
