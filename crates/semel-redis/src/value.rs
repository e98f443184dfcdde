//! What is kept in Redis: one completed answer, all that says whom it belongs to, and a
//! checksum over both.
//!
//! Numbers are big-endian, and every part of variable length stands behind its length, so one
//! entry has exactly one form. Whatever is not that form is refused, wherever it comes from:
//! another program under our keys, a newer Semel, a Redis that returns half of it.
//!
//! ```text
//! magic 6 | format 2 | epoch 8 | scope 1 | tenant | operation | key
//! fingerprint version 2, digest 32 | id 16 | status 2 | schema version 2
//! expires at 8 | body expires at 0/1 [8] | resource 0/1 [kind, id] | headers | body
//! SHA-256 of all of that 32
//! ```
//!
//! The checksum is against accidents. Whoever may write to Redis can make one.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use semel_core::store::Epoch;
use semel_core::transition::Replay;
use semel_core::{
    Fingerprint, Identity, Key, KeyScope, OperationId, Reserve, Resource, Response, Timestamp,
    headers,
};
use sha2::{Digest as _, Sha256};

/// The largest value. What is larger is rare, and on the one connection that all share it would
/// hold up the small ones behind it.
pub(crate) const MAX_BYTES: usize = 256 << 10;

const MAGIC: &[u8; 6] = b"semel\0";

/// Another layout is another number: then old values are of no use, and that is all.
const FORMAT: u16 = 1;

const CHECKSUM_BYTES: usize = 32;

/// A completed answer, and the request that it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The store's when it was asked for the answer.
    pub(crate) epoch: Epoch,
    pub(crate) identity: Identity,
    /// The record's own, not just one of a request's.
    pub(crate) fingerprint: Fingerprint,
    pub(crate) replay: Replay,
}

/// Why an entry is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// It belongs to somebody else: Redis gave what it was not asked for.
    Foreign,
    /// The same key asks for something else. The store knows what to say to that.
    Misused,
    /// Something was erased since.
    Outdated,
    /// The window or the body's time is over.
    Over,
}

impl Entry {
    /// The form in which it is kept; `None` where it is not kept: without a body, or too large.
    pub(crate) fn encode(&self) -> Option<Bytes> {
        let response = &self.replay.response;
        let body = response.body.as_ref()?;
        let lines = headers::encode(&response.headers);
        // Before anything is copied.
        if body.len() + lines.len() > MAX_BYTES {
            return None;
        }
        let mut out = BytesMut::with_capacity(512 + lines.len() + body.len());
        out.put_slice(MAGIC);
        out.put_u16(FORMAT);
        out.put_u64(self.epoch.0);
        out.put_u8(match self.identity.scope() {
            KeyScope::Operation => 0,
            KeyScope::Tenant => 1,
        });
        put(&mut out, self.identity.tenant().as_bytes())?;
        put(&mut out, self.identity.operation().as_bytes())?;
        put(&mut out, self.identity.key().as_str().as_bytes())?;
        out.put_u16(self.fingerprint.version());
        out.put_slice(self.fingerprint.digest());
        out.put_slice(self.replay.id.as_bytes());
        out.put_u16(response.status);
        out.put_u16(response.schema_version);
        out.put_i64(self.replay.expires_at.as_micros());
        out.put_u8(self.replay.body_expires_at.is_some().into());
        if let Some(at) = self.replay.body_expires_at {
            out.put_i64(at.as_micros());
        }
        out.put_u8(self.replay.resource.is_some().into());
        if let Some(resource) = &self.replay.resource {
            put(&mut out, resource.kind.as_bytes())?;
            put(&mut out, resource.id.as_bytes())?;
        }
        put(&mut out, &lines)?;
        put(&mut out, body)?;
        let checksum = Sha256::digest(&out);
        out.put_slice(&checksum);
        (out.len() <= MAX_BYTES).then(|| out.freeze())
    }

