//! The routes of a configuration beside those that were published.

use std::sync::Arc;

use http::Method;
use semel_core::contract::{
    Contracts, IdentityContract, OperationMatch, PublishedRoute, RecordsInUse,
};
use semel_core::fingerprint::Rules as FingerprintRules;
use semel_core::key::Dialect;
use semel_core::path::{FoldedPath, fold_pattern};

use super::ContractChange;
use crate::matching::{RouteLookup, specificity};
use crate::route::{Guard, KeyRule};
use crate::rules::Rules;

/// Stands for any value of a parameter.
const ANY_SEGMENT: &str = "~any~";

/// The operation of all requests without a name, in the list of rule sets.
const UNNAMED: &str = "*";

/// The contract of one route under a configuration.
pub(super) struct RouteContract {
    pub(super) route: Box<str>,
    /// `None` where the route is not guarded.
    pub(super) identity: Option<IdentityContract>,
    /// The operation and its rules, unless every process knows them.
    pub(super) rules: Option<(Box<str>, FingerprintRules)>,
}

impl RouteContract {
    /// Whether the store has it.
    pub(super) fn is_published(&self, contracts: &Contracts) -> bool {
        let has_identity = self.identity.as_ref().is_none_or(|identity| {
            let mut routes = contracts.routes.iter();
            routes.any(|known| known.route == self.route && known.identity == *identity)
        });
        let has_rules = self.rules.as_ref().is_none_or(|(operation, rules)| {
            let mut sets = contracts.rule_sets.iter();
            sets.any(|set| set.operation == *operation && set.id == rules.id().0)
        });
        has_identity && has_rules
    }
}

/// The contracts of all routes, and of requests without one.
pub(super) fn offered(rules: &Rules) -> Vec<RouteContract> {
    let listed = rules.listed.iter().map(|(method, guard)| {
        let path = guard.path.as_deref().unwrap_or("*");
        (method, path, guard)
    });
    let unnamed = [&Method::POST, &Method::PATCH].map(|method| (method, "*", rules.unnamed()));
    listed
        .chain(unnamed)
        .map(|(method, path, guard)| {
            let set = &guard.rules(rules.dialect).rules;
            let operation = guard.identity_name().unwrap_or(UNNAMED);
            let is_stored = guard.route.key != KeyRule::Ignored
                && FingerprintRules::well_known(set.id()).is_none();
            RouteContract {
                route: format!("{method} {path}").into(),
                identity: identity(rules, guard),
                rules: is_stored.then(|| (operation.into(), set.clone())),
            }
        })
        .collect()
}

fn identity(rules: &Rules, guard: &Arc<Guard>) -> Option<IdentityContract> {
    let dialect = match rules.dialect {
        Dialect::Ietf { .. } => "ietf",
        Dialect::Stripe => "stripe",
    };
    (guard.route.key != KeyRule::Ignored).then(|| IdentityContract {
        operation: guard.identity_name().map(Into::into),
        key_scope: guard.scope(rules.dialect).as_str().into(),
        key: match &rules.key_hasher {
            Some(hasher) => format!("{} ({dialect}, hashed by {})", rules.header, hasher.id()),
            None => format!("{} ({dialect})", rules.header),
        }
        .into(),
        tenant: rules.tenant_rule.clone(),
        match_exactly: guard.route.match_exactly,
        regions: rules.homes.as_ref().map(|homes| homes.list()),
    })
}

