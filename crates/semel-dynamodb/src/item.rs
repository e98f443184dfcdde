//! A record as an item, and back.
//!
//! Attribute names are short because DynamoDB charges for them. An item holds everything about its
//! record but the history and what does not fit: see [`parts`](crate::parts).

use bytes::Bytes;
use semel_core::fingerprint::RulesId;
use semel_core::store::Result;
use semel_core::time::{duration, micros};
use semel_core::{
    Code, Fingerprint, Identity, Key, KeyScope, Lease, Owner, Record, RecoveryPoint, Resource,
    Response, State, Status, Stored, Timestamp, Windows, headers,
};
use uuid::Uuid;

use crate::attributes::{
    Attributes, Item, PARTITION, SORT, VERSION, binary, key, number, put, text, time,
};
use crate::keys::{self, Class};
use crate::parts::Parts;

/// The attributes of a [`Summary`](semel_core::store::Summary) and of counts, for reads that need
/// no response.
pub(crate) const SUMMARY: &str = "p, s, i, te, op, k, sc, st, a, dl, le, ca, ua";

/// What one write set: no other write sets the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(pub(crate) [u8; 16]);

/// The last entry of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) seq: u32,
    pub(crate) hash: [u8; 32],
}

/// A stored record.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// The record. Where its body is in `parts`, it has an empty one until that is read.
    pub(crate) record: Record,
    /// Where the body is, if it is not in the item.
    pub(crate) parts: Option<Parts>,
    /// The last entry of its history.
    pub(crate) head: Option<Head>,
    /// What the last write set.
    pub(crate) version: Version,
}

impl Version {
    /// A version that no other write has.
    pub(crate) fn generate() -> Self {
        Self(*Uuid::new_v4().as_bytes())
    }
}

impl Row {
    /// The item.
    pub(crate) fn to_item(&self, partition: &str, shards: u8) -> Item {
        let record = &self.record;
        let mut item = key(partition, keys::RECORD);
        let shard = keys::shard_of(record.id, shards);
        let mut set = |name: &str, value| put(&mut item, name, Some(value));
        set(VERSION, binary(self.version.0));
        set("i", binary(*record.id.as_bytes()));
        set("x", text(keys::id_shard(shard)));
        set("te", text(record.identity.tenant()));
        set("op", text(record.identity.operation()));
        set("k", text(record.identity.key().as_str()));
        set("sc", text(record.identity.scope().as_str()));
        set("fv", number(record.fingerprint.version()));
        set("fr", number(record.fingerprint.rules().0));
        set("fd", binary(*record.fingerprint.digest()));
        set("st", text(record.state.status().as_str()));
        set("a", number(record.attempt));
        set("o", text(record.owner.as_str()));
        let (replay, body, tombstone) = record.windows.as_micros();
        set("wr", number(replay));
        set("wb", number(body));
        set("ca", time(record.created_at));
        set("ua", time(record.updated_at));
        put(&mut item, "wt", tombstone.map(number));
        put(
            &mut item,
            "le",
            record.last_error.as_ref().map(|code| text(code.as_str())),
        );
        put(&mut item, "by", record.resolved_by.as_deref().map(text));
        if let Some(point) = &record.recovery {
            put(&mut item, "rp", Some(text(&*point.name)));
            put(&mut item, "rd", Some(binary(point.data.to_vec())));
        }
        if let Some(resource) = &record.resource {
            put(&mut item, "rk", Some(text(&*resource.kind)));
            put(&mut item, "ri", Some(text(&*resource.id)));
            put(&mut item, "r", Some(text(keys::digest(&[&resource.id]))));
        }
        if let Some(head) = self.head {
            put(&mut item, "hs", Some(number(head.seq)));
            put(&mut item, "hh", Some(binary(head.hash)));
        }
        self.put_state(&mut item);
        let (class, at) = due(record);
        put(&mut item, "d", Some(text(class.partition(shard))));
        put(&mut item, "t", Some(time(at)));
        if let Some((class, at)) = second_due(record) {
            put(&mut item, "e", Some(text(class.partition(shard))));
            put(&mut item, "u", Some(time(at)));
        }
        item
    }

    fn put_state(&self, item: &mut Item) {
        let mut set = |name: &str, value| put(item, name, value);
        match &self.record.state {
            State::InProgress(lease) => {
                set("lu", Some(time(lease.locked_until)));
                set(
                    "rw",
                    lease.resume_within.map(|within| number(micros(within))),
                );
            }
            State::Completed(completed) => {
                let response = &completed.response;
                set("rs", Some(number(response.status)));
                set("rv", Some(number(response.schema_version)));
                set(
                    "rh",
                    Some(binary(headers::encode(&response.headers).to_vec())),
                );
                match (&self.parts, &response.body) {
                    (Some(parts), Some(_)) => set("rc", Some(parts.to_attribute())),
                    (None, Some(body)) => set("rb", Some(binary(body.to_vec()))),
                    (_, None) => {}
                }
                set("co", Some(time(completed.completed_at)));
                set("ex", Some(time(completed.expires_at)));
                set("bx", completed.body_expires_at.map(time));
            }
            State::FailedRetryable { expires_at } => set("ex", Some(time(*expires_at))),
            State::Unknown(unresolved) => {
                set("ra", Some(time(unresolved.reconcile_after)));
                set("rt", Some(number(unresolved.reconcile_attempts)));
                set("dl", unresolved.dead_lettered_at.map(time));
            }
            State::Expired { purge_at } => set("px", Some(time(*purge_at))),
        }
    }

