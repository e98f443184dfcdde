//! What is around every page.

use askama::Template;

use super::assets::{Links, links};
use super::text::Text;
use crate::admin::access::{Caller, Role};

/// Which entry of the navigation a page belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Overview,
    Operations,
    DeadLetters,
    Misuse,
    Outbox,
    Elsewhere,
}

/// The frame: who is here, and where.
pub(super) struct Layout {
    pub(super) links: Links,
    pub(super) csrf: String,
    pub(super) role: &'static str,
    pub(super) name: Option<Text>,
    /// Whether decisions are offered.
    pub(super) operator: bool,
    /// Whether there is a session to end.
    pub(super) session: bool,
    pub(super) loopback: bool,
    pub(super) nav: [Entry; 5],
}

pub(super) struct Entry {
    pub(super) path: &'static str,
    pub(super) title: &'static str,
    pub(super) here: bool,
}

impl Layout {
    pub(super) fn new(caller: &Caller, place: Place) -> Self {
        let entry = |path, title, at| Entry {
            path,
            title,
            here: at == place,
        };
        Self {
            links: links(),
            csrf: caller.csrf().to_owned(),
            role: caller.role.as_str(),
            name: caller.name.as_deref().map(Text::line),
            operator: caller.may(Role::Operator),
            session: caller.session.is_some(),
            loopback: caller.is_loopback(),
            nav: [
                entry("/", "Overview", Place::Overview),
                entry("/operations", "Operations", Place::Operations),
                entry("/dead-letters", "Dead letters", Place::DeadLetters),
                entry("/misuse", "Misuse", Place::Misuse),
                entry("/outbox", "Outbox", Place::Outbox),
            ],
        }
    }
}

/// What a page says instead of itself.
#[derive(Template)]
#[template(path = "error.html")]
pub(super) struct ErrorPage<'a> {
    pub(super) layout: Layout,
    pub(super) status: u16,
    pub(super) title: &'a str,
    pub(super) detail: Text,
    pub(super) advice: &'a str,
}
