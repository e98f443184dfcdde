//! What the role of a process requires of its configuration.

use super::problem::{Origin, Problems};
use super::{ReplayConfig, RouteConfig, Upstream};
use crate::Role;

/// Checks that there is an upstream where the process needs one. A gateway sends requests to it, a
/// worker polls it where a route's `poll` names no host. A console does without: the polls that
/// need it are left out of `routes`.
pub(super) fn check_upstream(
    role: Role,
    upstream: Option<&Upstream>,
    routes: &mut [RouteConfig],
    problems: &Problems,
) {
    const WAYS: &str = "set --upstream URL, SEMEL_UPSTREAM or `upstream = \
                        \"http://127.0.0.1:3000\"` in the file";
    if upstream.is_some() {
        return;
    }
    match role {
        Role::Gateway | Role::GatewayOnly => {
            problems.report(Origin::Default, format!("no upstream: {WAYS}"));
        }
        Role::Worker => {
            drop_replay_requests(routes);
            for route in routes.iter().filter(|route| polls_upstream(route)) {
                let message = format!(
                    "[route.reconcile] of \"{}\" polls the upstream, and there is none: {WAYS}, or \
                     write `poll` with a host",
                    route.pattern
                );
                problems.report(Origin::Default, message);
            }
        }
        Role::Console => {
            drop_replay_requests(routes);
            for route in routes.iter_mut().filter(|route| polls_upstream(route)) {
                route.reconcile = None;
            }
        }
    }
}

/// A process that serves no requests replays nothing, so it needs no upstream for that.
fn drop_replay_requests(routes: &mut [RouteConfig]) {
    for route in routes {
        route.replay = ReplayConfig::default();
    }
}

/// Whether unknown outcomes of a route are polled at the upstream.
fn polls_upstream(route: &RouteConfig) -> bool {
    let reconcile = route.reconcile.as_ref();
    reconcile.is_some_and(|rules| rules.poll.server().is_none())
}