    /// The record that an item holds.
    pub(crate) fn from_item(item: Item) -> Result<Self> {
        let mut item = Attributes(item);
        let head = match item.take("hs")? {
            Some(seq) => Some(Head {
                seq,
                hash: item.need("hh")?,
            }),
            None => None,
        };
        let parts = item.take::<Parts>("rc")?;
        let stored = Stored {
            id: item.need("i")?,
            identity: identity(&mut item)?,
            fingerprint: fingerprint(&mut item)?,
            status: status(&mut item)?,
            attempt: item.need("a")?,
            owner: Owner::from(item.need::<Box<str>>("o")?),
            lease: Lease {
                locked_until: item.take("lu")?.unwrap_or(Timestamp::from_micros(0)),
                resume_within: item.take("rw")?.map(duration),
            },
            recovery: recovery(&mut item)?,
            response: response(&mut item, parts.is_some())?,
            resource: resource(&mut item)?,
            last_error: item.take::<String>("le")?.map(Code::new),
            reconcile_after: item.take("ra")?,
            reconcile_attempts: item.take("rt")?,
            dead_lettered_at: item.take("dl")?,
            resolved_by: item.take("by")?,
            windows: Windows::from_micros(item.need("wr")?, item.need("wb")?, item.take("wt")?),
            created_at: item.need("ca")?,
            updated_at: item.need("ua")?,
            completed_at: item.take("co")?,
            expires_at: item.take("ex")?,
            body_expires_at: item.take("bx")?,
            purge_at: item.take("px")?,
        };
        let version = Version(item.need(VERSION)?);
        let record = stored.into_record().ok_or_else(|| item.corrupt("st"))?;
        Ok(Self {
            record,
            parts,
            head,
            version,
        })
    }
}

/// Tenant, command and key of an item.
pub(crate) fn identity(item: &mut Attributes) -> Result<Identity> {
    let (tenant, operation): (Box<str>, Box<str>) = (item.need("te")?, item.need("op")?);
    let scope = KeyScope::from_word(&item.need::<String>("sc")?);
    let key = Key::new(item.need::<Box<str>>("k")?);
    let scope = scope.ok_or_else(|| item.corrupt("sc"))?;
    let key = key.map_err(|_| item.corrupt("k"))?;
    let identity = Identity::new(tenant, operation, key).map_err(|_| item.corrupt("op"))?;
    Ok(identity.scoped(scope))
}

/// Where the record of an item stands.
pub(crate) fn status(item: &mut Attributes) -> Result<Status> {
    let status = Status::from_word(&item.need::<String>("st")?);
    status.ok_or_else(|| item.corrupt("st"))
}

fn fingerprint(item: &mut Attributes) -> Result<Fingerprint> {
    let fingerprint = Fingerprint::from_parts(item.need("fv")?, item.need("fd")?);
    Ok(fingerprint.under(RulesId(item.need("fr")?)))
}

fn recovery(item: &mut Attributes) -> Result<Option<RecoveryPoint>> {
    Ok(match item.take("rp")? {
        Some(name) => Some(RecoveryPoint {
            name,
            data: item.need("rd")?,
        }),
        None => None,
    })
}

fn resource(item: &mut Attributes) -> Result<Option<Resource>> {
    Ok(match item.take("rk")? {
        Some(kind) => Some(Resource {
            kind,
            id: item.need("ri")?,
        }),
        None => None,
    })
}

fn response(item: &mut Attributes, is_elsewhere: bool) -> Result<Option<Response>> {
    let Some(status) = item.take("rs")? else {
        return Ok(None);
    };
    let headers = headers::decode(item.need("rh")?).ok_or_else(|| item.corrupt("rh"))?;
    let body = item.take("rb")?;
    Ok(Some(Response {
        status,
        headers,
        body: body.or_else(|| is_elsewhere.then(Bytes::new)),
        schema_version: item.need("rv")?,
    }))
}

/// When a worker looks at a record, and why.
fn due(record: &Record) -> (Class, Timestamp) {
    match &record.state {
        State::InProgress(lease) => (Class::Lease, lease.sweep_at()),
        State::Completed(completed) => (Class::Expiry, completed.expires_at),
        State::FailedRetryable { expires_at } => (Class::Expiry, *expires_at),
        State::Unknown(unresolved) => match unresolved.dead_lettered_at {
            Some(at) => (Class::Dead, at),
            None => (Class::Unknown, unresolved.reconcile_after),
        },
        State::Expired { purge_at } => (Class::Tombstone, *purge_at),
    }
}

/// When a worker looks at a record for a second reason. Few records have one.
fn second_due(record: &Record) -> Option<(Class, Timestamp)> {
    match &record.state {
        State::InProgress(lease) => {
            let operation = record.identity.operation().into();
            lease.resume_at().map(|at| (Class::Resume(operation), at))
        }
        State::Completed(completed) => completed.body_expires_at.map(|at| (Class::Body, at)),
        State::FailedRetryable { .. } | State::Unknown(_) | State::Expired { .. } => None,
    }
}

/// The record's body, if it has one.
pub(crate) fn body(record: &Record) -> Option<&Bytes> {
    match &record.state {
        State::Completed(completed) => completed.response.body.as_ref(),
        State::InProgress(_)
        | State::FailedRetryable { .. }
        | State::Unknown(_)
        | State::Expired { .. } => None,
    }
}

/// Sets the body of a record that has one.
pub(crate) fn set_body(record: &mut Record, body: Bytes) {
    match &mut record.state {
        State::Completed(completed) => completed.response.body = Some(body),
        State::InProgress(_)
        | State::FailedRetryable { .. }
        | State::Unknown(_)
        | State::Expired { .. } => {}
    }
}

/// The key of an item that was read.
pub(crate) fn key_of(item: &Item) -> Option<(String, String)> {
    let part = |name: &str| item.get(name)?.as_s().ok().cloned();
    Some((part(PARTITION)?, part(SORT)?))
}
