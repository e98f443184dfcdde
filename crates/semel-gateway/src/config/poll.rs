//! Where a poll asks: a method, and an address with places for what is asked about.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use http::uri::{Authority, Scheme};
use semel_core::Record;

/// What may stand in a poll's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    OperationId,
    Key,
    DownstreamKey,
    Tenant,
}

const PLACES: [(&str, Place); 4] = [
    ("operation_id", Place::OperationId),
    ("key", Place::Key),
    ("downstream_key", Place::DownstreamKey),
    ("tenant", Place::Tenant),
];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Box<str>),
    Of(Place),
}

/// `GET /payments/by-operation/{operation_id}`, or the same with a host of its own.
#[derive(Clone, PartialEq, Eq)]
pub struct Poll {
    text: Box<str>,
    /// `None` asks the upstream.
    server: Option<(Scheme, Authority)>,
    pieces: Vec<Piece>,
}

impl Poll {
    /// Who is asked; `None` is the upstream.
    pub fn server(&self) -> Option<(&Scheme, &Authority)> {
        self.server
            .as_ref()
            .map(|(scheme, authority)| (scheme, authority))
    }

    /// Path and query for an operation. `None` where its key or tenant would be taken for a way
    /// through the path: `.` and `..` mean something to servers however they are written.
    pub fn path(&self, operation: &Record) -> Option<String> {
        let mut path = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => path.push_str(text),
                Piece::Of(Place::OperationId) => path.push_str(&operation.id.to_string()),
                Piece::Of(Place::DownstreamKey) => path.push_str(&operation.id.downstream_key("")),
                Piece::Of(Place::Key) => encode(operation.identity.key().as_str(), &mut path)?,
                Piece::Of(Place::Tenant) => encode(operation.identity.tenant(), &mut path)?,
            }
        }
        Some(path)
    }

    pub(super) fn names(&self, place: Place) -> bool {
        self.pieces.contains(&Piece::Of(place))
    }
}

/// Everything but letters, digits, `-`, `_`, `.` and `~`, which mean themselves everywhere.
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
                "{text:?} cannot be polled: {problem}; \
                 write \"GET /payments/by-operation/{{operation_id}}\""
            )
        };
        let address = match text.split_once(' ') {
            Some(("GET", address)) => address,
            Some(_) => return Err(refused("asking changes nothing, so the method is GET")),
            None => return Err(refused("it is not a method, a blank and an address")),
        };
        if address
            .bytes()
            .any(|byte| !byte.is_ascii_graphic() || byte == b'#')
        {
            return Err(refused("an address has only visible ASCII, and no `#`"));
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
                    "the address begins with neither `/` nor `https://`",
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

/// Who is asked is never for a client's key to say.
fn host(text: &str) -> Result<Authority, &'static str> {
    if text.contains(['{', '}']) {
        return Err("the host cannot come from an operation");
    }
    if text.contains('@') {
        return Err("it has a user name, which would not be sent");
    }
    let authority: Authority = text.parse().map_err(|_| "it has no host")?;
    let rest = text.strip_prefix(authority.host());
    match (authority.host(), rest, authority.port_u16()) {
        ("", _, _) => Err("it has no host"),
        (_, Some(""), _) | (_, _, Some(1..)) => Ok(authority),
        (_, _, _) => Err("the port is not from 1 to 65535"),
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
            .ok_or("a brace is not closed, or not opened")?;
        let (_, place) = PLACES
            .iter()
            .find(|(known, _)| *known == name)
            .ok_or_else(|| {
                let known = PLACES.map(|(known, _)| format!("{{{known}}}")).join(", ");
                format!("{{{name}}} is none of {known}")
            })?;
        pieces.push(Piece::Text(std::mem::take(&mut literal).into()));
        pieces.push(Piece::Of(*place));
        rest = after;
    }
    literal.push_str(rest);
    pieces.push(Piece::Text(literal.into()));
    pieces.retain(|piece| *piece != Piece::Text("".into()));
    // The literal parts have to be right by themselves: what is put between them is encoded.
    let shown: String = pieces
        .iter()
        .map(|piece| match piece {
            Piece::Text(text) => &**text,
            Piece::Of(_) => "x",
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
        Ok(_) | Err(_) => Err("it is no address".to_owned()),
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
