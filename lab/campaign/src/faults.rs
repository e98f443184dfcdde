//! Injects faults, and repairs them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rusqlite::Connection;
use rustix::process::Signal;
use semel_testkit::pg_proxy::Trigger;
use semel_testkit::shifted_clock::Shifted;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_postgres::NoTls;

use crate::chaos::{ChaosCounts, Mode};
use crate::deploy::Settings;
use crate::operation::Leg;
use crate::plan::{Action, GATEWAYS, LEASE_MS, Link, Phase, Target};
use crate::record::Recorder;
use crate::test_bed::{SQLITE_FILE, TestBed};

const TERMINATE: &str = include_str!("../queries/terminate.sql");
/// How long an action waits for its trigger.
const TRIGGER_TIMEOUT: Duration = Duration::from_secs(2);
/// The interval at which the campaign checks whether the store noticed a full disk.
const DISK_POLL: Duration = Duration::from_millis(50);
/// The interval of the supervisor.
const SUPERVISION: Duration = Duration::from_millis(200);
/// The number of attempts to restart PostgreSQL or Redis.
const START_ATTEMPTS: usize = 5;

/// Injects the faults of the plan.
#[derive(Clone, Debug)]
pub(crate) struct FaultInjector {
    pub(crate) test_bed: Arc<TestBed>,
    pub(crate) recorder: Recorder,
    /// Locks of targets that are still recovering; the next fault waits for them.
    pub(crate) recovering: Arc<RecoveryLocks>,
}

#[derive(Debug, Default)]
pub(crate) struct RecoveryLocks {
    postgres: Mutex<()>,
    redis: Mutex<()>,
    disk: Mutex<()>,
    /// One for each gateway's connections, and for the worker's.
    links: [Mutex<()>; GATEWAYS + 1],
    /// One for each gateway, the one on SQLite, the worker and the application.
    processes: [Mutex<()>; GATEWAYS + 3],
    /// What was deployed last, for each store.
    deployed: [Mutex<Settings>; 2],
    cluster: Mutex<()>,
}

impl RecoveryLocks {
    pub(crate) fn cluster(&self) -> &Mutex<()> {
        &self.cluster
    }

    pub(crate) fn redis(&self) -> &Mutex<()> {
        &self.redis
    }

    pub(crate) fn deployed(&self, leg: Leg) -> &Mutex<Settings> {
        &self.deployed[match leg {
            Leg::Postgres => 0,
            Leg::Sqlite => 1,
        }]
    }

    pub(crate) fn process(&self, target: Target) -> &Mutex<()> {
        &self.processes[match target {
            Target::Gateway(number) => number,
            Target::Sqlite => GATEWAYS,
            Target::Worker => GATEWAYS + 1,
            Target::App => GATEWAYS + 2,
        }]
    }
}

impl FaultInjector {
    pub(crate) fn new(test_bed: Arc<TestBed>, recorder: Recorder) -> Self {
        Self {
            test_bed,
            recorder,
            recovering: Arc::default(),
        }
    }

    /// Performs a phase's actions on schedule, and undoes them at its end.
    pub(crate) async fn perform(&self, phase: &Phase, began: Instant) -> Result<()> {
        self.begin(phase)?;
        let before = self.test_bed.chaos.counts();
        let ends = began + Duration::from_millis(phase.ms);
        let mut under_way = JoinSet::new();
        for (at, action) in &phase.actions {
            sleep_until(began + Duration::from_millis(*at)).await;
            let (injector, action) = (self.clone(), action.clone());
            under_way.spawn(async move { injector.act(action, ends).await });
            while let Some(ended) = under_way.try_join_next() {
                ended??;
            }
        }
        sleep_until(ends).await;
        while let Some(ended) = under_way.join_next().await {
            ended??;
        }
        self.undo(phase)?;
        // A process that exited in this phase is recorded in this phase.
        self.revive()?;
        self.note_upstream(before, self.test_bed.chaos.counts());
        Ok(())
    }

    /// Restarts processes that exited, for as long as this is polled.
    pub(crate) async fn supervise(&self) -> Result<()> {
        loop {
            self.revive()?;
            sleep(SUPERVISION).await;
        }
    }

    fn revive(&self) -> Result<()> {
        for process in self.test_bed.processes() {
            if process.revive()? {
                self.recorder.fault("ended_by_itself", process.name());
            }
        }
        Ok(())
    }

    fn begin(&self, phase: &Phase) -> Result<()> {
        if phase.name == "clocks"
            && let Ok(clock) = &self.test_bed.clock
        {
            clock.set(0)?;
            self.restart_shifted(Some(Arc::clone(clock)))?;
        }
        Ok(())
    }

