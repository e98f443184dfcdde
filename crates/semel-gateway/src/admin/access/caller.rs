//! The authenticated caller, as handlers see it.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;
use semel_core::{Key, Timestamp};

use super::secret::Hash;
use super::session::{SessionInfo, Sessions};
use crate::admin::problem::Problem;

/// The maximum length of a caller's name, in bytes.
pub(in crate::admin) const MAX_NAME: usize = 64;

/// The role of a caller. Ordered: an operator may do everything a viewer may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::admin) enum Role {
    /// Reads everything except stored bodies.
    Viewer,
    /// Also acts on records and reveals stored bodies.
    Operator,
}

impl Role {
    pub(in crate::admin) fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
        }
    }
}

/// A login session.
#[derive(Clone, Copy, Debug)]
pub(in crate::admin) struct Session {
    /// The latest end; 30 minutes without a request end it earlier.
    pub(in crate::admin) until: Timestamp,
}

/// An authenticated caller.
#[derive(Clone, Debug)]
pub(in crate::admin) struct Caller {
    pub(in crate::admin) role: Role,
    /// The name given at login.
    pub(in crate::admin) name: Option<Arc<str>>,
    /// `None` for bearer tokens and loopback callers.
    pub(in crate::admin) session: Option<Session>,
    csrf: Arc<str>,
    loopback: bool,
    /// Where its session is kept.
    live: Option<(Arc<Sessions>, Hash)>,
}

impl Caller {
    /// A loopback caller, where no token is configured.
    pub(super) fn loopback(csrf: Option<Arc<str>>) -> Self {
        Self {
            role: Role::Operator,
            name: None,
            session: None,
            csrf: csrf.unwrap_or_default(),
            loopback: true,
            live: None,
        }
    }

    pub(super) fn bearer(role: Role) -> Self {
        Self {
            role,
            name: None,
            session: None,
            csrf: Arc::default(),
            loopback: false,
            live: None,
        }
    }

    pub(super) fn session(session: SessionInfo, sessions: Arc<Sessions>, id: Hash) -> Self {
        Self {
            role: session.role,
            name: session.name,
            session: Some(session.session),
            csrf: session.csrf,
            loopback: false,
            live: Some((sessions, id)),
        }
    }

    /// Whether its session has not ended since the request began; always true without a session.
    pub(in crate::admin) fn is_live(&self, now: Timestamp) -> bool {
        let session = self.live.as_ref();
        session.is_none_or(|(sessions, id)| sessions.is_live(id, now))
    }

    /// The CSRF token that the caller's forms carry; empty for bearer tokens.
    pub(in crate::admin) fn csrf(&self) -> &str {
        &self.csrf
    }

    pub(in crate::admin) fn has_role(&self, wanted: Role) -> bool {
        self.role >= wanted
    }

    /// Whether no token is configured, so that every loopback caller has the operator role.
    pub(in crate::admin) fn is_loopback(&self) -> bool {
        self.loopback
    }

    /// # Errors
    /// `admin_not_an_operator` for viewers.
    pub(in crate::admin) fn require_operator(&self) -> Result<(), Problem> {
        if self.has_role(Role::Operator) {
            Ok(())
        } else {
            Err(Problem::not_an_operator())
        }
    }

    /// A key as this caller may see it: viewers see the short hash that is in the logs. Its holder
    /// can read the stored response.
    pub(in crate::admin) fn shown_key(&self, key: &Key) -> String {
        match self.role {
            Role::Operator => key.as_str().to_owned(),
            Role::Viewer => format!("#{}", key.short_hash()),
        }
    }

    /// The actor that the history lists. `given` is the name in the request.
    ///
    /// # Errors
    /// For an invalid name, or one that differs from the session's: the history must not contradict
    /// the session.
    pub(in crate::admin) fn actor(&self, given: Option<&str>) -> Result<String, Problem> {
        let given = parse_name(given.unwrap_or_default()).ok_or_else(|| {
            Problem::invalid_decision(format!(
                "invalid `by`: use a name of at most {MAX_NAME} bytes without control characters"
            ))
        })?;
        let name = match (self.name.as_deref(), given) {
            (Some(name), "") => name,
            (Some(name), given) if name != given => {
                return Err(Problem::invalid_decision(format!(
                    "you are logged in as {name:?}; omit `by`, or log in with the other name"
                )));
            }
            (_, given) => given,
        };
        let role = self.role.as_str();
        Ok(if name.is_empty() {
            role.to_owned()
        } else {
            format!("{role}:{name}")
        })
    }
}

/// The trimmed name, which may be empty; `None` if it is too long or has control characters.
pub(super) fn parse_name(text: &str) -> Option<&str> {
    let text = text.trim();
    (text.len() <= MAX_NAME && !text.chars().any(char::is_control)).then_some(text)
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        // Absent only on a route outside the guard: refuse.
        let caller = parts.extensions.get::<Self>().cloned();
        caller.ok_or_else(Problem::unauthenticated)
    }
}
