//! Contracts: a layer publishes what decides whether two requests are the same, and compares it
//! with what other processes and earlier configurations published.
//!
//! A change of what identifies a record would make a retry a new request. It is refused while
//! records exist that a retry could still meet. A change of fingerprint rules is always allowed: a
//! record is compared under the rules that it was made by, which are read from the store.

mod change;
mod routes;

use semel_core::contract::{
    Acceptance, Contracts, MAX_ACCEPTANCES, MAX_DOCUMENT, MAX_RULE_SETS, PublishedRoute,
    PublishedRules, RecordFilter,
};
use semel_core::fingerprint::RulesId;
use semel_core::{Store, Timestamp};

use crate::layer::Layer;
use crate::reason;
use crate::refusal::Refusal;
use routes::RouteContract;

pub use change::{ContractChange, ContractError, ContractPlan, RulesChange};

/// How often a publication is tried again where other processes publish at the same time.
const MAX_TRIES: usize = 20;

impl<S: Store> Layer<S> {
    /// Publishes this layer's contracts in its store, or refuses to. A layer that was not published
    /// does it at its first guarded request; call this at the start of a program, to refuse to
    /// start instead.
    ///
    /// # Errors
    /// [`ContractError::Refused`] lists the changes, the records that they would leave behind, and
    /// the ways out.
    ///
    /// # Cancellation
    /// The contracts may or may not be published.
    pub async fn publish(&self) -> Result<(), ContractError> {
        let published = self.publish_with(None).await;
        if published.is_ok() {
            // It may be set already, by a request.
            let _ = self.rules.publication.0.set(Ok(()));
        }
        published
    }

    /// Publishes the contracts again if they are missing in the store, which may have been restored
    /// from a backup. Otherwise it only reads what is published, so it may be called often.
    ///
    /// # Errors
    /// As [`publish`](Layer::publish).
    pub async fn keep_published(&self) -> Result<(), ContractError> {
        let published = self.state.store.contracts().await?.contracts;
        let is_complete = routes::offered(&self.rules)
            .iter()
            .all(|offered| offered.is_published(&published));
        if is_complete {
            return Ok(());
        }
        self.publish().await
    }

    /// As [`publish`](Layer::publish), and accepts every change that it would refuse: retries of
    /// the records that it lists will execute again.
    ///
    /// # Errors
    /// As [`publish`](Layer::publish), but never [`ContractError::Refused`].
    pub async fn accept_contracts(&self, by: &str, reason: &str) -> Result<(), ContractError> {
        self.publish_with(Some((by, reason))).await
    }

