//! Messages from elsewhere, each under a partition key of its own.

use semel_core::inbox::{Handling, Message, Parked, Receipt};
use semel_core::store::{MAX_BATCH, MAX_WALK, Result};
use semel_core::{Backoff, Timestamp};

use crate::attributes::{Attributes, Item, VERSION, binary, corrupt, key, number, text, time};
use crate::conditions::Condition;
use crate::index::WalkRange;
use crate::item::Version;
use crate::keys::{self, Class, HEAD};
use crate::parts::Parts;
use crate::store::{Inner, WriteResult, all, seen, values};

impl Inner {
    pub(crate) async fn receive_message(
        &self,
        message: Message,
        handling: Handling,
    ) -> Result<Receipt> {
        let partition = keys::message(&message.source, &message.id);
        let now = self.now();
        let shard = keys::shard_of_seed(message.seed(), self.shards);
        let due_at = now.saturating_add(handling.look_after);
        let forget_at = now.saturating_add(handling.remember);
        let mut item = key(&partition, HEAD);
        let mut set = |name: &str, value| item.insert(name.to_owned(), value);
        set(VERSION, binary(Version::generate().0));
        set("so", text(&*message.source));
        set("mi", text(&*message.id));
        set("ra", time(now));
        set("rt", number(0));
        set("d", text(Class::Parked.partition(shard)));
        set("t", time(due_at));
        set("e", text(Class::Forget.partition(shard)));
        set("u", time(forget_at));
        let parts = self
            .put_value(&partition, &mut item, &message.payload)
            .await?;
        match self.put(item, Condition::Receive, None).await? {
            WriteResult::Applied => Ok(Receipt::New),
            WriteResult::Conflict(found) => {
                if let Some(parts) = &parts {
                    self.remove_parts(&partition, parts).await;
                }
                let mut found = Attributes(found.unwrap_or_default());
                let (source, id): (Box<str>, Box<str>) = (found.need("so")?, found.need("mi")?);
                if (&source, &id) == (&message.source, &message.id) {
                    Ok(Receipt::Repeated)
                } else {
                    Err(corrupt("two messages have one hash"))
                }
            }
        }
    }

    pub(crate) async fn settle_message(&self, source: &str, id: &str) -> Result<()> {
        let partition = keys::message(source, id);
        // It goes on naming its parts: what is not removed now is removed when it is forgotten.
        let set = "SET v = :version REMOVE d, t, rb";
        let version = values([(":version", binary(Version::generate().0))]);
        // A message that was not received has nothing to settle.
        let exists = Some(Condition::Exists);
        let settled = self.update_and_read(key(&partition, HEAD), set, exists, version);
        let (_, settled) = settled.await?;
        if let Some(parts) = Attributes(settled.unwrap_or_default()).take::<Parts>("rc")? {
            self.remove_parts(&partition, &parts).await;
        }
        Ok(())
    }

    pub(crate) async fn claim_parked(&self, backoff: Backoff, limit: usize) -> Result<Vec<Parked>> {
        let (now, limit) = (self.now(), limit.min(MAX_BATCH));
        let mut walk = self.walk(WalkRange::Due(Class::Parked, now), limit);
        let (mut claimed, mut looked_at) = (Vec::new(), 0);
        while claimed.len() < limit && looked_at < MAX_WALK {
            let hits = walk.next(limit - claimed.len()).await?;
            if hits.is_empty() {
                break;
            }
            looked_at += hits.len();
            let keys: Vec<_> = hits.into_iter().map(|hit| hit.key).collect();
            let items = self.read_all(&keys, None).await?;
            let claims = items
                .into_iter()
                .map(|item| self.claim_message(item, backoff, now));
            let found = all(claims.collect()).await?;
            claimed.extend(found.into_iter().flatten());
        }
        Ok(claimed)
    }

    /// Takes one parked message and schedules the next look at it. `None` if it is not due: another
    /// process was faster, or the index is behind.
    async fn claim_message(
        &self,
        item: Item,
        backoff: Backoff,
        now: Timestamp,
    ) -> Result<Option<Parked>> {
        let version = Self::version(&item)?;
        let mut item = Attributes(item);
        let partition: String = item.need("p")?;
        let due_at: Option<Timestamp> = item.take("t")?;
        if due_at.is_none_or(|due_at| now < due_at) {
            return Ok(None);
        }
        let payload = match item.take::<Parts>("rc")? {
            Some(parts) => match self.read_parts(&partition, &parts).await? {
                Some(payload) => payload,
                None => return self.check_changed(&partition, version).await.map(|()| None),
            },
            None => item.need("rb")?,
        };
        let parked = Parked {
            message: Message {
                source: item.need("so")?,
                id: item.need("mi")?,
                payload,
            },
            tries: item.need::<u32>("rt")?.saturating_add(1),
            received_at: item.need("ra")?,
        };
        let delay = backoff.spread(parked.message.seed(), parked.tries);
        let mut values = values([
            (":version", binary(Version::generate().0)),
            (":tries", number(parked.tries)),
            (":at", time(now.saturating_add(delay))),
        ]);
        values.extend(seen(version));
        let set = "SET v = :version, rt = :tries, t = :at";
        let written = self.update(
            key(&partition, HEAD),
            set,
            Some(Condition::ClaimParked),
            values,
        );
        Ok(matches!(written.await?, WriteResult::Applied).then_some(parked))
    }

    /// An error if a message whose parts are missing has not changed since it was read. One that
    /// has was settled or forgotten meanwhile.
    async fn check_changed(&self, partition: &str, version: Version) -> Result<()> {
        match self.read(partition, HEAD).await? {
            Some(item) if Self::version(&item)? == version => Err(corrupt(format!(
                "the payload of message {partition} is missing"
            ))),
            Some(_) | None => Ok(()),
        }
    }

    pub(crate) async fn forget_messages(&self, limit: usize) -> Result<usize> {
        let (now, limit) = (self.now(), limit.min(MAX_BATCH));
        let mut walk = self.walk(WalkRange::Due(Class::Forget, now), limit);
        let mut forgotten = 0;
        while forgotten < limit {
            let hits = walk.next(limit - forgotten).await?;
            if hits.is_empty() {
                break;
            }
            self.check_clock_of_grant()?;
            let removals = hits
                .into_iter()
                .map(|hit| self.forget_message(hit.key.0, now));
            let found = all(removals.collect()).await?;
            forgotten += found.into_iter().filter(|gone| *gone).count();
        }
        Ok(forgotten)
    }

    /// Removes one message, if its time is over as it is stored now.
    async fn forget_message(&self, partition: String, now: Timestamp) -> Result<bool> {
        let Some(item) = self.read(&partition, HEAD).await? else {
            return Ok(false);
        };
        let (version, mut item) = (Self::version(&item)?, Attributes(item));
        if now < item.need::<Timestamp>("u")? {
            return Ok(false);
        }
        let parts = item.take::<Parts>("rc")?;
        let removed = self
            .remove(&partition, HEAD, Condition::Forget, version)
            .await?;
        let is_removed = matches!(removed, WriteResult::Applied);
        // Another delivery of it may be on its way, with parts of its own.
        if let Some(parts) = parts.filter(|_| is_removed) {
            self.remove_parts(&partition, &parts).await;
        }
        Ok(is_removed)
    }
}
