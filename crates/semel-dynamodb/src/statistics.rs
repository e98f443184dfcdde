//! Statistics: sums in items, one for each line. No decision depends on them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use aws_sdk_dynamodb::types::{DeleteRequest, PutRequest, Select, WriteRequest};
use semel_core::statistics::{Activity, Caller, DecisionCounts, MAX_CALLERS, MAX_MISUSES, Misuse};
use semel_core::store::{MAX_BATCH, Result, Summary};
use semel_core::{Identity, Key, KeyScope, Owner, Timestamp};

use crate::attributes::{Attributes, Item, binary, key, number, text, time};
use crate::call::{Fault, Rest, unavailable};
use crate::conditions::Condition;
use crate::item::key_of;
use crate::keys::{self, ACTIVITY, CALLERS, HEAD, MISUSES, SCAN};
use crate::store::{Inner, WriteResult, all, values};

/// Most items of one `BatchWriteItem`.
const MAX_BATCH_WRITE: usize = 25;
/// The attributes of the counts, in their order.
const COUNTS: [&str; 8] = ["n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7"];

impl Inner {
    pub(crate) async fn add_counts(
        &self,
        activity: Vec<Activity>,
        misuses: Vec<Misuse>,
    ) -> Result<()> {
        let lines = activity.into_iter().map(|line| self.add_activity(line));
        all(lines.collect()).await?;
        if misuses.is_empty() {
            return Ok(());
        }
        // One request for each tenant and operation: two for one of them would be made at once.
        let mut sums = BTreeMap::<_, Misuse>::new();
        for misuse in misuses {
            sums.entry((misuse.tenant.clone(), misuse.operation.clone()))
                .and_modify(|sum| sum.add(&misuse))
                .or_insert(misuse);
        }
        let added = sums.into_values().map(|misuse| self.add_misuse(misuse));
        all(added.collect()).await?;
        self.trim_misuses().await
    }

    async fn add_activity(&self, line: Activity) -> Result<()> {
        let counts = line.decisions.counts();
        let mut values = values([
            (":at", time(line.at)),
            (":operation", text(&*line.operation)),
        ]);
        let mut added = Vec::new();
        for (name, count) in COUNTS.iter().zip(counts) {
            values.insert(format!(":{name}"), number(count));
            added.push(format!("{name} :{name}"));
        }
        let set = format!("SET ia = :at, op = :operation ADD {}", added.join(", "));
        let sort = keys::activity(line.at.as_micros(), &line.operation);
        self.update(key(ACTIVITY, &sort), &set, None, values)
            .await?;
        Ok(())
    }

    pub(crate) async fn activity(&self, since: Timestamp) -> Result<Vec<Activity>> {
        let from = values([
            (":p", text(ACTIVITY)),
            (":from", text(keys::since(since.as_micros()))),
        ]);
        let items = self
            .query("p = :p AND s >= :from", from, None, None)
            .await?;
        let lines = items.into_iter().map(|item| {
            let mut item = Attributes(item);
            let mut counts = [0; 8];
            for (count, name) in counts.iter_mut().zip(COUNTS) {
                *count = item.need(name)?;
            }
            Ok(Activity {
                at: item.need("ia")?,
                operation: item.need("op")?,
                decisions: DecisionCounts::from(counts),
            })
        });
        let mut lines: Vec<_> = lines.collect::<Result<_>>()?;
        lines.sort_by(|a, b| (a.at, &a.operation).cmp(&(b.at, &b.operation)));
        Ok(lines)
    }

    pub(crate) async fn forget_activity(&self, before: Timestamp, limit: usize) -> Result<usize> {
        let until = values([
            (":p", text(ACTIVITY)),
            (":until", text(keys::since(before.as_micros()))),
        ]);
        let limit = limit.min(MAX_BATCH);
        let items = self
            .query("p = :p AND s < :until", until, None, Some(limit))
            .await?;
        self.remove_items(items.iter().filter_map(key_of).collect())
            .await
    }

    async fn remove_items(&self, keys: Vec<(String, String)>) -> Result<usize> {
        let count = keys.len();
        let removals = keys.iter().map(|(partition, sort)| {
            let delete = DeleteRequest::builder()
                .set_key(Some(key(partition, sort)))
                .build();
            let delete = delete.map_err(|invalid| unavailable(invalid.to_string(), None))?;
            Ok(WriteRequest::builder().delete_request(delete).build())
        });
        self.write_all(removals.collect::<Result<_>>()?).await?;
        Ok(count)
    }

