//! The fingerprint of an HTTP request, version 1.

use std::collections::BTreeMap;
use std::fmt;

use super::frame::{Domain, Frame, Tag};
use super::media::Media;
use super::rules::is_credential;
use super::{Authority, Fingerprint, Fingerprints, Rules, form, multipart};
use crate::canonical::{self, NotIJson, Numbers};
use crate::path;

/// What a client asked for. Neither the key nor credentials are part of it.
///
/// Content codings (`gzip` and the like) are undone by the HTTP layer, within bounds, before
/// the body comes here; see [`Request::undecoded`] for those it does not know.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    operation: &'a str,
    method: &'a str,
    path: &'a str,
    query: Option<&'a str>,
    authorities: Vec<Authority<'a>>,
    content_type: Option<&'a [u8]>,
    headers: BTreeMap<String, Vec<&'a [u8]>>,
    body: &'a [u8],
    coding: Option<&'a str>,
}

impl<'a> Request<'a> {
    /// A request without authority, query, content type, semantic headers and body. Method and path
    /// are as they were sent.
    pub fn new(operation: &'a str, method: &'a str, path: &'a str) -> Self {
        Self {
            operation,
            method,
            path,
            query: None,
            authorities: Vec::new(),
            content_type: None,
            headers: BTreeMap::new(),
            body: b"",
            coding: None,
        }
    }

    /// The raw query, without `?`. An empty one (`/payments?`) is not the same as none.
    pub fn query(self, query: &'a str) -> Self {
        Self {
            query: Some(query),
            ..self
        }
    }

    /// The authority that the client named, if it is not added yet. It counts where the rules
    /// [say so](Rules::with_hosts).
    pub fn authority(mut self, authority: Authority<'a>) -> Self {
        if !self.authorities.contains(&authority) {
            self.authorities.push(authority);
        }
        self
    }

    /// The value of `Content-Type`: type, subtype and charset count, in any case. If the
    /// header was there twice, join the lines with a comma: this is no media type, and the
    /// body is hashed raw.
    pub fn content_type(self, value: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self {
            content_type: Some(value.as_ref()),
            ..self
        }
    }

    /// A line of a semantic header (see [`Rules::headers`]). The name's case does not matter;
    /// the order of lines of one name does. An absent header is not the same as an empty one.
    /// Credentials are left out.
    pub fn header(mut self, name: &str, value: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        let name = name.to_ascii_lowercase();
        if !is_credential(&name) {
            self.headers.entry(name).or_default().push(value.as_ref());
        }
        self
    }

    /// The whole body, content codings undone.
    pub fn body(self, body: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self {
            body: body.as_ref(),
            ..self
        }
    }

    /// Says that the body still has a content coding which could not be undone: it is hashed
    /// raw, with the coding's name.
    pub fn undecoded(self, coding: &'a str) -> Self {
        Self {
            coding: Some(coding),
            ..self
        }
    }

    /// The fingerprint of the newest version.
    pub fn fingerprint(&self, rules: &Rules) -> Fingerprint {
        self.explain(rules).0
    }

    /// The fingerprints of all versions that a stored record may have.
    pub fn fingerprints(&self, rules: &Rules) -> Fingerprints {
        self.fingerprint(rules).into()
    }

    /// The fingerprint, and which rule the body fell under.
    pub fn explain(&self, rules: &Rules) -> (Fingerprint, Rule) {
        let media = self.content_type.map(Media::parse);
        let mut frame = Frame::new(Domain::Request);
        frame.field(Tag::Operation, self.operation.as_bytes());
        frame.field(Tag::Method, self.method.as_bytes());
        match rules.hosts() {
            Some(_) => frame.field(Tag::Path, path::normalize(self.path).as_bytes()),
            None => frame.field(Tag::Path, self.path.as_bytes()),
        }
        match self.query {
            Some(query) => frame.field(Tag::Query, query.as_bytes()),
            None => frame.field(Tag::NoQuery, b""),
        }
        self.hash_authorities(rules, &mut frame);
        self.hash_media(media.as_ref(), &mut frame);
        for (name, lines) in &self.headers {
            frame.field(Tag::HeaderName, name.as_bytes());
            for line in lines {
                frame.field(Tag::HeaderLine, line);
            }
        }
        let rule = self.hash_body(media.flatten().as_ref(), rules, &mut frame);
        (frame.finish().under(rules.id()), rule)
    }

