//! The census: how many operations there are, counted without being in anybody's way.
//!
//! All of them are walked in short stretches, with pauses in between that are longer than the
//! stretches, and the sums are published at the end. A lap over millions takes minutes; whoever
//! looks at the sums reads a few rows.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use semel_core::figures::{Caller, Census, Count, MAX_CALLERS, Survey};
use semel_core::store::{MAX_BATCH, Result};
use semel_core::{Chore, Clock, Figures, OperationId, Owner, Status, Timestamp, chore};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::meters::{MAX_LABELS, OTHER};

/// What it is called in metrics and logs.
pub const CENSUS: &str = "census";

/// How many operations are looked at at once: a few milliseconds' worth.
const STRETCH: usize = 2000;

/// The pause after a stretch, in stretches: at most a tenth of the store's time goes into this.
const PAUSES: u32 = 9;

/// How long after a census ended the next one begins.
const EVERY: Duration = Duration::from_secs(30);

/// How long the right to count is held without a word.
const LEASE: Duration = Duration::from_mins(1);

/// How long what requests were told is kept: the charts go back an hour, people go back a day.
const KEEP_ACTIVITY: Duration = Duration::from_hours(25);

/// How long misuse is kept after the last time.
const KEEP_MISUSE: Duration = Duration::from_hours(30 * 24);

/// Counts all operations, again and again. Of all processes one does, and the others stand by.
pub struct CensusTaker<S> {
    store: S,
    clock: Arc<dyn Clock>,
    owner: Owner,
    lap: Mutex<Option<Lap>>,
}

/// A census that is under way.
struct Lap {
    began_at: Timestamp,
    after: Option<OperationId>,
    counts: BTreeMap<(Box<str>, Status), u64>,
    commands: HashSet<Box<str>>,
    callers: HashSet<Caller>,
    all_callers: bool,
}

impl<S: Figures> CensusTaker<S> {
    /// Counts what is in this store, whose clock that is.
    pub fn new(store: S, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            clock,
            owner: Owner::from(format!("census-{}", OperationId::generate())),
            lap: Mutex::default(),
        }
    }

    /// One stretch, or the look whether it is time for one.
    async fn stretch(&self) -> Result<bool> {
        let mut under_way = self.lap.lock().await;
        // Taken out: a lap that fails in the middle is begun anew, with nothing counted twice.
        let lap = match under_way.take() {
            Some(lap) => lap,
            None if self.is_time().await? => Lap::begin(self.clock.now()),
            None => {
                self.forget().await?;
                return Ok(false);
            }
        };
        if !self.store.count_alone(self.owner.clone(), LEASE).await? {
            return Ok(false);
        }
        let began = Instant::now();
        let survey = self.store.survey(lap.after, STRETCH).await?;
        let mut lap = lap;
        lap.after = survey.next;
        let met = lap.add(survey);
        for some in met.chunks(MAX_BATCH) {
            lap.all_callers &= self.store.meet(some.to_vec()).await?;
        }
        tokio::time::sleep(began.elapsed() * PAUSES).await;
        let goes_on = lap.after.is_some();
        if goes_on {
            *under_way = Some(lap);
        } else {
            let census = lap.end(self.clock.now());
            self.store.publish_census(census).await?;
        }
        Ok(goes_on)
    }

    async fn is_time(&self) -> Result<bool> {
        let latest = self.store.census().await?;
        let next = latest.map(|latest| latest.ended_at.saturating_add(EVERY));
        Ok(next.is_none_or(|next| next <= self.clock.now()))
    }

    /// Lets go of what nobody looks at any more.
    async fn forget(&self) -> Result<()> {
        let before = |keep| self.clock.now().saturating_sub(keep);
        let activity = before(KEEP_ACTIVITY);
        while self.store.forget_activity(activity, MAX_BATCH).await? == MAX_BATCH {}
        let misuses = before(KEEP_MISUSE);
        while self.store.forget_misuses(misuses, MAX_BATCH).await? == MAX_BATCH {}
        Ok(())
    }
}

impl<S: Figures> Chore for CensusTaker<S> {
    fn name(&self) -> &'static str {
        CENSUS
    }

    fn every(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn round(&self) -> chore::Round<'_> {
        Box::pin(self.stretch())
    }
}

impl Lap {
    fn begin(now: Timestamp) -> Self {
        Self {
            began_at: now,
            after: None,
            counts: BTreeMap::new(),
            commands: HashSet::new(),
            callers: HashSet::new(),
            all_callers: true,
        }
    }

    /// Adds a stretch; says who was met for the first time.
    fn add(&mut self, survey: Survey) -> Vec<Caller> {
        let mut met = Vec::new();
        for (caller, status, count) in survey.counts {
            let command = self.command(&caller.operation);
            *self.counts.entry((command, status)).or_default() += count;
            if self.callers.contains(&caller) {
                continue;
            }
            if self.callers.len() < MAX_CALLERS {
                self.callers.insert(caller.clone());
                met.push(caller);
            } else {
                self.all_callers = false;
            }
        }
        met
    }

    /// A command without a name is called by its path, of which there may be millions: past a
    /// number they are counted together, as the metrics are.
    fn command(&mut self, operation: &str) -> Box<str> {
        if self.commands.contains(operation) {
            return operation.into();
        }
        if self.commands.len() < MAX_LABELS {
            self.commands.insert(operation.into());
            return operation.into();
        }
        OTHER.into()
    }

    fn end(self, now: Timestamp) -> Census {
        let counts = self.counts.into_iter();
        Census {
            began_at: self.began_at,
            ended_at: now,
            counts: counts
                .map(|((operation, status), count)| Count {
                    operation,
                    status,
                    count,
                })
                .collect(),
            all_callers: self.all_callers,
        }
    }
}

impl<S> std::fmt::Debug for CensusTaker<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CensusTaker")
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}