    async fn add_misuse(&self, misuse: Misuse) -> Result<()> {
        let item_key = key(MISUSES, &keys::digest(&[&misuse.tenant, &misuse.operation]));
        let count = (":count", number(misuse.count));
        let all = values([
            count.clone(),
            (":first", time(misuse.first_at)),
            (":last", time(misuse.last_at)),
            (":id", binary(*misuse.last_id.as_bytes())),
            (":tenant", text(&*misuse.tenant)),
            (":operation", text(&*misuse.operation)),
        ]);
        let set = "SET l = :last, li = :id, te = :tenant, op = :operation, \
                   f = if_not_exists(f, :first) ADD n :count";
        let later = Some(Condition::LaterMisuse);
        let updated = self
            .update_and_read(item_key.clone(), set, later, all)
            .await?;
        let (_, mut stored) = updated;
        if stored.is_none() {
            let add = self.update_and_read(item_key.clone(), "ADD n :count", None, values([count]));
            stored = add.await?.1;
        }
        let first: Option<Timestamp> = Attributes(stored.unwrap_or_default()).take("f")?;
        if first.is_none_or(|first| misuse.first_at < first) {
            let first = values([(":first", time(misuse.first_at))]);
            let earlier = Some(Condition::EarlierMisuse);
            self.update(item_key, "SET f = :first", earlier, first)
                .await?;
        }
        Ok(())
    }

    async fn all_misuses(&self) -> Result<Vec<Misuse>> {
        let items = self
            .query("p = :p", values([(":p", text(MISUSES))]), None, None)
            .await?;
        let misuses = items.into_iter().map(|item| {
            let mut item = Attributes(item);
            Ok(Misuse {
                tenant: item.need("te")?,
                operation: item.need("op")?,
                count: item.need("n")?,
                first_at: item.need("f")?,
                last_at: item.need("l")?,
                last_id: item.need("li")?,
            })
        });
        let mut misuses: Vec<Misuse> = misuses.collect::<Result<_>>()?;
        misuses.sort_by(|a, b| {
            let names = |misuse: &Misuse| (misuse.tenant.clone(), misuse.operation.clone());
            b.last_at
                .cmp(&a.last_at)
                .then_with(|| names(a).cmp(&names(b)))
        });
        Ok(misuses)
    }

    pub(crate) async fn misuses(&self, limit: usize) -> Result<Vec<Misuse>> {
        let mut misuses = self.all_misuses().await?;
        misuses.truncate(limit.min(MAX_BATCH));
        Ok(misuses)
    }

    /// Removes the misuses that are longest ago where there are too many.
    async fn trim_misuses(&self) -> Result<()> {
        if self.count_items(MISUSES).await? > MAX_MISUSES {
            let misuses = self.all_misuses().await?;
            self.remove_misuses(misuses.get(MAX_MISUSES..).unwrap_or_default())
                .await?;
        }
        Ok(())
    }

    async fn remove_misuses(&self, misuses: &[Misuse]) -> Result<usize> {
        let keys = misuses.iter().map(|misuse| {
            let sort = keys::digest(&[&misuse.tenant, &misuse.operation]);
            (MISUSES.to_owned(), sort)
        });
        self.remove_items(keys.collect()).await
    }

    pub(crate) async fn forget_misuses(&self, before: Timestamp, limit: usize) -> Result<usize> {
        let mut misuses = self.all_misuses().await?;
        misuses.retain(|misuse| misuse.last_at < before);
        misuses.truncate(limit.min(MAX_BATCH));
        self.remove_misuses(&misuses).await
    }

    async fn count_items(&self, partition: &str) -> Result<usize> {
        let (mut count, mut start) = (0, None::<Item>);
        loop {
            let read = self.limit.send(|| {
                self.client
                    .query()
                    .table_name(&self.table)
                    .key_condition_expression("p = :p")
                    .expression_attribute_values(":p", text(partition))
                    .select(Select::Count)
                    .consistent_read(true)
                    .set_exclusive_start_key(start.clone())
                    .send()
            });
            let answer = read.await.outcome.map_err(Fault::of_read)?;
            count += usize::try_from(answer.count).unwrap_or_default();
            start = answer.last_evaluated_key.filter(|key| !key.is_empty());
            if start.is_none() {
                return Ok(count);
            }
        }
    }

