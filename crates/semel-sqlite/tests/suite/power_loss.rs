//! A power loss loses nothing that was acknowledged, and leaves no damaged file.
//!
//! The test starts itself again under `strace`, as a child that uses the store and reports each
//! answer. From the trace, which has every write and every sync in their order, it builds the disk as
//! a power loss at any moment would leave it, opens that, and compares each record, its history, the
//! application's row and its event with what the child had seen.
//!
//! `SEMEL_POWER_CUTS=5000 cargo xtask test -- -p semel-sqlite power_loss` is the long form;
//! `SEMEL_SEED` repeats a run.

mod disk;
mod trace;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::types::Value;
use semel_core::history::Actor;
use semel_core::outbox::{Event as Announcement, EventId};
use semel_core::transaction::{Finished, TransactionWrite};
use semel_core::transition::{Decision, Held, Resolution, Resolve, Verdict};
use semel_core::{
    Completion, Fence, OperationId, RecoveryPoint, Response, Store, Transaction as _,
};
use semel_sqlite::{Options, Sqlite};
use semel_testkit::ManualClock;

use crate::crash::xorshift;
use crate::support::{completion, request};
use disk::{Disk, Loss};
use trace::Event;

/// How many power losses, unless `SEMEL_POWER_CUTS` says otherwise.
const CUTS: usize = 150;

/// Power losses of one recorded run.
const CUTS_OF_A_RUN: usize = 50;

/// How often the child opens the store. Each close empties and removes the log.
const OPENINGS: usize = 3;

/// Keys in use at once, so that commits are groups.
const TASKS: usize = 4;

/// Keys that a task uses until the store is closed.
const KEYS_OF_A_TASK: usize = 4;

/// From this many power losses on, one more run writes so much that the store's own thread moves the
/// log into the file, and its power fails this often.
const LONG_FORM: usize = 1000;
const CUTS_OF_THE_LARGE_RUN: usize = 50;

/// Sixteen responses of this size fill the log, see `LOG_PAGES` of the store.
const LARGE_RESPONSE: usize = 6 << 20;

/// A lease that no run outlasts.
const LEASE: Duration = Duration::from_hours(1);

const CHILD_DIRECTORY: &str = "SEMEL_POWER_LOSS_TEST_DIRECTORY";
const CHILD_SEED: &str = "SEMEL_POWER_LOSS_TEST_SEED";
const CHILD_SIZE: &str = "SEMEL_POWER_LOSS_TEST_SIZE";

#[test]
fn acknowledged_writes_survive_a_power_loss() {
    let variable = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let cuts = variable("SEMEL_POWER_CUTS").map_or(CUTS, |cuts: u64| cuts.try_into().unwrap());
    let seed = variable("SEMEL_SEED").unwrap_or_else(|| u64::from(std::process::id()) << 20 | 1);
    println!("SEMEL_SEED={seed}");
    if std::process::Command::new("strace")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_err()
    {
        println!("SKIPPED: strace is not installed");
        return;
    }
    let mut totals = Totals::default();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for run in 0..cuts.div_ceil(CUTS_OF_A_RUN) {
        let seed = seed.wrapping_add(run as u64);
        let recording = Recording::make(seed, Size::Small);
        let wanted = CUTS_OF_A_RUN.min(cuts - run * CUTS_OF_A_RUN);
        runtime.block_on(recording.cut_power(wanted, seed, &mut totals));
    }
    if cuts >= LONG_FORM {
        let recording = Recording::make(seed, Size::Large);
        assert!(recording.has_checkpoint(), "the log was not filled");
        runtime.block_on(recording.cut_power(CUTS_OF_THE_LARGE_RUN, seed, &mut totals));
    }
    println!("{totals:?}");
    // The run counts only if there was something to lose, and something to keep.
    assert!(totals.with_unsynced_writes * 4 > cuts, "{totals:?}");
    assert!(totals.acknowledged > cuts * TASKS, "{totals:?}");
    assert!(
        cuts < CUTS || totals.unacknowledged_and_kept > 0,
        "{totals:?}"
    );
}

/// How much a child writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// Little, with checkpoints by others, and the store is opened and closed.
    Small,
    /// Enough for a checkpoint by the store.
    Large,
}

impl Size {
    fn openings(self) -> usize {
        match self {
            Self::Small => OPENINGS,
            Self::Large => 1,
        }
    }
}

/// What the power losses found.
#[derive(Debug, Default)]
struct Totals {
    cuts: BTreeMap<Loss, usize>,
    with_unsynced_writes: usize,
    /// Keys with an acknowledged write, over all power losses.
    acknowledged: usize,
    /// Keys with a whole write that no caller had an answer to.
    unacknowledged_and_kept: usize,
}