    /// The entry of a kept form; `None` where it is not one.
    pub(crate) fn decode(mut kept: Bytes) -> Option<Self> {
        if kept.len() > MAX_BYTES {
            return None;
        }
        let checksum = kept.split_off(kept.len().checked_sub(CHECKSUM_BYTES)?);
        if Sha256::digest(&kept)[..] != checksum[..] {
            return None;
        }
        if array(&mut kept)? != *MAGIC || kept.try_get_u16().ok()? != FORMAT {
            return None;
        }
        let epoch = Epoch(kept.try_get_u64().ok()?);
        let scope = match kept.try_get_u8().ok()? {
            0 => KeyScope::Operation,
            1 => KeyScope::Tenant,
            _ => return None,
        };
        let (tenant, operation, key) = (text(&mut kept)?, text(&mut kept)?, text(&mut kept)?);
        let identity = Identity::new(tenant, operation, Key::new(key).ok()?)
            .ok()?
            .scoped(scope);
        let fingerprint = Fingerprint::from_parts(kept.try_get_u16().ok()?, array(&mut kept)?);
        let id = OperationId::from_bytes(array(&mut kept)?);
        let status = kept.try_get_u16().ok()?;
        let schema_version = kept.try_get_u16().ok()?;
        let expires_at = instant(&mut kept)?;
        let body_expires_at = if flag(&mut kept)? {
            Some(instant(&mut kept)?)
        } else {
            None
        };
        let resource = if flag(&mut kept)? {
            Some(Resource {
                kind: text(&mut kept)?,
                id: text(&mut kept)?,
            })
        } else {
            None
        };
        let headers = headers::decode(take(&mut kept)?)?;
        let body = take(&mut kept)?;
        if kept.has_remaining() {
            return None;
        }
        Some(Self {
            epoch,
            identity,
            fingerprint,
            replay: Replay {
                id,
                response: Response {
                    status,
                    headers,
                    body: Some(body),
                    schema_version,
                },
                resource,
                expires_at,
                body_expires_at,
            },
        })
    }

    /// The answer to `request`, at this instant of the store's clock and in this epoch.
    pub(crate) fn answer(
        self,
        request: &Reserve,
        epoch: Option<Epoch>,
        now: Timestamp,
    ) -> Result<Replay, Unfit> {
        if !self.identity.names_same_record(&request.identity) {
            return Err(Unfit::Foreign);
        }
        if !request.fingerprints.matches(self.fingerprint) {
            return Err(Unfit::Misused);
        }
        if epoch != Some(self.epoch) {
            return Err(Unfit::Outdated);
        }
        if self.over_at() <= now {
            return Err(Unfit::Over);
        }
        Ok(self.replay)
    }

    /// From when on it is no answer any more: the end of the window or of the body's time,
    /// whichever comes first.
    pub(crate) fn over_at(&self) -> Timestamp {
        let end = self.replay.expires_at;
        self.replay
            .body_expires_at
            .map_or(end, |body| body.min(end))
    }
}

fn put(out: &mut BytesMut, part: &[u8]) -> Option<()> {
    out.put_u32(u32::try_from(part.len()).ok()?);
    out.put_slice(part);
    Some(())
}

fn take(kept: &mut Bytes) -> Option<Bytes> {
    let length = kept.try_get_u32().ok()? as usize;
    (length <= kept.len()).then(|| kept.split_to(length))
}

fn text(kept: &mut Bytes) -> Option<Box<str>> {
    Some(std::str::from_utf8(&take(kept)?).ok()?.into())
}

fn array<const N: usize>(kept: &mut Bytes) -> Option<[u8; N]> {
    let mut array = [0; N];
    kept.try_copy_to_slice(&mut array).ok()?;
    Some(array)
}

fn instant(kept: &mut Bytes) -> Option<Timestamp> {
    kept.try_get_i64().ok().map(Timestamp::from_micros)
}

fn flag(kept: &mut Bytes) -> Option<bool> {
    match kept.try_get_u8().ok()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
