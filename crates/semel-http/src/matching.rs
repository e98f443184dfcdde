//! Which route a request belongs to.
//!
//! Paths are [folded](semel_core::path) before they are matched, so that every spelling that the
//! application may take for a guarded path is guarded. A path that the application may take for
//! another route than the layer does is refused.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use http::Method;
use semel_core::path::{FoldedPath, fold_pattern};

use crate::route::{Error, Guard, KeyRule};

/// The routes, by method.
#[derive(Clone, Default)]
pub(crate) struct RouteTable {
    methods: HashMap<Method, MethodRoutes>,
}

#[derive(Clone, Default)]
struct MethodRoutes {
    folded: matchit::Router<Arc<Guard>>,
    /// The routes that match exactly.
    exact: matchit::Router<Arc<Guard>>,
}

/// The route of a request.
pub(crate) enum RouteLookup<'r, 'p> {
    /// No route, and no guard for requests without one.
    NotGuarded,
    /// The application may take the path for another route.
    Ambiguous,
    Found(FoundRoute<'r, 'p>),
}

/// The guard of a request, and its path in the identity of an operation without a name.
pub(crate) struct FoundRoute<'r, 'p> {
    pub(crate) guard: &'r Arc<Guard>,
    pub(crate) path: Cow<'p, str>,
    /// Whether another spelling of the path may have another identity.
    pub(crate) is_undecidable: bool,
}

impl RouteTable {
    /// Adds a route.
    pub(crate) fn add(
        &mut self,
        method: Method,
        pattern: &str,
        path: &str,
        guard: Arc<Guard>,
    ) -> Result<(), Error> {
        let wrong = |reason: String| Error::Path {
            pattern: pattern.to_owned(),
            reason,
        };
        let is_exact = guard.route.match_exactly;
        let routes = self.methods.entry(method).or_default();
        let inserted = if is_exact {
            routes.exact.insert(path, guard)
        } else {
            let folded = fold_pattern(path).map_err(|problem| wrong(problem.to_owned()))?;
            routes.folded.insert(folded, guard)
        };
        inserted.map_err(|error| wrong(routes.conflict(&error, is_exact)))
    }

    /// The route of a request; `otherwise` guards requests without one.
    pub(crate) fn find<'r, 'p>(
        &'r self,
        method: &Method,
        path: &'p str,
        otherwise: Option<&'r Arc<Guard>>,
    ) -> RouteLookup<'r, 'p> {
        let routes = self.methods.get(method);
        if routes.is_none() && otherwise.is_none() {
            return RouteLookup::NotGuarded;
        }
        let exact = routes.and_then(|routes| at(&routes.exact, path));
        let listed = |folded: &str| {
            let folded = routes.and_then(|routes| at(&routes.folded, folded));
            more_specific(exact, folded)
        };
        let folded = FoldedPath::new(path);
        let found = listed(folded.as_str());
        let is_other = |reading: &String| match (listed(reading), found) {
            (None, _) => false,
            (Some(other), None) => is_guarded(other),
            (Some(other), Some(found)) => {
                !Arc::ptr_eq(other, found) && (is_guarded(other) || is_guarded(found))
            }
        };
        if folded.other_readings().iter().any(is_other) {
            return RouteLookup::Ambiguous;
        }
        let Some(guard) = found.or(otherwise) else {
            return RouteLookup::NotGuarded;
        };
        let is_exact = guard.route.match_exactly;
        let is_undecidable = folded.is_undecidable() && !is_exact;
        if is_undecidable && found.is_some_and(is_guarded) {
            return RouteLookup::Ambiguous;
        }
        RouteLookup::Found(FoundRoute {
            guard,
            path: if is_exact {
                Cow::Borrowed(path)
            } else {
                folded.into_inner()
            },
            is_undecidable,
        })
    }
}

impl MethodRoutes {
    fn conflict(&self, error: &matchit::InsertError, is_exact: bool) -> String {
        let matchit::InsertError::Conflict { with } = error else {
            return error.to_string();
        };
        let routes = if is_exact { &self.exact } else { &self.folded };
        // The pattern as it was written; a pattern matches itself.
        let first = at(routes, with).and_then(|guard| guard.path.as_deref());
        format!(
            "it matches the same requests as {:?}",
            first.unwrap_or(with)
        )
    }
}

fn at<'r>(routes: &'r matchit::Router<Arc<Guard>>, path: &str) -> Option<&'r Arc<Guard>> {
    routes.at(path).ok().map(|found| found.value)
}

fn is_guarded(guard: &Arc<Guard>) -> bool {
    guard.route.key != KeyRule::Ignored
}

/// The route that one router would prefer; of two alike, the exact one.
fn more_specific<'r>(
    exact: Option<&'r Arc<Guard>>,
    folded: Option<&'r Arc<Guard>>,
) -> Option<&'r Arc<Guard>> {
    let (Some(one), Some(other)) = (exact, folded) else {
        return exact.or(folded);
    };
    let rank = |guard: &Guard| specificity(guard.path.as_deref().unwrap_or("*"));
    Some(if rank(one) <= rank(other) { one } else { other })
}

/// Orders patterns as the router prefers them: literal segments before parameters before the rest.
pub(crate) fn specificity(pattern: &str) -> Vec<u8> {
    if pattern == "*" {
        return vec![9];
    }
    pattern
        .split('/')
        .map(|segment| match segment {
            segment if segment.contains("{*") => 2,
            segment if segment.contains('{') => 1,
            _ => 0,
        })
        .collect()
}
