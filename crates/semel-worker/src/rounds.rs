//! One round of each job: what the worker repeats, and whoever wants it done now calls.

use semel_core::inbox::Parked;
use semel_core::store::{Result, Which};
use semel_core::{
    By, Code, Inbox, Inspect, Maintain, Record, Resolution, State, Store, Unresolved,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::meters::{OTHER, names};
use crate::notice::{self, Applied, Notice};
use crate::reconcile::Schedule;
use crate::reconcilers::{Asked, RECONCILER};
use crate::runner::Worker;

/// What a round of sweeping did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Executions whose owner fell silent, and whose outcome is unknown from now on.
    pub swept: usize,
}

/// What a round of reconciling did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Unknowns that were due, and claimed.
    pub claimed: usize,
    /// Those that had happened.
    pub completed: usize,
    /// Those that had not.
    pub released: usize,
    /// Those that nobody knows about yet.
    pub still_unknown: usize,
    /// Those about which somebody else found out meanwhile.
    pub overtaken: usize,
    /// Those that now wait for a person.
    pub dead_lettered: usize,
}

/// What a round over the parked events did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Events whose time had come.
    pub claimed: usize,
    /// Those that resolved an operation.
    pub resolved: usize,
    /// Those about which nothing was left to be done.
    pub moot: usize,
    /// Those that contradict what was believed.
    pub contradicted: usize,
    /// Those that wait on.
    pub parked: usize,
    /// Those that nothing could be made of until the end.
    pub given_up: usize,
}

/// What a round of retention did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// Replay windows that ended.
    pub expired: usize,
    /// Bodies that went before the rest.
    pub bodies: usize,
    /// Tombstones that went.
    pub tombstones: usize,
    /// Events that were forgotten.
    pub messages: usize,
    /// Whether there is more to be done at once.
    pub more: bool,
}

/// What became of one claimed operation.
enum Became {
    Completed,
    Released,
    StillUnknown,
    Overtaken,
    DeadLettered,
}

impl<S: Store + Maintain + Inspect + Inbox> Worker<S> {
    /// Turns one batch of executions whose owner fell silent into unknowns.
    ///
    /// # Errors
    /// The store could not do it; the next round finds the rest.
    ///
    /// # Cancellation
    /// As for [`Store`].
    pub async fn sweep_once(&self) -> Result<Swept> {
        let swept = self.store.sweep(self.pace.sweep_batch).await?;
        for fence in &swept {
            // Which command it was is good to know, and not worth an error.
            let record = self.store.find(fence.id).await.ok().flatten();
            let operation = record.as_ref().map(|record| record.identity.operation());
            let operation = operation.unwrap_or(OTHER);
            self.labels.count(names::ZOMBIE, operation);
            tracing::warn!(id = %fence.id, attempt = fence.attempt, operation, "an owner fell silent; the outcome is unknown");
        }
        Ok(Swept { swept: swept.len() })
    }

    /// Claims one batch of due unknowns of each command, and looks for the outcome of each. What
    /// stays unknown after its last look waits for a person from then on, and so does at once
    /// what nobody can be asked about.
    ///
    /// # Errors
    /// The store failed with some of them; they come due again.
    ///
    /// # Cancellation
    /// Looks are given up, and come due again.
    pub async fn reconcile_once(&self) -> Result<Reconciled> {
        let mut rounds = JoinSet::new();
        for operation in self.reconcilers.operations() {
            let (worker, operation) = (self.clone(), Box::from(operation));
            rounds.spawn(async move { worker.reconcile(&operation).await });
        }
        let mut whole = self.dead_letter_others().await;
        while let Some(round) = rounds.join_next().await {
            let round = round.unwrap_or_else(resume);
            whole = merge(whole, round);
        }
        whole
    }

    /// One batch of one command's unknowns. No more are claimed than are looked at at once: a
    /// claim that waits for its look would come due again meanwhile.
    pub(crate) async fn reconcile(&self, operation: &str) -> Result<Reconciled> {
        let Some(schedule) = self.reconcilers.schedule(operation) else {
            return Ok(Reconciled::default());
        };
        let which = Which::Only(operation.into());
        let claimed = self
            .store
            .claim_due(which, schedule.backoff(), self.pace.looks)
            .await?;
        let mut looks = JoinSet::new();
        let mut round = Ok(Reconciled {
            claimed: claimed.len(),
            ..Reconciled::default()
        });
        for record in claimed {
            self.labels.count(names::SCHEDULED, operation);
            let worker = self.clone();
            looks.spawn(async move { worker.look_at(&record, schedule).await });
        }
        while let Some(became) = looks.join_next().await {
            let became = became.unwrap_or_else(resume);
            round = merge(round, became.map(Reconciled::from));
        }
        round
    }

    /// Asks about one claimed operation; after its last look it is set aside.
    async fn look_at(&self, record: &Record, schedule: Schedule) -> Result<Became> {
        let made = tries(record);
        let asked = self.reconcilers.ask(record, By::from(RECONCILER)).await?;
        let last = match asked {
            Asked::Completed => return Ok(Became::Completed),
            Asked::Released => return Ok(Became::Released),
            Asked::Overtaken(_) => return Ok(Became::Overtaken),
            Asked::StillUnknown(_) => made >= schedule.attempts,
            // It waits for an event: not the looks count, but the pauses between them.
            Asked::NoWay => made > schedule.attempts,
        };
        if last {
            self.set_aside(record, "reconcile_attempts_exhausted").await
        } else {
            Ok(Became::StillUnknown)
        }
    }