    fn undo(&self, phase: &Phase) -> Result<()> {
        let test_bed = &self.test_bed;
        for link in &test_bed.links {
            link.heal();
        }
        self.heal_dynamo();
        test_bed.chaos.set(Mode::Pass);
        if phase.name == "clocks" && test_bed.clock.is_ok() {
            self.restart_shifted(None)?;
        }
        Ok(())
    }

    /// The last gateway, with or without a clock of its own.
    fn restart_shifted(&self, clock: Option<Arc<Shifted>>) -> Result<()> {
        let process = &self.test_bed.gateways[GATEWAYS - 1].process;
        process.kill();
        process.set_clock(clock);
        process.start()
    }

    async fn act(&self, action: Action, ends: Instant) -> Result<()> {
        let (test_bed, recorder) = (&self.test_bed, &self.recorder);
        let pause = |ms| sleep(Duration::from_millis(ms));
        match action {
            Action::Kill(target) => {
                // A stopped process must stay stopped past its lease.
                let Ok(_recovering) = self.recovering.process(target).try_lock() else {
                    return Ok(());
                };
                let process = test_bed.process(target);
                process.kill();
                recorder.fault("kill", process.name());
                process.start()?;
            }
            Action::Stop(target, ms) => self.stop(target, ms, ends).await,
            Action::CrashPostgres(ms) => self.crash_postgres(ms).await?,
            Action::Terminate(count, chosen) => self.terminate(count, chosen).await,
            Action::CutAfterCommit(link, tag) => {
                let when = Trigger::completed(tag);
                self.cut(link, when, ends, "cut_after_commit").await;
            }
            Action::CutAfterReserve(link) => {
                let when = Trigger::answered("Reserves for many requests");
                self.cut(link, when, ends, "cut_after_reserve").await;
            }
            Action::CutAfterVerdict(link, text) => {
                let when = Trigger::answered(text);
                self.cut(link, when, ends, "cut_after_verdict").await;
            }
            Action::Hold(link, text, ms) => {
                let held = test_bed.links[link].hold(Trigger::before(text));
                if timeout(TRIGGER_TIMEOUT, held.reached()).await.is_ok() {
                    recorder.fault("hold", format!("{} {text}", link_name(link)));
                    pause(ms).await;
                }
                held.open();
            }
            Action::SlowStore(link, delay, ms) => {
                let _recovering = self.recovering.links[link].lock().await;
                recorder.fault("slow_store", link_name(link));
                test_bed.links[link].delay(Duration::from_millis(delay));
                pause(ms).await;
                test_bed.links[link].heal();
            }
            Action::Freeze(link, ms) => {
                let _recovering = self.recovering.links[link].lock().await;
                recorder.fault("freeze_store", link_name(link));
                test_bed.links[link].freeze();
                pause(ms).await;
                test_bed.links[link].heal();
            }
            Action::MoveClock(offset) => {
                let process = &test_bed.gateways[GATEWAYS - 1].process;
                if let Ok(clock) = &test_bed.clock {
                    clock.set(offset)?;
                    // A test shows that the library moves the clock; here only its presence is checked.
                    if process.has_mapped(clock.library()) {
                        recorder.fault("move_clock", format!("{offset:+}s"));
                    }
                }
            }
            Action::Upstream(mode) => test_bed.chaos.set(mode),
            Action::FlushRedis => {
                // Redis may be down at this moment, or empty.
                if test_bed
                    .redis()
                    .primary()
                    .flush()
                    .is_ok_and(|keys| keys > 0)
                {
                    recorder.fault("flush_redis", "redis");
                }
            }
            Action::KillRedis(ms) => {
                let _recovering = self.recovering.redis.lock().await;
                test_bed.redis().primary_mut().kill()?;
                recorder.fault("kill_redis", "redis");
                pause(ms).await;
                self.start_redis().await?;
            }
            Action::FailOverRedis(ms, keeps) => self.fail_over_redis(ms, keeps).await?,
            Action::FillDisk(ms) => self.fill_disk(ms).await?,
            Action::Publish(seed) => self.publish(seed, ends).await?,
            Action::KillBroker(ms) => self.kill_broker(ms).await?,
            Action::KillConsumer(seed) => self.kill_consumer(seed),
            Action::Deploy(deploy) => self.deploy(deploy, ends).await?,
            Action::Attack(target) => self.attack(target, ends).await?,
            Action::Cluster(fault) => self.break_cluster(fault, ends).await?,
            Action::Dynamodb(fault) => self.break_dynamo(fault).await?,
        }
        Ok(())
    }

