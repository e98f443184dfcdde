//! The frame of every page.

use askama::Template;

use super::assets::{Links, links};
use super::text::Text;
use crate::admin::access::{Caller, Role};

/// The navigation entry that a page belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Overview,
    Records,
    DeadLetters,
    Misuse,
    Outbox,
    Other,
}

/// Navigation, caller and assets.
pub(super) struct Layout {
    pub(super) links: Links,
    pub(super) csrf: String,
    pub(super) role: &'static str,
    pub(super) name: Option<Text>,
    /// Whether to offer operator actions.
    pub(super) operator: bool,
    /// Whether to offer a logout.
    pub(super) session: bool,
    pub(super) loopback: bool,
    pub(super) nav: [NavEntry; 5],
}

pub(super) struct NavEntry {
    pub(super) path: &'static str,
    pub(super) title: &'static str,
    pub(super) current: bool,
}

impl Layout {
    pub(super) fn new(caller: &Caller, section: Section) -> Self {
        let entry = |path, title, at| NavEntry {
            path,
            title,
            current: at == section,
        };
        Self {
            links: links(),
            csrf: caller.csrf().to_owned(),
            role: caller.role.as_str(),
            name: caller.name.as_deref().map(Text::line),
            operator: caller.has_role(Role::Operator),
            session: caller.session.is_some(),
            loopback: caller.is_loopback(),
            nav: [
                entry("/", "Overview", Section::Overview),
                entry("/operations", "Records", Section::Records),
                entry("/dead-letters", "Dead letters", Section::DeadLetters),
                entry("/misuse", "Misuse", Section::Misuse),
                entry("/outbox", "Outbox", Section::Outbox),
            ],
        }
    }
}

/// An error page.
#[derive(Template)]
#[template(path = "error.html")]
pub(super) struct ErrorPage<'a> {
    pub(super) layout: Layout,
    pub(super) status: u16,
    pub(super) title: &'a str,
    pub(super) detail: Text,
    pub(super) advice: &'a str,
}