    /// One batch of unknowns that nobody can be asked about.
    pub(crate) async fn dead_letter_others(&self) -> Result<Reconciled> {
        if !self.others {
            return Ok(Reconciled::default());
        }
        let named: Vec<Box<str>> = self.reconcilers.operations().map(Box::from).collect();
        let which = Which::AllBut(named.into());
        let backoff = Schedule::default().backoff();
        let claimed = self
            .store
            .claim_due(which, backoff, self.pace.sweep_batch)
            .await?;
        let mut round = Ok(Reconciled {
            claimed: claimed.len(),
            ..Reconciled::default()
        });
        for record in &claimed {
            let became = self.set_aside(record, "no_way_to_find_out").await;
            round = merge(round, became.map(Reconciled::from));
        }
        round
    }

    async fn set_aside(&self, record: &Record, code: &'static str) -> Result<Became> {
        let (id, operation) = (record.id, record.identity.operation());
        match self
            .store
            .dead_letter(record.fence(), Code::from(code))
            .await?
        {
            Resolution::Applied => {
                self.labels.count(names::DEAD_LETTER, operation);
                tracing::error!(%id, operation, code, "an outcome could not be found out; it waits for a person");
                Ok(Became::DeadLettered)
            }
            Resolution::Fenced(_) => Ok(Became::Overtaken),
        }
    }

    /// Looks once more at one batch of the events that nothing could be made of before.
    ///
    /// # Errors
    /// The store failed with some of them; they come due again.
    ///
    /// # Cancellation
    /// As for [`Store`].
    pub async fn deliver_once(&self) -> Result<Delivered> {
        let claimed = self
            .store
            .claim_parked(self.pace.redeliver, self.pace.deliver_batch)
            .await?;
        let mut round = Delivered {
            claimed: claimed.len(),
            ..Delivered::default()
        };
        let mut failed = None;
        for parked in claimed {
            match self.deliver(&parked).await {
                Ok(Some(Applied::Resolved)) => round.resolved += 1,
                Ok(Some(Applied::Moot)) => round.moot += 1,
                Ok(Some(Applied::Contradicted)) => round.contradicted += 1,
                Ok(Some(Applied::Parked)) => round.parked += 1,
                Ok(None) => round.given_up += 1,
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(round), Err)
    }

    /// What becomes of one event; nothing where it is given up.
    async fn deliver(&self, parked: &Parked) -> Result<Option<Applied>> {
        let (source, id) = (&*parked.message.source, &*parked.message.id);
        let why = match Notice::from_bytes(&parked.message.payload) {
            Ok(notice) => match notice::apply(&*self.store, source, &notice).await? {
                Applied::Parked if parked.tries >= self.pace.redeliver_tries => {
                    "nothing came of it in all its tries".to_owned()
                }
                Applied::Parked => return Ok(Some(Applied::Parked)),
                applied @ (Applied::Resolved | Applied::Moot | Applied::Contradicted) => {
                    self.store.settle(source, id).await?;
                    return Ok(Some(applied));
                }
            },
            Err(error) => error.to_string(),
        };
        self.store.settle(source, id).await?;
        metrics::counter!(names::GIVEN_UP, "source" => source.to_owned()).increment(1);
        tracing::error!(
            source,
            message = id,
            tries = parked.tries,
            why,
            "an event was given up"
        );
        Ok(None)
    }

    /// Lets go of one batch of each kind of thing whose time is over. Between two batches it
    /// pauses, so this takes five times as long as the store is busy.
    ///
    /// # Errors
    /// The store could not do it; the next round finds the rest.
    ///
    /// # Cancellation
    /// As for [`Store`].
    pub async fn retain_once(&self) -> Result<Retained> {
        self.retain(&CancellationToken::new()).await
    }

    /// Shows how things stand in the gauges.
    ///
    /// # Errors
    /// The store could not say; the gauges stay as they are.
    ///
    /// # Cancellation
    /// Nothing is shown.
    pub async fn measure_once(&self) -> Result<()> {
        let standings = self.store.standing().await?;
        self.labels.show(&standings, self.store.clock().now());
        Ok(())
    }
}

/// How many looks have been made, or pauses begun, the present one included.
fn tries(record: &Record) -> u32 {
    match &record.state {
        State::Unknown(Unresolved {
            reconcile_attempts, ..
        }) => *reconcile_attempts,
        State::InProgress(_)
        | State::Completed(_)
        | State::FailedRetryable { .. }
        | State::Expired { .. } => 0,
    }
}

/// Both, or the first error: what failed comes due again, and the rest is done.
fn merge(a: Result<Reconciled>, b: Result<Reconciled>) -> Result<Reconciled> {
    let (a, b) = (a?, b?);
    Ok(Reconciled {
        claimed: a.claimed + b.claimed,
        completed: a.completed + b.completed,
        released: a.released + b.released,
        still_unknown: a.still_unknown + b.still_unknown,
        overtaken: a.overtaken + b.overtaken,
        dead_lettered: a.dead_lettered + b.dead_lettered,
    })
}

/// A panic of a part is a panic of the whole, which the runner reports. Nothing else ends these
/// tasks: they are aborted only when the whole is dropped.
fn resume<T>(error: tokio::task::JoinError) -> T {
    std::panic::resume_unwind(
        error
            .try_into_panic()
            .unwrap_or_else(|error| Box::new(error.to_string())),
    )
}

impl From<Became> for Reconciled {
    fn from(became: Became) -> Self {
        let mut one = Self::default();
        match became {
            Became::Completed => one.completed = 1,
            Became::Released => one.released = 1,
            Became::StillUnknown => one.still_unknown = 1,
            Became::Overtaken => one.overtaken = 1,
            Became::DeadLettered => one.dead_lettered = 1,
        }
        one
    }
}
