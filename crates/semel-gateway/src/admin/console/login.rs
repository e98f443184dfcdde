//! The page that asks who is there.

use askama::Template;

use super::assets::{Links, links};
use super::text::Text;

/// What the login page says.
#[derive(Clone, Copy, Debug)]
pub(in crate::admin) struct LoginView<'a> {
    /// What was wrong with the last attempt, in words.
    pub(in crate::admin) error: Option<&'a str>,
    /// Where to go afterwards: a local path, already checked. Hidden field `next`.
    pub(in crate::admin) next: &'a str,
    /// What was typed as name before.
    pub(in crate::admin) name: &'a str,
}

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage<'a> {
    links: Links,
    error: Option<Text>,
    next: &'a str,
    name: Text,
}

/// The page, whole.
pub(in crate::admin) fn login_page(view: &LoginView<'_>) -> String {
    let page = LoginPage {
        links: links(),
        error: view.error.map(Text::line),
        next: view.next,
        name: Text::line(view.name),
    };
    // It is made of texts, and writing to a string cannot fail.
    page.render().unwrap_or_default()
}
