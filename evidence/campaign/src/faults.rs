//! Breaking things, and mending them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rusqlite::Connection;
use rustix::process::Signal;
use semel_testkit::pg_proxy::When;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_postgres::NoTls;

use crate::chaos::{Done, Mode};
use crate::ground::{Ground, SQLITE_FILE};
use crate::plan::{Action, GATEWAYS, LEASE_MS, Link, Phase, Target};
use crate::record::Recorder;

const TERMINATE: &str = include_str!("../queries/terminate.sql");
/// How long a plan waits for its moment before it is given up.
const MOMENT: Duration = Duration::from_secs(2);
/// Between two looks whether a full disk was noticed.
const LOOK: Duration = Duration::from_millis(50);
/// How often the supervisor looks.
const SUPERVISION: Duration = Duration::from_millis(200);
/// How often PostgreSQL or Redis is tried to be started again.
const START_ATTEMPTS: usize = 5;

/// What breaks things.
#[derive(Clone, Debug)]
pub(crate) struct Breaker {
    ground: Arc<Ground>,
    recorder: Recorder,
    /// What takes a while to be mended is broken again only afterwards.
    mending: Arc<Mending>,
}

#[derive(Debug, Default)]
struct Mending {
    postgres: Mutex<()>,
    redis: Mutex<()>,
    disk: Mutex<()>,
    /// One for each gateway's connections, and for the worker's.
    links: [Mutex<()>; GATEWAYS + 1],
    /// One for each gateway, the one on SQLite, the worker and the application.
    processes: [Mutex<()>; GATEWAYS + 3],
}

impl Mending {
    fn process(&self, target: Target) -> &Mutex<()> {
        &self.processes[match target {
            Target::Gateway(number) => number,
            Target::Sqlite => GATEWAYS,
            Target::Worker => GATEWAYS + 1,
            Target::App => GATEWAYS + 2,
        }]
    }
}

impl Breaker {
    pub(crate) fn new(ground: Arc<Ground>, recorder: Recorder) -> Self {
        Self {
            ground,
            recorder,
            mending: Arc::default(),
        }
    }

    /// Performs a phase's actions in time, and mends everything at its end.
    pub(crate) async fn perform(&self, phase: &Phase, began: Instant) -> Result<()> {
        self.begin(phase)?;
        let before = self.ground.chaos.done();
        let ends = began + Duration::from_millis(phase.ms);
        let mut under_way = JoinSet::new();
        for (at, action) in &phase.actions {
            sleep_until(began + Duration::from_millis(*at)).await;
            let (breaker, action) = (self.clone(), action.clone());
            under_way.spawn(async move { breaker.act(action, ends).await });
            while let Some(ended) = under_way.try_join_next() {
                ended??;
            }
        }
        sleep_until(ends).await;
        while let Some(ended) = under_way.join_next().await {
            ended??;
        }
        self.mend(phase)?;
        // Whoever ended in this phase is found in this phase.
        self.revive()?;
        self.note_upstream(before, self.ground.chaos.done());
        Ok(())
    }

    /// Starts again what ended by itself, for as long as this is polled.
    pub(crate) async fn supervise(&self) -> Result<()> {
        loop {
            self.revive()?;
            sleep(SUPERVISION).await;
        }
    }

    fn revive(&self) -> Result<()> {
        for process in self.ground.processes() {
            if process.revive()? {
                self.recorder.fault("ended_by_itself", process.name());
            }
        }
        Ok(())
    }

    fn begin(&self, phase: &Phase) -> Result<()> {
        if phase.name == "clocks"
            && let Ok(clock) = &self.ground.clock
        {
            clock.set(0)?;
            self.restart_shifted(Some(Arc::clone(clock)))?;
        }
        Ok(())
    }

    fn mend(&self, phase: &Phase) -> Result<()> {
        let ground = &self.ground;
        for link in &ground.links {
            link.heal();
        }
        ground.chaos.set(Mode::Pass);
        if phase.name == "clocks" && ground.clock.is_ok() {
            self.restart_shifted(None)?;
        }
        Ok(())
    }

    /// The last gateway, with or without a clock of its own.
    fn restart_shifted(&self, clock: Option<Arc<crate::clock::Shifted>>) -> Result<()> {
        let process = &self.ground.gateways[GATEWAYS - 1].process;
        process.kill();
        process.set_clock(clock);
        process.start()
    }