    fn hash_authorities(&self, rules: &Rules, frame: &mut Frame) {
        let hosts = rules.hosts();
        let Some(hosts) = hosts.and_then(|hosts| hosts.canonical(self.authorities.iter().copied()))
        else {
            return;
        };
        if hosts.is_empty() {
            frame.field(Tag::NoAuthority, b"");
        }
        for host in hosts {
            frame.field(Tag::Authority, &host);
        }
    }

    fn hash_media(&self, media: Option<&Option<Media>>, frame: &mut Frame) {
        match media {
            None => frame.field(Tag::NoMedia, b""),
            Some(None) => {
                frame.field(Tag::UnreadableMedia, self.content_type.unwrap_or_default());
            }
            Some(Some(media)) => {
                frame.field(Tag::Essence, media.essence.as_bytes());
                if let Some(charset) = &media.charset {
                    frame.field(Tag::Charset, charset.as_bytes());
                }
            }
        }
    }

    fn hash_body(&self, media: Option<&Media>, rules: &Rules, frame: &mut Frame) -> Rule {
        if let Some(coding) = self.coding {
            frame.field(Tag::Coding, coding.to_ascii_lowercase().as_bytes());
            frame.field(Tag::CodedBody, self.body);
            return Rule::Undecoded {
                coding: coding.to_owned(),
            };
        }
        if self.body.is_empty() {
            frame.field(Tag::EmptyBody, b"");
            return Rule::Empty;
        }
        let understood = match media {
            None if self.content_type.is_none() => Err("there is no content type"),
            None => Err("the content type cannot be read"),
            Some(media) if !media.is_utf8() => Err("its charset is not UTF-8"),
            Some(media) if media.is_json() => return self.hash_json(rules, frame),
            Some(media) => self.hash_form(media, frame),
        };
        understood.unwrap_or_else(|why| {
            frame.field(Tag::RawBody, self.body);
            Rule::Raw { why }
        })
    }

    fn hash_form(&self, media: &Media, frame: &mut Frame) -> Result<Rule, &'static str> {
        match media.essence.as_str() {
            "application/x-www-form-urlencoded" => {
                form::hash(self.body, frame).map(|pairs| Rule::Form { pairs })
            }
            "multipart/form-data" => multipart::hash(self.body, media.boundary.as_deref(), frame)
                .map(|parts| Rule::Multipart { parts }),
            _ => Err("its media type has no rule of its own"),
        }
    }

    fn hash_json(&self, rules: &Rules, frame: &mut Frame) -> Rule {
        let mut canonical = Vec::with_capacity(self.body.len());
        let written = canonical::parse(self.body).and_then(|mut tree| {
            rules.apply(&mut tree);
            canonical::write(&tree, Numbers::Exact, &mut canonical)
        });
        match written {
            Ok(()) => {
                frame.field(Tag::JsonBody, &canonical);
                Rule::CanonicalJson
            }
            Err(refused) => {
                frame.field(Tag::RefusedJsonBody, self.body);
                Rule::RefusedJson(refused)
            }
        }
    }
}

/// Which rule a body fell under. Its text is for someone who asks why two requests differ.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// No body at all, which differs from `{}` and from `null`.
    Empty,
    /// JSON whose canonical form loses nothing.
    CanonicalJson,
    /// Should be JSON, but its canonical form would lose something: hashed raw.
    RefusedJson(NotIJson),
    /// Decoded pairs of a form.
    Form {
        /// How many.
        pairs: usize,
    },
    /// Parts of a form.
    Multipart {
        /// How many.
        parts: usize,
    },
    /// Byte for byte.
    Raw {
        /// Why no other rule applied.
        why: &'static str,
    },
    /// Byte for byte, still encoded.
    Undecoded {
        /// The name of the coding.
        coding: String,
    },
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("empty body"),
            Self::CanonicalJson => f.write_str("canonical JSON (RFC 8785)"),
            Self::RefusedJson(refused) => write!(f, "raw bytes: {refused}"),
            Self::Form { pairs } => write!(f, "form: {pairs} decoded pairs in order"),
            Self::Multipart { parts } => {
                write!(
                    f,
                    "multipart form: {parts} parts in order, boundary ignored"
                )
            }
            Self::Raw { why } => write!(f, "raw bytes: {why}"),
            Self::Undecoded { coding } => {
                write!(
                    f,
                    "raw bytes: content coding {coding:?} is not one that is undone"
                )
            }
        }
    }
}