    async fn crash_postgres(&self, ms: u64) -> Result<()> {
        let _recovering = self.recovering.postgres.lock().await;
        let Some(server) = &self.test_bed.postgres else {
            return Ok(());
        };
        let crashed = Arc::clone(server);
        tokio::task::spawn_blocking(move || crashed.stop_immediate()).await?;
        self.recorder.fault("crash_postgres", "postgres");
        sleep(Duration::from_millis(ms)).await;
        let server = Arc::clone(server);
        tokio::task::spawn_blocking(move || server.start_again()).await?;
        Ok(())
    }

    /// Waits for the trigger of a cut until the phase ends. Only cuts that happened are counted.
    async fn cut(&self, link: Link, when: Trigger, ends: Instant, name: &str) {
        let cut = self.test_bed.links[link].cut(when);
        if timeout_at(ends, cut.reached()).await.is_ok() {
            self.recorder.fault(name, link_name(link));
        }
    }

    /// Counted only if the store noticed the full disk.
    async fn fill_disk(&self, ms: u64) -> Result<()> {
        let _recovering = self.recovering.disk.lock().await;
        let Ok(disk) = &self.test_bed.disk else {
            return Ok(());
        };
        let before = self.recorder.store_errors();
        let database = disk.path().join(SQLITE_FILE);
        tokio::task::spawn_blocking(move || shorten_log(&database)).await?;
        disk.fill()?;
        sleep(Duration::from_millis(ms)).await;
        let refused = timeout(TRIGGER_TIMEOUT, async {
            while self.recorder.store_errors() == before {
                disk.fill()?;
                sleep(DISK_POLL).await;
            }
            anyhow::Ok(())
        });
        if let Ok(refused) = refused.await {
            refused?;
            self.recorder.fault("fill_disk", "sqlite");
        }
        Ok(disk.free()?)
    }

    /// Counted only if the same process was stopped for longer than a lease.
    async fn stop(&self, target: Target, ms: u64, ends: Instant) {
        let _recovering = self.recovering.process(target).lock().await;
        let length = Duration::from_millis(ms);
        if Instant::now() + length > ends + length / 2 {
            return;
        }
        let process = self.test_bed.process(target);
        let began = Instant::now();
        let Some(stopped) = process.signal(Signal::STOP) else {
            return;
        };
        sleep(length).await;
        let silent = began.elapsed() > Duration::from_millis(LEASE_MS);
        if process.signal(Signal::CONT) == Some(stopped) && silent {
            self.recorder.fault("stop", process.name());
        }
    }

    async fn start_redis(&self) -> Result<()> {
        let mut attempt = 1;
        loop {
            let test_bed = Arc::clone(&self.test_bed);
            // Blocks until Redis is ready.
            let started =
                tokio::task::spawn_blocking(move || test_bed.redis().primary_mut().start_again())
                    .await?;
            match started {
                Ok(()) => return Ok(()),
                Err(error) if attempt == START_ATTEMPTS => return Err(error),
                Err(_) => attempt += 1,
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Terminates connections of PostgreSQL; none if the server cannot be reached.
    async fn terminate(&self, count: i64, chosen: i64) {
        let Some(server) = &self.test_bed.postgres else {
            return;
        };
        let Ok((client, connection)) = tokio_postgres::connect(&server.url(), NoTls).await else {
            return;
        };
        let talking = tokio::spawn(connection);
        if let Ok(ended) = client.query(TERMINATE, &[&count, &chosen]).await {
            for _ in ended.iter().filter(|row| row.get(0)) {
                self.recorder.fault("terminate_backend", "postgres");
            }
        }
        drop(client);
        let _ = talking.await;
    }

    /// What the proxy in front of the application did, one line each.
    fn note_upstream(&self, before: ChaosCounts, after: ChaosCounts) {
        let counted = [
            (
                "reset_mid_response",
                after.reset_mid_response - before.reset_mid_response,
            ),
            (
                "reset_before_response",
                after.reset_before_response - before.reset_before_response,
            ),
            (
                "answer_instead",
                after.answered_instead - before.answered_instead,
            ),
            ("refuse_upstream", after.refused - before.refused),
            ("delay_upstream", after.delayed - before.delayed),
        ];
        for (name, count) in counted {
            for _ in 0..count {
                self.recorder.fault(name, "upstream");
            }
        }
    }
}

fn link_name(link: Link) -> String {
    format!("link-{}", link + 1)
}

/// Truncates SQLite's log. The log keeps its size and is overwritten from the start, so the store
/// might need no more space for a long time. After truncation the next write needs space.
///
/// A reader may block the truncation; then the log stays, and the store may not notice the full disk.
fn shorten_log(database: &Path) {
    let _ = Connection::open(database).and_then(|connection| {
        connection.busy_timeout(TRIGGER_TIMEOUT)?;
        connection.pragma(None, "wal_checkpoint", "TRUNCATE", |_| Ok(()))
    });
}