/// What a child did.
struct Recording {
    directory: tempfile::TempDir,
    events: Vec<Event>,
    /// By key: after how many events it was seen in which state.
    answers: BTreeMap<String, Vec<(usize, String)>>,
}

impl Recording {
    fn make(seed: u64, size: Size) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().canonicalize().unwrap();
        fs::create_dir(place.join("disk")).unwrap();
        let output = place.join("trace");
        let child = trace::traced(&std::env::current_exe().unwrap(), &output)
            .args(["--exact", "power_loss::child_process", "--nocapture"])
            .arg("--test-threads=1")
            .env(CHILD_DIRECTORY, &place)
            .env(CHILD_SEED, seed.to_string())
            .env(CHILD_SIZE, format!("{size:?}"))
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success(), "{log}");
        let text = fs::read_to_string(&output).unwrap();
        let mut answers: BTreeMap<String, Vec<(usize, String)>> = BTreeMap::new();
        let mut events = trace::parse(&text, &place);
        let mut position = 0;
        events.retain(|event| {
            if event.path().starts_with(place.join("disk")) {
                position += 1;
                return true;
            }
            if let Event::Write { path, data, .. } = event
                && path.ends_with("answers")
            {
                let line = String::from_utf8(data.clone()).unwrap();
                let (key, state) = line.trim_end().split_once(' ').unwrap();
                let states = answers.entry(key.to_owned()).or_default();
                states.push((position, state.to_owned()));
            }
            false
        });
        let keys = size.openings() * TASKS * KEYS_OF_A_TASK;
        assert_eq!(answers.len(), keys, "{log}");
        Self {
            directory,
            events,
            answers,
        }
    }

    /// Whether pages were moved into the file while the store was open.
    fn has_checkpoint(&self) -> bool {
        let last = self.answers.values().flatten().map(|answer| answer.0).max();
        let before = &self.events[..last.unwrap()];
        let moved = |event: &&Event| matches!(event, Event::Write { path, .. } if path.ends_with("semel.db"));
        before.iter().filter(moved).count() > 1000
    }

    /// Cuts the power at random moments, and checks what each leaves.
    async fn cut_power(&self, cuts: usize, seed: u64, totals: &mut Totals) {
        let random = &mut Random::new(seed);
        let mut moments: Vec<_> = (0..cuts)
            .map(|cut| (random.below(self.events.len() + 1), Loss::ALL[cut % 3]))
            .collect();
        moments.sort_unstable();
        let directory = self.directory.path().canonicalize().unwrap().join("disk");
        let mut disk = Disk::new(&directory);
        let mut applied = 0;
        for (moment, loss) in moments {
            for event in &self.events[applied..moment] {
                disk.apply(event);
            }
            applied = moment;
            *totals.cuts.entry(loss).or_default() += 1;
            totals.with_unsynced_writes += usize::from(disk.has_unsynced());
            let files = disk.cut(loss, random);
            let context = format!("seed {seed}, {loss:?} after event {moment}");
            self.check(&files, moment, &context, totals).await;
        }
    }

    async fn check(
        &self,
        files: &BTreeMap<PathBuf, Vec<u8>>,
        moment: usize,
        context: &str,
        totals: &mut Totals,
    ) {
        // In memory where that is possible: whether this copy is synced does not matter.
        let memory = Path::new("/dev/shm");
        let directory = match tempfile::tempdir_in(memory) {
            Ok(directory) => directory,
            Err(_) => tempfile::tempdir().unwrap(),
        };
        for (path, content) in files {
            let name = path.file_name().unwrap();
            fs::write(directory.path().join(name), content).unwrap();
        }
        let database = directory.path().join("semel.db");
        let connection = Connection::open(&database).unwrap();
        let integrity = connection.pragma_query_value(None, "integrity_check", |row| row.get(0));
        assert_eq!(integrity, Ok("ok".to_owned()), "{context}: a damaged file");
        let store = Sqlite::open(&database)
            .await
            .unwrap_or_else(|error| panic!("{context}: the store does not open: {error}"));
        for (key, states) in &self.answers {
            let seen = states.partition_point(|(position, _)| *position <= moment);
            let state_of = |answer: usize| states.get(answer).map(|(_, state)| state.as_str());
            let acknowledged = seen.checked_sub(1).map_or(Some(ABSENT), state_of);
            let found = describe(&connection, key);
            totals.acknowledged += usize::from(seen > 0);
            if acknowledged != Some(&found) {
                assert_eq!(
                    state_of(seen),
                    Some(&*found),
                    "{context}: an acknowledged write of {key} is lost: {acknowledged:?}"
                );
                totals.unacknowledged_and_kept += 1;
            }
            let identity = request(key).identity;
            let record = store.find_identity(&identity).await.unwrap();
            assert_eq!(record.is_none(), found.starts_with(ABSENT), "{context}");
        }
    }
}

