//! The cookie that carries a session.

use http::HeaderMap;
use http::header::{COOKIE, HeaderValue};

use super::secret::Secret;

/// Its name and attributes.
#[derive(Clone, Copy)]
pub(super) struct Cookie {
    /// Whether browsers send it by TLS only. The listener speaks plain HTTP and believes no
    /// header about what is in front of it, so this is configured.
    pub(super) secure: bool,
}

impl Cookie {
    /// With the prefix a browser takes it only as we set it: secure, for this host and the whole
    /// of it. Nobody on a neighbouring name can plant one.
    fn name(self) -> &'static str {
        if self.secure {
            "__Host-semel_session"
        } else {
            "semel_session"
        }
    }

    /// What the request carries. Two of the name are none: one of them is not ours.
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

    /// No script reads it, no other site's request carries it, and it goes when the browser does.
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
