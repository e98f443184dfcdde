//! `[admin]`: the listener for operators.

use std::str::FromStr;

use toml::Spanned;

use super::problem::Origin;
use super::table::Table;
use super::{Listen, Pick, loopback, read_file};
use crate::admin::{Access, Token};

/// The listener for operators.
#[derive(Clone, Debug)]
pub struct AdminConfig {
    /// Its address; on this machine unless there is a token.
    pub listen: Listen,
    /// What operators present.
    pub token: Option<Token>,
    /// What viewers present; only where operators present one, and never the same.
    pub viewer_token: Option<Token>,
    /// Whether browsers are to send the session's cookie by TLS only.
    pub secure_cookie: bool,
}

impl AdminConfig {
    /// Who may come in.
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

/// What the file says of it.
#[derive(Default)]
pub(super) struct AdminDocument {
    listen: Option<Spanned<Listen>>,
    token: Option<Spanned<Token>>,
    viewer_token: Option<Spanned<Token>>,
    secure_cookie: Option<Spanned<bool>>,
    /// Whether there is a key for the token at all, right or wrong.
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
    pick: &Pick<'_>,
) -> AdminConfig {
    let problems = pick.problems;
    let listen = pick.of(
        listen,
        "--admin-listen",
        "SEMEL_ADMIN_LISTEN",
        document.listen,
    );
    let token = pick.of(None, "", "SEMEL_ADMIN_TOKEN", document.token);
    let viewer = pick.of(None, "", "SEMEL_VIEWER_TOKEN", document.viewer_token);
    // One that is there and wrong was reported, and is not missing.
    let tokenless = token.is_none() && !document.token_given && !pick.is_set("SEMEL_ADMIN_TOKEN");

    let (listen, listen_from) = listen.unwrap_or_else(|| (loopback(8081), Origin::Default));
    if !listen.is_loopback() && token.is_none() {
        problems.from(
            listen_from,
            format!(
                "{listen} can be reached from other machines, and there is no admin token; set \
                 SEMEL_ADMIN_TOKEN or `[admin] token_file`, or listen on 127.0.0.1"
            ),
        );
    }
    match (&token, &viewer) {
        (Some((token, _)), Some((viewer, from))) if token == viewer => problems.from(
            from.clone(),
            "the token of viewers is that of operators, so that viewers could decide; give them \
             another",
        ),
        (None, Some((_, from))) if tokenless => problems.from(
            from.clone(),
            "viewers have a token and operators have none; set SEMEL_ADMIN_TOKEN or `[admin] \
             token_file`, too",
        ),
        (_, _) => {}
    }
    if let Some(secure) = &document.secure_cookie
        && tokenless
    {
        problems.at(
            secure.span(),
            "there is no cookie without an admin token; set SEMEL_ADMIN_TOKEN or `[admin] \
             token_file`, or leave `secure_cookie` out",
        );
    }
    AdminConfig {
        listen,
        token: token.map(|(token, _)| token),
        viewer_token: viewer.map(|(token, _)| token),
        secure_cookie: document.secure_cookie.is_some_and(Spanned::into_inner),
    }
}