/// The state of a key without a record.
const ABSENT: &str = "absent";

/// All rows that belong to a key: its status in words, and a hash over every column.
fn describe(connection: &Connection, key: &str) -> String {
    const ROWS: [&str; 4] = [
        "SELECT * FROM semel_operations WHERE key = ?1",
        "SELECT semel_history.* FROM semel_history JOIN semel_operations
         ON semel_history.operation_id = semel_operations.id WHERE key = ?1 ORDER BY seq",
        "SELECT * FROM payments WHERE key = ?1",
        "SELECT id, kind, payload FROM semel_outbox WHERE aggregate = ?1",
    ];
    let rows = |sql: &str| -> rusqlite::Result<Vec<Vec<Value>>> {
        let mut select = connection.prepare_cached(sql)?;
        let columns = select.column_count();
        let rows = select.query_map([key], |row| (0..columns).map(|at| row.get(at)).collect())?;
        rows.collect()
    };
    let status = "SELECT status || ' ' || attempt FROM semel_operations WHERE key = ?1";
    // Before the migration is committed there are no tables.
    let found: Vec<_> = ROWS
        .iter()
        .map(|sql| rows(sql).unwrap_or_default())
        .collect();
    if found.iter().all(Vec::is_empty) {
        return ABSENT.to_owned();
    }
    let mut hasher = DefaultHasher::new();
    let mut counts = String::new();
    for rows in &found {
        write!(counts, " {}", rows.len()).unwrap();
        for value in rows.iter().flatten() {
            match value {
                Value::Blob(bytes) => bytes.hash(&mut hasher),
                other => format!("{other:?}").hash(&mut hasher),
            }
        }
    }
    let status = connection.query_row(status, [key], |row| row.get::<_, String>(0));
    let status = status.unwrap_or_else(|_| "no record".to_owned());
    format!("{status} rows{counts} {:016x}", hasher.finish())
}

/// Not a test: the body of the child process that is traced.
#[test]
fn child_process() {
    let Some(directory) = std::env::var_os(CHILD_DIRECTORY).map(PathBuf::from) else {
        return;
    };
    let seed: u64 = std::env::var(CHILD_SEED).unwrap().parse().unwrap();
    let large = format!("{:?}", Size::Large);
    let size = if std::env::var(CHILD_SIZE).unwrap() == large {
        Size::Large
    } else {
        Size::Small
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let clock = ManualClock::default();
        for opening in 0..size.openings() {
            open_and_use(&directory, &clock, (seed, opening), size).await;
        }
    });
}

async fn open_and_use(
    directory: &Path,
    clock: &ManualClock,
    (seed, opening): (u64, usize),
    size: Size,
) {
    let path = directory.join("disk/semel.db");
    let options = Options::new(&path).clock(Arc::new(clock.clone()));
    let store = options.open().await.unwrap();
    let own = Connection::open(&path).unwrap();
    let create = "CREATE TABLE IF NOT EXISTS payments (key TEXT PRIMARY KEY, cents INTEGER)";
    own.execute_batch(create).unwrap();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let number = (opening * TASKS + task) as u64;
            let worker = Worker {
                store: store.clone(),
                reader: Connection::open(&path).unwrap(),
                answers: directory.join("answers"),
                clock: clock.clone(),
                random: Random::new(seed.wrapping_mul(1009).wrapping_add(number)),
                number,
                size,
            };
            tokio::spawn(worker.run())
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    drop(own);
}

/// Uses one key after the other.
struct Worker {
    store: Sqlite,
    /// As an application would read.
    reader: Connection,
    answers: PathBuf,
    clock: ManualClock,
    random: Random,
    number: u64,
    size: Size,
}

impl Worker {
    async fn run(mut self) {
        for key in 0..KEYS_OF_A_TASK {
            let key = format!("key-{}-{key}", self.number);
            self.use_key(&key).await;
            // As a backup or an operator does, while commits continue.
            let mode = ["PASSIVE", "FULL", "RESTART", "TRUNCATE"][self.random.below(4)];
            if self.size == Size::Small && self.random.below(3) == 0 {
                let checkpoint = self.reader.pragma(None, "wal_checkpoint", mode, |_| Ok(()));
                checkpoint.unwrap();
            }
        }
    }

