//! The encoding of an entry in Redis: one completed answer, the identity that it belongs to, and a
//! checksum over both.
//!
//! Numbers are big-endian, and every part of variable length is preceded by its length, so one
//! entry has exactly one encoding. Any other value is refused, whether another program wrote it
//! under this key, a newer Semel did, or Redis returned half of it.
//!
//! ```text
//! magic 6 | format 2 | epoch 8 | scope 1 | tenant | operation | key
//! fingerprint version 2, rules 8, digest 32 | id 16 | status 2 | schema version 2
//! expires at 8 | body expires at 0/1 [8] | resource 0/1 [kind, id] | headers | body
//! SHA-256 of all of that 32
//! ```
//!
//! The checksum detects accidental corruption, not attackers who can write to Redis.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use semel_core::fingerprint::RulesId;
use semel_core::store::ErasureEpoch;
use semel_core::transition::Replay;
use semel_core::{
    Fingerprint, Identity, Key, KeyScope, OperationId, Reserve, Resource, Response, Timestamp,
    headers,
};
use sha2::{Digest as _, Sha256};

/// The largest value. Larger answers are rare, and on the one shared connection they would delay
/// the small ones behind them.
pub(crate) const MAX_BYTES: usize = 256 << 10;

const MAGIC: &[u8; 6] = b"semel\0";

/// Every change of the layout needs a new number. Values of another format are ignored.
const FORMAT: u16 = 2;

const CHECKSUM_BYTES: usize = 32;

/// A completed answer, and the request that it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The erasure epoch of the store when it was asked for the answer.
    pub(crate) epoch: ErasureEpoch,
    pub(crate) identity: Identity,
    /// The fingerprint of the record, not just one of those of a request.
    pub(crate) fingerprint: Fingerprint,
    pub(crate) replay: Replay,
}

/// Why an entry does not answer a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// It belongs to another identity: Redis returned another key's entry.
    WrongIdentity,
    /// The same key was used for a different request. The store decides about it.
    FingerprintMismatch,
    /// The store erased a record after the entry was written.
    StaleEpoch,
    /// The replay window or the body's window has ended.
    Expired,
}

impl Entry {
    /// The encoded entry; `None` if it has no body or is too large, and must not be stored.
    pub(crate) fn encode(&self) -> Option<Bytes> {
        let response = &self.replay.response;
        let body = response.body.as_ref()?;
        let lines = headers::encode(&response.headers);
        // Checked before anything is copied.
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
        put_part(&mut out, self.identity.tenant().as_bytes())?;
        put_part(&mut out, self.identity.operation().as_bytes())?;
        put_part(&mut out, self.identity.key().as_str().as_bytes())?;
        out.put_u16(self.fingerprint.version());
        out.put_i64(self.fingerprint.rules().0);
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
            put_part(&mut out, resource.kind.as_bytes())?;
            put_part(&mut out, resource.id.as_bytes())?;
        }
        put_part(&mut out, &lines)?;
        put_part(&mut out, body)?;
        let checksum = Sha256::digest(&out);
        out.put_slice(&checksum);
        (out.len() <= MAX_BYTES).then(|| out.freeze())
    }

    /// Decodes a stored value; `None` if `encode` did not write it.
    pub(crate) fn decode(mut value: Bytes) -> Option<Self> {
        if value.len() > MAX_BYTES {
            return None;
        }
        let checksum = value.split_off(value.len().checked_sub(CHECKSUM_BYTES)?);
        if Sha256::digest(&value)[..] != checksum[..] {
            return None;
        }
        if take_array(&mut value)? != *MAGIC || value.try_get_u16().ok()? != FORMAT {
            return None;
        }
        let epoch = ErasureEpoch(value.try_get_u64().ok()?);
        let scope = match value.try_get_u8().ok()? {
            0 => KeyScope::Operation,
            1 => KeyScope::Tenant,
            _ => return None,
        };
        let (tenant, operation, key) = (
            take_text(&mut value)?,
            take_text(&mut value)?,
            take_text(&mut value)?,
        );
        let identity = Identity::new(tenant, operation, Key::new(key).ok()?)
            .ok()?
            .scoped(scope);
        let version = value.try_get_u16().ok()?;
        let rules = RulesId(value.try_get_i64().ok()?);
        let fingerprint = Fingerprint::from_parts(version, take_array(&mut value)?).under(rules);
        let id = OperationId::from_bytes(take_array(&mut value)?);
        let status = value.try_get_u16().ok()?;
        let schema_version = value.try_get_u16().ok()?;
        let expires_at = take_timestamp(&mut value)?;
        let body_expires_at = if take_flag(&mut value)? {
            Some(take_timestamp(&mut value)?)
        } else {
            None
        };
        let resource = if take_flag(&mut value)? {
            Some(Resource {
                kind: take_text(&mut value)?,
                id: take_text(&mut value)?,
            })
        } else {
            None
        };
        let headers = headers::decode(take_part(&mut value)?)?;
        let body = take_part(&mut value)?;
        if value.has_remaining() {
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

    /// The answer to `request`, at this time of the store's clock and in this epoch.
    pub(crate) fn answer(
        self,
        request: &Reserve,
        epoch: Option<ErasureEpoch>,
        now: Timestamp,
    ) -> Result<Replay, Rejection> {
        if !self.identity.names_same_record(&request.identity) {
            return Err(Rejection::WrongIdentity);
        }
        if !request.fingerprints.matches(self.fingerprint) {
            return Err(Rejection::FingerprintMismatch);
        }
        if epoch != Some(self.epoch) {
            return Err(Rejection::StaleEpoch);
        }
        if self.expires_at() <= now {
            return Err(Rejection::Expired);
        }
        Ok(self.replay)
    }

    /// When the entry becomes invalid: at the end of the replay window or of the body's window,
    /// whichever comes first.
    pub(crate) fn expires_at(&self) -> Timestamp {
        let end = self.replay.expires_at;
        self.replay
            .body_expires_at
            .map_or(end, |body| body.min(end))
    }
}

fn put_part(out: &mut BytesMut, part: &[u8]) -> Option<()> {
    out.put_u32(u32::try_from(part.len()).ok()?);
    out.put_slice(part);
    Some(())
}

fn take_part(value: &mut Bytes) -> Option<Bytes> {
    let length = value.try_get_u32().ok()? as usize;
    (length <= value.len()).then(|| value.split_to(length))
}

fn take_text(value: &mut Bytes) -> Option<Box<str>> {
    Some(std::str::from_utf8(&take_part(value)?).ok()?.into())
}

fn take_array<const N: usize>(value: &mut Bytes) -> Option<[u8; N]> {
    let mut array = [0; N];
    value.try_copy_to_slice(&mut array).ok()?;
    Some(array)
}

fn take_timestamp(value: &mut Bytes) -> Option<Timestamp> {
    value.try_get_i64().ok().map(Timestamp::from_micros)
}

fn take_flag(value: &mut Bytes) -> Option<bool> {
    match value.try_get_u8().ok()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
