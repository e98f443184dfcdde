//! Whoever was let in, as handlers see them.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;
use semel_core::Timestamp;

use super::session::Known;
use crate::admin::problem::Problem;

/// Longest name of a person, in bytes.
pub(in crate::admin) const MAX_NAME: usize = 64;

/// What a caller may do. Ordered: an operator may all that a viewer may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::admin) enum Role {
    /// Looks, at everything but stored bodies.
    Viewer,
    /// Decides.
    Operator,
}

impl Role {
    /// As it is shown.
    pub(in crate::admin) fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
        }
    }
}

/// Since when somebody is logged in, and until when at the latest.
#[derive(Clone, Copy, Debug)]
pub(in crate::admin) struct Session {
    /// When it ends; half an hour without a request ends it, too.
    pub(in crate::admin) until: Timestamp,
}

/// Whoever was let in.
#[derive(Clone, Debug)]
pub(in crate::admin) struct Caller {
    /// What they may do.
    pub(in crate::admin) role: Role,
    /// Who is at the keyboard, where they said so when they logged in.
    pub(in crate::admin) name: Option<Arc<str>>,
    /// Where they logged in.
    pub(in crate::admin) session: Option<Session>,
    csrf: Arc<str>,
    loopback: bool,
}

impl Caller {
    /// Somebody on this machine, where there is no token.
    pub(super) fn neighbour(csrf: Option<Arc<str>>) -> Self {
        Self {
            role: Role::Operator,
            name: None,
            session: None,
            csrf: csrf.unwrap_or_default(),
            loopback: true,
        }
    }

    pub(super) fn bearer(role: Role) -> Self {
        Self {
            role,
            name: None,
            session: None,
            csrf: Arc::default(),
            loopback: false,
        }
    }

    pub(super) fn session(known: Known) -> Self {
        Self {
            role: known.role,
            name: known.name,
            session: Some(known.session),
            csrf: known.csrf,
            loopback: false,
        }
    }

    /// What every form of theirs carries. Empty for those whose forms need none.
    pub(in crate::admin) fn csrf(&self) -> &str {
        &self.csrf
    }

    /// Whether they may do what takes `wanted`.
    pub(in crate::admin) fn may(&self, wanted: Role) -> bool {
        self.role >= wanted
    }

    /// Whether there is no token, so that everybody on this machine is the operator.
    pub(in crate::admin) fn is_loopback(&self) -> bool {
        self.loopback
    }

    /// # Errors
    /// The refusal, unless it is an operator.
    pub(in crate::admin) fn operator(&self) -> Result<(), Problem> {
        if self.may(Role::Operator) {
            Ok(())
        } else {
            Err(Problem::not_an_operator())
        }
    }

    /// Who decides, for the history. `said` is what the request says of it.
    ///
    /// # Errors
    /// A name that cannot be one, or one that is another's than who logged in: the history is
    /// not to say what the session contradicts.
    pub(in crate::admin) fn actor(&self, said: Option<&str>) -> Result<String, Problem> {
        let said = name(said.unwrap_or_default()).ok_or_else(|| {
            Problem::decision(format!(
                "`by` is a name of at most {MAX_NAME} bytes without control characters"
            ))
        })?;
        let name = match (self.name.as_deref(), said) {
            (Some(name), "") => name,
            (Some(name), said) if name != said => {
                return Err(Problem::decision(format!(
                    "you are logged in as {name:?}; leave `by` out, or log in by the other name"
                )));
            }
            (_, said) => said,
        };
        let role = self.role.as_str();
        Ok(if name.is_empty() {
            role.to_owned()
        } else {
            format!("{role}:{name}")
        })
    }
}

/// The name in a text, which may be none at all; nothing where it cannot be a name.
pub(super) fn name(text: &str) -> Option<&str> {
    let text = text.trim();
    (text.len() <= MAX_NAME && !text.chars().any(char::is_control)).then_some(text)
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        // A route outside the guard has nobody, and refuses rather than guesses.
        let caller = parts.extensions.get::<Self>().cloned();
        caller.ok_or_else(Problem::unauthenticated)
    }
}
