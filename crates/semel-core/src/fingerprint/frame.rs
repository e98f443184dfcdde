//! Length framing: no two lists of fields are the same bytes.

use sha2::{Digest as _, Sha256};

use super::{Fingerprint, VERSION};

/// What is hashed: one domain never collides with another.
#[derive(Debug, Clone, Copy)]
pub(super) enum Domain {
    Request,
    Command,
}

/// The kind of a field. The numbers are part of version 1: never change or reuse one.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(super) enum Tag {
    Domain = 1,
    Operation = 2,
    Method = 3,
    Path = 4,
    Query = 5,
    NoQuery = 6,
    NoMedia = 7,
    Essence = 8,
    Charset = 9,
    UnreadableMedia = 10,
    HeaderName = 11,
    HeaderLine = 12,
    Command = 13,
    Authority = 14,
    NoAuthority = 15,

    EmptyBody = 32,
    JsonBody = 33,
    RefusedJsonBody = 34,
    FormBody = 35,
    FormName = 36,
    FormValue = 37,
    FormNoValue = 38,
    MultipartBody = 39,
    PartName = 40,
    PartFilename = 41,
    PartType = 42,
    PartBytes = 43,
    RawBody = 44,
    Coding = 45,
    CodedBody = 46,
}

/// Every field is its tag, its length in 8 bytes, and its bytes.
pub(super) struct Frame(Sha256);

impl Frame {
    /// Version 1 of a domain.
    pub(super) fn new(domain: Domain) -> Self {
        let mut frame = Self(Sha256::new());
        let name: &[u8] = match domain {
            Domain::Request => b"semel fingerprint 1 request",
            Domain::Command => b"semel fingerprint 1 command",
        };
        frame.field(Tag::Domain, name);
        frame
    }

    pub(super) fn field(&mut self, tag: Tag, bytes: &[u8]) {
        let mut head = [0; 9];
        head[0] = tag as u8;
        head[1..].copy_from_slice(&(bytes.len() as u64).to_be_bytes());
        self.0.update(head);
        self.0.update(bytes);
    }

    /// A field that says how many fields of a list follow.
    pub(super) fn count(&mut self, tag: Tag, count: usize) {
        self.field(tag, &(count as u64).to_be_bytes());
    }

    pub(super) fn finish(self) -> Fingerprint {
        Fingerprint::from_parts(VERSION, self.0.finalize().into())
    }
}