    /// Compares this layer's contracts with those in its store, and changes nothing.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn plan_contracts(&self) -> Result<ContractPlan, ContractError> {
        let store = &self.state.store;
        let published = store.contracts().await?;
        let offered = routes::offered(&self.rules);
        let mut changes = routes::changes(&self.rules, &offered, &published.contracts);
        // The number of records decides nothing about a change that was accepted, and counting them
        // at every start takes time.
        for change in changes.iter_mut().filter(|change| !change.accepted) {
            let filter = RecordFilter {
                operations: change.operations.clone(),
                rules: None,
            };
            change.in_use = store.count_records(filter).await?;
        }
        let now = self.state.clock.now();
        let mut next = published.contracts.clone();
        merge_routes(&mut next, &offered, &changes, now);
        let rules = self.merge_rules(&mut next, &offered, now).await?;
        Ok(ContractPlan {
            changes,
            rules,
            revision: published.revision,
            published: published.contracts,
            next,
        })
    }

    async fn publish_with(&self, accept: Option<(&str, &str)>) -> Result<(), ContractError> {
        for _ in 0..MAX_TRIES {
            let mut plan = self.plan_contracts().await?;
            if let Some((by, reason)) = accept {
                plan.accept(by, reason, self.state.clock.now());
            }
            let refused: Vec<_> = plan
                .changes
                .into_iter()
                .filter(ContractChange::is_refused)
                .collect();
            if !refused.is_empty() {
                return Err(ContractError::Refused(refused));
            }
            if plan.next == plan.published {
                return Ok(());
            }
            let bytes = plan.next.to_text().len();
            if bytes > MAX_DOCUMENT {
                return Err(ContractError::TooLarge(bytes));
            }
            let store = &self.state.store;
            match store.publish_contracts(plan.revision, plan.next).await {
                Ok(true) => return Ok(()),
                // Another process was faster, or it is not known: compare again.
                Ok(false) => {}
                Err(error) if error.may_have_written() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(ContractError::Busy)
    }

    /// Adds rule sets that the store does not have. Where an operation has too many, those that no
    /// record was made by make room.
    async fn merge_rules(
        &self,
        next: &mut Contracts,
        offered: &[RouteContract],
        now: Timestamp,
    ) -> Result<Vec<RulesChange>, ContractError> {
        let mut changes = Vec::new();
        for RouteContract { rules, .. } in offered {
            let Some((operation, rules)) = rules else {
                continue;
            };
            let of_operation = |set: &PublishedRules| *set.operation == **operation;
            let known = |set: &PublishedRules| of_operation(set) && set.id == rules.id().0;
            if next.rule_sets.iter().any(known) {
                continue;
            }
            let held = next.rule_sets.iter().filter(|set| of_operation(set));
            changes.push(RulesChange {
                operation: operation.clone(),
                from: held.map(|set| set.rules.clone()).collect(),
                to: rules.to_text().into(),
            });
            if next
                .rule_sets
                .iter()
                .filter(|set| of_operation(set))
                .count()
                >= MAX_RULE_SETS
            {
                self.drop_unused_rules(next, operation, offered).await?;
            }
            next.rule_sets
                .push(PublishedRules::new(operation, rules, now));
        }
        Ok(changes)
    }

    async fn drop_unused_rules(
        &self,
        next: &mut Contracts,
        operation: &str,
        offered: &[RouteContract],
    ) -> Result<(), ContractError> {
        let is_offered = |set: &PublishedRules| {
            let mut rules = offered.iter().filter_map(|route| route.rules.as_ref());
            rules.any(|(of, rules)| **of == *set.operation && rules.id().0 == set.id)
        };
        let candidates: Vec<i64> = next
            .rule_sets
            .iter()
            .filter(|set| *set.operation == *operation && !is_offered(set))
            .map(|set| set.id)
            .collect();
        for id in candidates {
            let filter = RecordFilter {
                operations: routes::operations_of(operation),
                rules: Some(RulesId(id)),
            };
            if self.state.store.count_records(filter).await?.all == 0 {
                next.rule_sets
                    .retain(|set| *set.operation != *operation || set.id != id);
                return Ok(());
            }
        }
        Err(ContractError::TooManyRules {
            operation: operation.into(),
        })
    }
}

/// Replaces the contracts of the offered routes. Those of other routes stay: another process may
/// serve them, and their records are found by them.
fn merge_routes(
    next: &mut Contracts,
    offered: &[RouteContract],
    changes: &[ContractChange],
    now: Timestamp,
) {
    let is_left = |route: &PublishedRoute| {
        changes.iter().any(|change| {
            change.route == route.route
                && change.from.as_ref() == Some(&route.identity)
                && !change.accepted
                && change.in_use.all == 0
        })
    };
    let is_offered = |route: &PublishedRoute| {
        let mut routes = offered.iter();
        routes.any(|offered| offered.route == route.route && offered.identity.is_some())
    };
    next.routes
        .retain(|route| !(is_offered(route) && is_left(route)));
    for RouteContract {
        route, identity, ..
    } in offered
    {
        let Some(identity) = identity else { continue };
        let known = |published: &PublishedRoute| {
            published.route == *route && published.identity == *identity
        };
        if !next.routes.iter().any(known) {
            next.routes.push(PublishedRoute {
                route: route.clone(),
                identity: identity.clone(),
                published_at: now.as_micros(),
            });
        }
    }
}

impl ContractPlan {
    fn accept(&mut self, by: &str, reason: &str, now: Timestamp) {
        let refused = self.changes.iter_mut().filter(|change| change.is_refused());
        for change in refused {
            change.accepted = true;
            self.next.acceptances.push(Acceptance {
                at: now.as_micros(),
                by: by.into(),
                reason: reason.into(),
                route: change.route.clone(),
                from: change.from.clone(),
                to: change.to.clone(),
            });
        }
        let over = self.next.acceptances.len().saturating_sub(MAX_ACCEPTANCES);
        self.next.acceptances.drain(..over);
    }
}

/// Publishes the layer's contracts unless that was done before. A refusal stays.
pub(crate) async fn ensure_published<S: Store>(layer: &Layer<S>) -> Result<(), Refusal> {
    let publishing =
        layer
            .rules
            .publication
            .0
            .get_or_try_init(async || match layer.publish_with(None).await {
                Ok(()) => Ok(Ok(())),
                Err(error @ (ContractError::Store(_) | ContractError::Busy)) => {
                    tracing::error!(%error, "nothing is executed");
                    Err(Refusal::new(&reason::STORE_UNAVAILABLE))
                }
                Err(error) => {
                    tracing::error!(%error, "nothing is executed");
                    Ok(Err(error.to_string().into()))
                }
            });
    match publishing.await? {
        Ok(()) => Ok(()),
        Err(_) => Err(Refusal::new(&reason::CONTRACT_CHANGED)),
    }
}