    pub(crate) async fn record_callers(&self, callers: Vec<Caller>) -> Result<bool> {
        let mut new: BTreeMap<(String, String), Caller> = callers
            .into_iter()
            .map(|caller| ((CALLERS.to_owned(), caller_key(&caller)), caller))
            .collect();
        let keys: Vec<_> = new.keys().cloned().collect();
        for item in self.read_all(&keys, Some("p, s")).await? {
            key_of(&item).and_then(|key| new.remove(&key));
        }
        let count = self.count_items(CALLERS).await?;
        let room = MAX_CALLERS.saturating_sub(count);
        let puts = new.into_iter().take(room).map(|((_, sort), caller)| {
            let mut item = key(CALLERS, &sort);
            item.extend(values([
                ("sc", text(caller.scope.as_str())),
                ("te", text(&*caller.tenant)),
                ("op", text(&*caller.operation)),
            ]));
            let put = PutRequest::builder().set_item(Some(item)).build();
            let put = put.map_err(|invalid| unavailable(invalid.to_string(), None))?;
            Ok(WriteRequest::builder().put_request(put).build())
        });
        let puts: Vec<_> = puts.collect::<Result<_>>()?;
        let written = puts.len();
        self.write_all(puts).await?;
        Ok(count + written < MAX_CALLERS)
    }

    /// Writes without conditions, in batches.
    async fn write_all(&self, requests: Vec<WriteRequest>) -> Result<()> {
        let batches = requests.chunks(MAX_BATCH_WRITE);
        all(batches
            .map(|batch| self.write_batch(batch.to_vec()))
            .collect())
        .await?;
        Ok(())
    }

    async fn write_batch(&self, mut left: Vec<WriteRequest>) -> Result<()> {
        let mut rest = Rest::default();
        while !left.is_empty() {
            let tried = self.limit.send(|| {
                self.client
                    .batch_write_item()
                    .request_items(&self.table, left.clone())
                    .send()
            });
            let tried = tried.await;
            let unanswered = tried.unanswered;
            let answer = tried.outcome.map_err(|fault| fault.of_write(unanswered))?;
            let unprocessed = answer.unprocessed_items.unwrap_or_default();
            let unprocessed: Vec<_> = unprocessed.into_values().flatten().collect();
            rest.wait(unprocessed.len(), left.len()).await?;
            left = unprocessed;
        }
        Ok(())
    }

    pub(crate) async fn find_key(&self, wanted: &Key) -> Result<Vec<Summary>> {
        let items = self
            .query("p = :p", values([(":p", text(CALLERS))]), None, None)
            .await?;
        let mut keys = BTreeSet::new();
        for item in items {
            let mut item = Attributes(item);
            let (tenant, operation): (Box<str>, Box<str>) = (item.need("te")?, item.need("op")?);
            let scope = KeyScope::from_word(&item.need::<String>("sc")?);
            let scope = scope.ok_or_else(|| item.corrupt("sc"))?;
            // Callers are made of identities, so each makes one.
            if let Ok(identity) = Identity::new(tenant, operation, wanted.clone()) {
                let partition = self.partition(&identity.scoped(scope));
                keys.insert((partition.to_string(), keys::RECORD.to_owned()));
            }
        }
        let keys: Vec<_> = keys.into_iter().collect();
        let mut found = self.summaries(&keys).await?;
        found.retain(|operation| operation.identity.key() == wanted);
        found.sort_by_key(|operation| std::cmp::Reverse(operation.fence.id));
        found.truncate(MAX_BATCH);
        Ok(found)
    }

    pub(crate) async fn acquire_scan_lease(&self, owner: Owner, lease: Duration) -> Result<bool> {
        let now = self.now();
        let values: Item = HashMap::from([
            (":owner".to_owned(), text(owner.as_str())),
            (":now".to_owned(), time(now)),
            (":until".to_owned(), time(now.saturating_add(lease))),
        ]);
        let set = "SET o = :owner, lu = :until";
        let written = self
            .update(key(SCAN, HEAD), set, Some(Condition::Scan), values)
            .await?;
        Ok(matches!(written, WriteResult::Applied))
    }
}

fn caller_key(caller: &Caller) -> String {
    keys::digest(&[caller.scope.as_str(), &caller.tenant, &caller.operation])
}
