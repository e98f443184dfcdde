//! `[admin]`: the admin listener.

use std::str::FromStr;

use toml::Spanned;

use super::problem::Origin;
use super::table::Table;
use super::{Listen, Settings, read_file};
use crate::admin::{Access, Token};

/// The admin listener.
#[derive(Clone, Debug)]
pub struct AdminConfig {
    /// Its address; a loopback address unless there is a token.
    pub listen: Listen,
    /// The token of operators.
    pub token: Option<Token>,
    /// The token of viewers; requires, and differs from, the token of operators.
    pub viewer_token: Option<Token>,
    /// Whether the session cookie has the `Secure` attribute.
    pub secure_cookie: bool,
}

impl AdminConfig {
    /// How requests are authenticated.
    pub fn access(&self) -> Access {
        match &self.token {
            None => Access::Loopback,
            Some(operator) => Access::Tokens {
                operator: operator.clone(),
                viewer: self.viewer_token.clone(),
                secure_cookie: self.secure_cookie,
            },
        }
    }
}

/// `[admin]` of the file, before flags and variables override it.
#[derive(Default)]
pub(super) struct AdminDocument {
    listen: Option<Spanned<Listen>>,
    token: Option<Spanned<Token>>,
    viewer_token: Option<Spanned<Token>>,
    secure_cookie: Option<Spanned<bool>>,
    /// Whether `token_file` is present, even if the file is invalid.
    token_given: bool,
}

pub(super) fn read(table: Option<Table<'_>>) -> AdminDocument {
    let Some(mut table) = table else {
        return AdminDocument::default();
    };
    let from_file = |path: &str| {
        let text = read_file(path.as_ref())?;
        text.parse::<Token>()
            .map_err(|problem| format!("{path}: {problem}"))
    };
    let read = AdminDocument {
        listen: table.parsed("listen", Listen::from_str),
        token_given: table.key_span("token_file").is_some(),
        token: table.parsed("token_file", from_file),
        viewer_token: table.parsed("viewer_token_file", from_file),
        secure_cookie: table.boolean("secure_cookie"),
    };
    table.finish();
    read
}

pub(super) fn merge(
    document: AdminDocument,
    listen: Option<Listen>,
    settings: &Settings<'_>,
) -> AdminConfig {
    let problems = settings.problems;
    let listen = settings.resolve(
        listen,
        "--admin-listen",
        "SEMEL_ADMIN_LISTEN",
        document.listen,
    );
    let token = settings.resolve(None, "", "SEMEL_ADMIN_TOKEN", document.token);
    let viewer = settings.resolve(None, "", "SEMEL_VIEWER_TOKEN", document.viewer_token);
    // An invalid token was already reported; it is not missing.
    let tokenless =
        token.is_none() && !document.token_given && !settings.is_set("SEMEL_ADMIN_TOKEN");

    let (listen, listen_from) = listen.unwrap_or_else(|| (Listen::loopback(8081), Origin::Default));
    if !listen.is_loopback() && token.is_none() {
        problems.report(
            listen_from,
            format!(
                "{listen} is reachable from other machines and has no admin token: set \
                 SEMEL_ADMIN_TOKEN or `[admin] token_file`, or listen on 127.0.0.1"
            ),
        );
    }
    match (&token, &viewer) {
        (Some((token, _)), Some((viewer, from))) if token == viewer => problems.report(
            from.clone(),
            "viewers and operators have the same token, so viewers could act as operators: use \
             different tokens",
        ),
        (None, Some((_, from))) if tokenless => problems.report(
            from.clone(),
            "viewers have a token but operators have none: set SEMEL_ADMIN_TOKEN or `[admin] \
             token_file` as well",
        ),
        (_, _) => {}
    }
    if let Some(secure) = &document.secure_cookie
        && tokenless
    {
        problems.at(
            secure.span(),
            "`secure_cookie` has no effect without an admin token: set SEMEL_ADMIN_TOKEN or `[admin] \
             token_file`, or remove it",
        );
    }
    AdminConfig {
        listen,
        token: token.map(|(token, _)| token),
        viewer_token: viewer.map(|(token, _)| token),
        secure_cookie: document.secure_cookie.is_some_and(Spanned::into_inner),
    }
}
