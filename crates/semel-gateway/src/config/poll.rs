//! A request to the application or a provider about a record: a method, and a URL with placeholders.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use http::uri::{Authority, Scheme};
use semel_core::{Identity, OperationId, Record, Resource};

/// What a placeholder in the URL stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placeholder {
    OperationId,
    Key,
    DownstreamKey,
    Tenant,
    ResourceId,
    ResourceType,
}

const PLACEHOLDERS: [(&str, Placeholder); 6] = [
    ("operation_id", Placeholder::OperationId),
    ("key", Placeholder::Key),
    ("downstream_key", Placeholder::DownstreamKey),
    ("tenant", Placeholder::Tenant),
    ("resource_id", Placeholder::ResourceId),
    ("resource_type", Placeholder::ResourceType),
];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Box<str>),
    Placeholder(Placeholder),
}

/// `GET /payments/by-operation/{operation_id}`, or the same with a host.
#[derive(Clone, PartialEq, Eq)]
pub struct Poll {
    text: Box<str>,
    /// `None` is the upstream.
    server: Option<(Scheme, Authority)>,
    pieces: Vec<Piece>,
}

impl Poll {
    /// The server to poll; `None` is the upstream.
    pub fn server(&self) -> Option<(&Scheme, &Authority)> {
        self.server
            .as_ref()
            .map(|(scheme, authority)| (scheme, authority))
    }

    /// Path and query for a record. `None` if a value is missing, or is `.` or `..`: servers resolve
    /// these path segments even if they are percent-encoded.
    pub fn path(&self, record: &Record) -> Option<String> {
        self.path_for(record.id, &record.identity, record.resource.as_ref())
    }

    /// As [`path`](Self::path), for a record that is not at hand.
    pub fn path_for(
        &self,
        id: OperationId,
        identity: &Identity,
        resource: Option<&Resource>,
    ) -> Option<String> {
        let mut path = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => path.push_str(text),
                Piece::Placeholder(Placeholder::OperationId) => {
                    path.push_str(&id.to_string());
                }
                Piece::Placeholder(Placeholder::DownstreamKey) => {
                    path.push_str(&id.downstream_key(""));
                }
                Piece::Placeholder(Placeholder::Key) => {
                    encode(identity.key().as_str(), &mut path)?;
                }
                Piece::Placeholder(Placeholder::Tenant) => {
                    encode(identity.tenant(), &mut path)?;
                }
                Piece::Placeholder(Placeholder::ResourceId) => encode(&resource?.id, &mut path)?,
                Piece::Placeholder(Placeholder::ResourceType) => {
                    encode(&resource?.kind, &mut path)?;
                }
            }
        }
        Some(path)
    }

    pub(super) fn contains(&self, placeholder: Placeholder) -> bool {
        self.pieces.contains(&Piece::Placeholder(placeholder))
    }
}

/// Percent-encodes everything but the unreserved characters of RFC 3986.
fn encode(value: &str, path: &mut String) -> Option<()> {
    use fmt::Write as _;
    if [".", ".."].contains(&value) {
        return None;
    }
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            path.push(char::from(byte));
        } else {
            write!(path, "%{byte:02X}").ok()?;
        }
    }
    Some(())
}

impl FromStr for Poll {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = |problem: &str| {
            format!(
                "invalid request {text:?}: {problem}; \
                 write \"GET /payments/by-operation/{{operation_id}}\""
            )
        };
        let address = match text.split_once(' ') {
            Some(("GET", address)) => address,
            Some(_) => return Err(refused("the method must be GET")),
            None => return Err(refused("it is not a method, a space and an address")),
        };
        if address
            .bytes()
            .any(|byte| !byte.is_ascii_graphic() || byte == b'#')
        {
            return Err(refused("the address must be visible ASCII without `#`"));
        }
        let (server, path) = match address.split_once("://") {
            None if address.starts_with('/') => (None, address),
            Some(("http" | "https", rest)) => {
                let end = rest.find(['/', '?']).unwrap_or(rest.len());
                let (authority, path) = rest.split_at(end);
                let scheme = if address.starts_with("https") {
                    Scheme::HTTPS
                } else {
                    Scheme::HTTP
                };
                (Some((scheme, host(authority).map_err(refused)?)), path)
            }
            None | Some(_) => {
                return Err(refused(
                    "the address must begin with `/`, `http://` or `https://`",
                ));
            }
        };
        if !path.starts_with('/') || path.starts_with("//") {
            return Err(refused("the address has no path"));
        }
        let pieces = pieces(path).map_err(|problem| refused(&problem))?;
        Ok(Self {
            text: text.into(),
            server,
            pieces,
        })
    }
}

/// The host must be literal: a client's key must not choose the server.
fn host(text: &str) -> Result<Authority, &'static str> {
    if text.contains(['{', '}']) {
        return Err("the host must not contain placeholders");
    }
    if text.contains('@') {
        return Err("remove the user name: it would not be sent");
    }
    let authority: Authority = text.parse().map_err(|_| "it has no host")?;
    let rest = text.strip_prefix(authority.host());
    match (authority.host(), rest, authority.port_u16()) {
        ("", _, _) => Err("it has no host"),
        (_, Some(""), _) | (_, _, Some(1..)) => Ok(authority),
        (_, _, _) => Err("the port must be from 1 to 65535"),
    }
}

fn pieces(path: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut rest = path;
    while let Some(at) = rest.find(['{', '}']) {
        let (text, braced) = rest.split_at(at);
        literal.push_str(text);
        let (name, after) = braced
            .strip_prefix('{')
            .and_then(|braced| braced.split_once('}'))
            .ok_or("it has an unmatched brace")?;
        let (_, placeholder) = PLACEHOLDERS
            .iter()
            .find(|(known, _)| *known == name)
            .ok_or_else(|| {
                let known = PLACEHOLDERS
                    .map(|(known, _)| format!("{{{known}}}"))
                    .join(", ");
                format!("unknown placeholder {{{name}}}; use one of {known}")
            })?;
        pieces.push(Piece::Text(std::mem::take(&mut literal).into()));
        pieces.push(Piece::Placeholder(*placeholder));
        rest = after;
    }
    literal.push_str(rest);
    pieces.push(Piece::Text(literal.into()));
    pieces.retain(|piece| *piece != Piece::Text("".into()));
    // Only the literal parts need a check: the values of placeholders are percent-encoded.
    let shown: String = pieces
        .iter()
        .map(|piece| match piece {
            Piece::Text(text) => &**text,
            Piece::Placeholder(_) => "x",
        })
        .collect();
    match shown.parse::<Uri>() {
        Ok(uri)
            if uri
                .path_and_query()
                .is_some_and(|path| path.as_str() == shown) =>
        {
            Ok(pieces)
        }
        Ok(_) | Err(_) => Err("it is not a valid URL".to_owned()),
    }
}

impl fmt::Display for Poll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Poll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}
