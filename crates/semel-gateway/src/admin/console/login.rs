//! The login page.

use askama::Template;

use super::assets::{Links, links};
use super::text::Text;

/// The contents of the login page.
#[derive(Clone, Copy, Debug)]
pub(in crate::admin) struct LoginView<'a> {
    /// Why the last attempt failed.
    pub(in crate::admin) error: Option<&'a str>,
    /// The path to open after the login, already checked to be local.
    pub(in crate::admin) next: &'a str,
    /// The name typed before.
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

pub(in crate::admin) fn render_login(view: &LoginView<'_>) -> String {
    let page = LoginPage {
        links: links(),
        error: view.error.map(Text::line),
        next: view.next,
        name: Text::line(view.name),
    };
    // Rendering strings into a string cannot fail.
    page.render().unwrap_or_default()
}