/// The changes between what was published and a configuration, without the numbers of records. A
/// request of each published route is looked up in the configuration, and one of each new route in
/// what was published.
pub(super) fn changes(
    rules: &Rules,
    offered: &[RouteContract],
    published: &Contracts,
) -> Vec<ContractChange> {
    let mut changes = Vec::new();
    let mut add = |route: &str, from: &PublishedRoute, to: Option<IdentityContract>| {
        let from_name = effective_name(route, &from.identity);
        let is_same = to.as_ref().is_some_and(|to| {
            effective_name(route, to) == from_name
                && IdentityContract {
                    operation: from.identity.operation.clone(),
                    ..to.clone()
                } == from.identity
        });
        let from_exactly = from.identity.match_exactly;
        let from = Some(from.identity.clone());
        let known = |change: &ContractChange| *change.route == *route && change.from == from;
        if is_same || changes.iter().any(known) {
            return;
        }
        let operations = match &from_name {
            Some(name) => operations_of(name),
            None => OperationMatch::Prefix(literal_prefix(&recorded(route, from_exactly)).into()),
        };
        changes.push(ContractChange {
            route: route.into(),
            accepted: published.accepts(route, from.as_ref(), to.as_ref()),
            from,
            to,
            operations,
            in_use: RecordsInUse::default(),
        });
    };
    for route in &published.routes {
        let to = match split(&route.route) {
            Some((method, "*")) => {
                let method = Method::from_bytes(method.as_bytes());
                let guarded = method.is_ok_and(|m| m == Method::POST || m == Method::PATCH);
                guarded.then(|| identity(rules, rules.unnamed())).flatten()
            }
            Some((method, path)) => {
                let guard = Method::from_bytes(method.as_bytes()).ok();
                let example = example_path(path);
                guard.and_then(|method| match rules.find(&method, &example) {
                    RouteLookup::Found(found) => identity(rules, found.guard),
                    RouteLookup::NotGuarded | RouteLookup::Ambiguous => None,
                })
            }
            None => continue,
        };
        add(&route.route, route, to);
    }
    for route in offered {
        let is_published = published
            .routes
            .iter()
            .any(|published| published.route == route.route);
        if !is_published && let Some((method, path)) = split(&route.route) {
            for earlier in matching(published, method, &example_path(path)) {
                add(&route.route, earlier, route.identity.clone());
            }
        }
    }
    changes
}

/// The operations that records of an operation are stored under.
pub(super) fn operations_of(operation: &str) -> OperationMatch {
    if operation == UNNAMED {
        // Every record without a name has its method and path for one.
        OperationMatch::Prefix("P".into())
    } else {
        OperationMatch::Exact(operation.into())
    }
}

/// The published routes that a request would have matched: the most specific ones.
fn matching<'c>(published: &'c Contracts, method: &str, path: &str) -> Vec<&'c PublishedRoute> {
    let candidates: Vec<(Vec<u8>, &PublishedRoute)> = published
        .routes
        .iter()
        .filter_map(|route| {
            let (its_method, pattern) = split(&route.route)?;
            let admits = admits(pattern, route.identity.match_exactly, path);
            (its_method == method && admits).then(|| (specificity(pattern), route))
        })
        .collect();
    let Some(best) = candidates.iter().map(|(rank, _)| rank.clone()).min() else {
        return Vec::new();
    };
    let best = candidates.into_iter().filter(|(rank, _)| *rank == best);
    best.map(|(_, route)| route).collect()
}

fn admits(pattern: &str, is_exact: bool, path: &str) -> bool {
    if pattern == "*" {
        return true;
    }
    let mut router = matchit::Router::new();
    if is_exact {
        return router.insert(pattern, ()).is_ok() && router.at(path).is_ok();
    }
    let path = FoldedPath::new(path);
    let pattern = fold_pattern(pattern);
    pattern
        .is_ok_and(|pattern| router.insert(pattern, ()).is_ok() && router.at(path.as_str()).is_ok())
}

/// The operation in the identity of a route's records; `None` where it depends on the path.
fn effective_name(route: &str, identity: &IdentityContract) -> Option<Box<str>> {
    match &identity.operation {
        Some(name) => Some(name.clone()),
        None if route.contains('{') || route.ends_with(" *") => None,
        None => Some(recorded(route, identity.match_exactly).into()),
    }
}

/// The route as its method and path are in the identity of records without a name.
fn recorded(route: &str, is_exact: bool) -> String {
    let folded = split(route)
        .filter(|_| !is_exact)
        .and_then(|(method, path)| Some(format!("{method} {}", fold_pattern(path).ok()?)));
    folded.unwrap_or_else(|| route.to_owned())
}

/// What the operations of a route without a name begin with.
fn literal_prefix(route: &str) -> String {
    let end = route.find(['{', '*']).unwrap_or(route.len());
    let prefix = &route[..end];
    match prefix.strip_suffix(' ') {
        Some(method) => format!("{method} /"),
        None => prefix.to_owned(),
    }
}

fn split(route: &str) -> Option<(&str, &str)> {
    route.split_once(' ')
}

/// A path that the pattern matches, with a placeholder for each parameter.
fn example_path(pattern: &str) -> String {
    let mut path = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(start) = rest.find('{') {
        path.push_str(&rest[..start]);
        path.push_str(ANY_SEGMENT);
        rest = rest[start..].split_once('}').map_or("", |(_, rest)| rest);
    }
    path.push_str(rest);
    path
}
