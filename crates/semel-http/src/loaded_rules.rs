//! Fingerprint rules of other configurations, read from the store.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use semel_core::Store;
use semel_core::fingerprint::{Rules, RulesId};

use crate::reason;
use crate::refusal::Refusal;
use crate::route::RouteRules;

/// The most rule sets of other configurations that a process keeps in memory.
const MAX_LOADED: usize = 1024;

/// Rule sets of other configurations, read from the store.
#[derive(Default)]
pub(crate) struct LoadedRules(Mutex<HashMap<RulesId, Arc<RouteRules>>>);

impl LoadedRules {
    /// The rules with that id.
    pub(crate) async fn find<S: Store>(
        &self,
        store: &S,
        id: RulesId,
    ) -> Result<Arc<RouteRules>, Refusal> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = lock().get(&id) {
            return Ok(Arc::clone(found));
        }
        let rules = match Rules::well_known(id) {
            Some(rules) => rules,
            None => load(store, id).await?,
        };
        let rules = Arc::new(RouteRules::from(rules));
        let mut loaded = lock();
        if loaded.len() >= MAX_LOADED {
            loaded.clear();
        }
        loaded.insert(id, Arc::clone(&rules));
        Ok(rules)
    }
}

async fn load<S: Store>(store: &S, id: RulesId) -> Result<Rules, Refusal> {
    let unavailable = |problem: &dyn fmt::Display| {
        tracing::error!(
            rules = id.0,
            %problem,
            "a record cannot be compared: the fingerprint rules that it was made by cannot be read"
        );
        Refusal::new(&reason::STORE_UNAVAILABLE)
    };
    let published = store.contracts().await;
    let published = published.map_err(|error| unavailable(&error))?;
    let rules = published.contracts.rules(id);
    let rules = rules.ok_or_else(|| unavailable(&"the store does not have them"))?;
    Rules::from_text(&rules.rules).map_err(|error| unavailable(&error))
}