    async fn act(&self, action: Action, ends: Instant) -> Result<()> {
        let (ground, recorder) = (&self.ground, &self.recorder);
        let pause = |ms| sleep(Duration::from_millis(ms));
        match action {
            Action::Kill(target) => {
                // One that is stopped is to stay so past its lease.
                let Ok(_mending) = self.mending.process(target).try_lock() else {
                    return Ok(());
                };
                let process = ground.process(target);
                process.kill();
                recorder.fault("kill", process.name());
                process.start()?;
            }
            Action::Stop(target, ms) => self.stop(target, ms, ends).await,
            Action::CrashPostgres(ms) => self.crash_postgres(ms).await?,
            Action::Terminate(count, chosen) => self.terminate(count, chosen).await,
            Action::CutAfterCommit(link, tag) => {
                let when = When::completed(tag);
                self.cut(link, when, ends, "cut_after_commit").await;
            }
            Action::CutAfterReserve(link) => {
                let when = When::answered("begun AS (");
                self.cut(link, when, ends, "cut_after_reserve").await;
            }
            Action::CutAfterVerdict(link, text) => {
                let when = When::answered(text);
                self.cut(link, when, ends, "cut_after_verdict").await;
            }
            Action::Hold(link, text, ms) => {
                let held = ground.links[link].hold(When::before(text));
                if timeout(MOMENT, held.reached()).await.is_ok() {
                    recorder.fault("hold", format!("{} {text}", link_name(link)));
                    pause(ms).await;
                }
                held.open();
            }
            Action::SlowStore(link, delay, ms) => {
                let _mending = self.mending.links[link].lock().await;
                recorder.fault("slow_store", link_name(link));
                ground.links[link].delay(Duration::from_millis(delay));
                pause(ms).await;
                ground.links[link].heal();
            }
            Action::Freeze(link, ms) => {
                let _mending = self.mending.links[link].lock().await;
                recorder.fault("freeze_store", link_name(link));
                ground.links[link].freeze();
                pause(ms).await;
                ground.links[link].heal();
            }
            Action::MoveClock(offset) => {
                let process = &ground.gateways[GATEWAYS - 1].process;
                if let Ok(clock) = &ground.clock {
                    clock.set(offset)?;
                    // That the library moves a clock is held by a test; here it has to be there.
                    if process.has_mapped(clock.library()) {
                        recorder.fault("move_clock", format!("{offset:+}s"));
                    }
                }
            }
            Action::Upstream(mode) => ground.chaos.set(mode),
            Action::FlushRedis => {
                // It may be down at this moment, or have nothing to lose.
                if ground.redis().flush().is_ok_and(|keys| keys > 0) {
                    recorder.fault("flush_redis", "redis");
                }
            }
            Action::KillRedis(ms) => {
                let _mending = self.mending.redis.lock().await;
                ground.redis().kill()?;
                recorder.fault("kill_redis", "redis");
                pause(ms).await;
                self.start_redis().await?;
            }
            Action::FillDisk(ms) => self.fill_disk(ms).await?,
        }
        Ok(())
    }

    async fn crash_postgres(&self, ms: u64) -> Result<()> {
        let _mending = self.mending.postgres.lock().await;
        let server = Arc::clone(&self.ground.postgres);
        tokio::task::spawn_blocking(move || server.stop_immediate()).await?;
        self.recorder.fault("crash_postgres", "postgres");
        sleep(Duration::from_millis(ms)).await;
        let server = Arc::clone(&self.ground.postgres);
        tokio::task::spawn_blocking(move || server.start_again()).await?;
        Ok(())
    }

    /// A cut waits for its moment until the phase ends: each one that is made is counted.
    async fn cut(&self, link: Link, when: When, ends: Instant, name: &str) {
        let cut = self.ground.links[link].cut(when);
        if timeout_at(ends, cut.reached()).await.is_ok() {
            self.recorder.fault(name, link_name(link));
        }
    }

    /// Counts only if the store met the end.
    async fn fill_disk(&self, ms: u64) -> Result<()> {
        let _mending = self.mending.disk.lock().await;
        let Ok(disk) = &self.ground.disk else {
            return Ok(());
        };
        let before = self.recorder.stores_away();
        let database = disk.path().join(SQLITE_FILE);
        tokio::task::spawn_blocking(move || shorten_log(&database)).await?;
        disk.fill()?;
        sleep(Duration::from_millis(ms)).await;
        let refused = timeout(MOMENT, async {
            while self.recorder.stores_away() == before {
                disk.fill()?;
                sleep(LOOK).await;
            }
            anyhow::Ok(())
        });
        if let Ok(refused) = refused.await {
            refused?;
            self.recorder.fault("fill_disk", "sqlite");
        }
        disk.free()
    }

    /// Counts only if the very same process was silent for longer than a lease.
    async fn stop(&self, target: Target, ms: u64, ends: Instant) {
        let _mending = self.mending.process(target).lock().await;
        let length = Duration::from_millis(ms);
        if Instant::now() + length > ends + length / 2 {
            return;
        }
        let process = self.ground.process(target);
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
            let ground = Arc::clone(&self.ground);
            // It waits for what Redis says.
            let started = tokio::task::spawn_blocking(move || ground.redis().start_again()).await?;
            match started {
                Ok(()) => return Ok(()),
                Err(error) if attempt == START_ATTEMPTS => return Err(error),
                Err(_) => attempt += 1,
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// A server that cannot be asked at this moment ends no connections.
    async fn terminate(&self, count: i64, chosen: i64) {
        let url = self.ground.postgres.url();
        let Ok((client, connection)) = tokio_postgres::connect(&url, NoTls).await else {
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
    fn note_upstream(&self, before: Done, after: Done) {
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

/// SQLite's log keeps the room it once took, and is written again from its beginning: the store
/// might need no more for a long time. Cut off, the next write needs room, and there is none.
///
/// Somebody may be in the way all the time; then the log stays, and perhaps the end is not met.
fn shorten_log(database: &Path) {
    let _ = Connection::open(database).and_then(|connection| {
        connection.busy_timeout(MOMENT)?;
        connection.pragma(None, "wal_checkpoint", "TRUNCATE", |_| Ok(()))
    });
}
