//! `Content-Type`, as far as a fingerprint needs it.

/// A media type: names lowercased, parameters other than these two ignored.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Media {
    /// `type/subtype`.
    pub(super) essence: String,
    pub(super) charset: Option<String>,
    /// Of a multipart body; only for parsing, never hashed.
    pub(super) boundary: Option<Vec<u8>>,
}

impl Media {
    /// Nothing where the header is malformed, or names one of the two parameters twice.
    pub(super) fn parse(header: &[u8]) -> Option<Self> {
        let (essence, mut rest) = until(header.trim_ascii(), b';');
        let essence = essence.trim_ascii_end();
        let (kind, subtype) = until(essence, b'/');
        if !is_token(kind) || !is_token(subtype.strip_prefix(b"/")?) {
            return None;
        }
        let mut media = Self {
            essence: lower(essence),
            charset: None,
            boundary: None,
        };
        while let Some(parameters) = rest.strip_prefix(b";") {
            rest = media.parameter(parameters.trim_ascii_start())?;
        }
        rest.is_empty().then_some(media)
    }

    pub(super) fn is_json(&self) -> bool {
        self.essence == "application/json" || self.essence.ends_with("+json")
    }

    /// Whether the body may be read as UTF-8. In another charset the same bytes may mean
    /// something else, and only whole bodies can be compared.
    pub(super) fn is_utf8(&self) -> bool {
        matches!(self.charset.as_deref(), None | Some("utf-8" | "us-ascii"))
    }

    /// Takes one `name=value` (or nothing, which the RFC allows) and returns the rest.
    fn parameter<'h>(&mut self, text: &'h [u8]) -> Option<&'h [u8]> {
        if text.is_empty() || text[0] == b';' {
            return Some(text);
        }
        let (name, rest) = until(text, b'=');
        let (value, rest) = value(rest.strip_prefix(b"=")?)?;
        if !is_token(name) {
            return None;
        }
        if name.eq_ignore_ascii_case(b"charset") {
            once(&mut self.charset, lower(value))?;
        } else if name.eq_ignore_ascii_case(b"boundary") {
            once(&mut self.boundary, value.to_vec())?;
        }
        Some(rest.trim_ascii_start())
    }
}

/// A token or quoted string at the start of `text`, and what follows it. An escape inside
/// quotes is read differently by different servers: nothing then.
pub(super) fn value(text: &[u8]) -> Option<(&[u8], &[u8])> {
    if let Some(quoted) = text.strip_prefix(b"\"") {
        let end = quoted.iter().position(|&byte| byte == b'"')?;
        let (value, rest) = quoted.split_at(end);
        return (!value.contains(&b'\\')).then_some((value, &rest[1..]));
    }
    let end = text
        .iter()
        .position(|&byte| !is_tchar(byte))
        .unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

pub(super) fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().copied().all(is_tchar)
}

/// Splits before the first `mark`.
pub(super) fn until(text: &[u8], mark: u8) -> (&[u8], &[u8]) {
    text.split_at(
        text.iter()
            .position(|&byte| byte == mark)
            .unwrap_or(text.len()),
    )
}

pub(super) fn once<T>(slot: &mut Option<T>, value: T) -> Option<()> {
    slot.replace(value).is_none().then_some(())
}

fn is_tchar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Tokens are ASCII; a quoted charset need not be, and then is no charset we know.
fn lower(text: &[u8]) -> String {
    String::from_utf8_lossy(text).to_ascii_lowercase()
}
