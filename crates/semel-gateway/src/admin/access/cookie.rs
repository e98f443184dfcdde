//! The session cookie.

use http::HeaderMap;
use http::header::{COOKIE, HeaderValue};

use super::secret::Secret;

/// The cookie's name and attributes.
#[derive(Clone, Copy)]
pub(super) struct Cookie {
    /// Whether browsers send it over TLS only. Configured, because the listener speaks plain HTTP
    /// and does not trust forwarding headers.
    pub(super) secure: bool,
}

impl Cookie {
    /// Browsers accept the prefix `__Host-` only with `Secure`, `Path=/` and no `Domain`, so a
    /// sibling domain cannot plant a cookie of this name.
    fn name(self) -> &'static str {
        if self.secure {
            "__Host-semel_session"
        } else {
            "semel_session"
        }
    }

    /// The session id of the request; `None` if the cookie occurs twice, since one is not ours.
    pub(super) fn read(self, headers: &HeaderMap) -> Option<&str> {
        let lines = headers.get_all(COOKIE).iter();
        let pairs = lines
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(';'))
            .filter_map(|pair| pair.trim().split_once('='));
        let mut ours = pairs.filter(|(name, _)| *name == self.name());
        match (ours.next(), ours.next()) {
            (Some((_, value)), None) => Some(value),
            (_, _) => None,
        }
    }

    /// Not readable by scripts, not sent cross-site, and gone when the browser closes.
    pub(super) fn set(self, id: &Secret) -> Option<HeaderValue> {
        self.line(id.text(), "")
    }

    pub(super) fn remove(self) -> Option<HeaderValue> {
        self.line("", "; Max-Age=0")
    }

    fn line(self, value: &str, more: &str) -> Option<HeaderValue> {
        let name = self.name();
        let secure = if self.secure { "; Secure" } else { "" };
        let line = format!("{name}={value}; HttpOnly; SameSite=Strict; Path=/{secure}{more}");
        HeaderValue::try_from(line).ok()
    }
}