    async fn use_key(&mut self, key: &str) {
        let fence = self.reserve(key).await;
        let verb = match self.size {
            Size::Small => self.random.below(7),
            Size::Large => 5 + self.random.below(2),
        };
        match verb {
            0 => {
                let released = self.store.release(fence, "not_sent".into()).await;
                self.acknowledge(key, released.unwrap());
                let fence = self.reserve(key).await;
                self.complete(key, fence).await;
            }
            1 => {
                let marked = self.store.mark_unknown(fence, "timeout".into(), None);
                let marked = marked.await.unwrap();
                self.acknowledge(key, marked);
                let verdict = Verdict::Completed(self.response(key));
                let resolved = self.store.resolve(Resolve {
                    fence,
                    verdict,
                    by: Actor {
                        who: "reconciler".into(),
                        why: None,
                    },
                    evidence: Some("found".into()),
                });
                assert_eq!(resolved.await.unwrap(), Resolution::Applied);
                self.report(key);
            }
            2 => {
                let point = RecoveryPoint {
                    name: "charged".into(),
                    data: "ch_1".into(),
                };
                let advanced = self.store.advance(fence, point).await;
                self.acknowledge(key, advanced.unwrap());
                self.complete(key, fence).await;
            }
            3 => {
                self.clock.advance(Duration::from_millis(7));
                let extended = self.store.heartbeat(fence, LEASE).await;
                self.acknowledge(key, extended.unwrap());
            }
            4 => {
                let evicted = self.store.evict(fence, "unauthorized".into()).await;
                self.acknowledge(key, evicted.unwrap());
            }
            5 => self.complete_with_rows(key, fence).await,
            _ => self.complete(key, fence).await,
        }
    }

    async fn reserve(&mut self, key: &str) -> Fence {
        let mut request = request(key);
        let random = u128::from(self.random.next()) << 64 | u128::from(self.random.next());
        request.id = OperationId::from_bytes(random.to_be_bytes());
        request.policy.lease = LEASE;
        match self.store.reserve(request).await.unwrap() {
            Decision::Execute(grant) => {
                self.report(key);
                grant.fence
            }
            other => panic!("{key} is not granted: {other:?}"),
        }
    }

    async fn complete(&mut self, key: &str, fence: Fence) {
        let response = self.response(key);
        let completed = self.store.complete(fence, response).await;
        self.acknowledge(key, completed.unwrap());
    }

    /// The application's row, its event and the completion, in one commit.
    async fn complete_with_rows(&mut self, key: &str, fence: Fence) {
        let response = self.response(key).response;
        let outbox = self.store.outbox();
        let name = key.to_owned();
        let announcement = Announcement {
            id: EventId::from_bytes(*fence.id.as_bytes()),
            kind: "payment.created".into(),
            aggregate: key.into(),
            payload: "{}".into(),
        };
        let work = self.store.transaction(move |connection| {
            connection.execute("INSERT INTO payments VALUES (?1, 1000)", [name])?;
            outbox
                .publish(connection, &announcement)
                .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
            Ok::<_, rusqlite::Error>(response)
        });
        let conclude = |found: Option<Response>| {
            found.map(|response| {
                TransactionWrite::Complete(Completion {
                    response,
                    resource: None,
                })
            })
        };
        let finished = Box::new(work).finish(fence, Box::new(conclude)).await;
        assert_eq!(finished.unwrap(), Finished::Held(Held::Applied));
        self.report(key);
    }

    /// From one page to several, or a part of the log.
    fn response(&mut self, key: &str) -> Completion {
        let size = match self.size {
            Size::Small => self.random.below(12_000),
            Size::Large => LARGE_RESPONSE,
        };
        completion(key, size)
    }

    fn acknowledge(&mut self, key: &str, held: Held) {
        assert_eq!(held, Held::Applied);
        self.report(key);
    }

    /// Writes what the caller knows now. One write a line, after the answer.
    fn report(&mut self, key: &str) {
        let line = format!("{key} {}\n", describe(&self.reader, key));
        let mut options = fs::OpenOptions::new();
        let file = options.append(true).create(true).open(&self.answers);
        file.unwrap().write_all(line.as_bytes()).unwrap();
    }
}

/// Numbers from a seed.
pub(super) struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        // Neighbouring seeds give unrelated numbers, and none gives only zeros.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 = xorshift(self.0);
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from((self.next() >> 32) % bound as u64).unwrap()
    }
}
