//! Deploys: new configurations for the gateways and the worker, while clients retry.

use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::faults::FaultInjector;
use crate::operation::Leg;
use crate::plan::{GATEWAYS, Target};
use crate::random::Random;

const TEMPLATE: &str = include_str!("semel.toml");
/// Fingerprint rules of both routes. Under each of them an honest retry is the same request, and
/// another amount is another one. Fewer than the store keeps for an operation: none is refused.
const RULES: [&str; 6] = [
    "{}",
    "{ defaults = { \"/channel\" = \"web\" } }",
    "{ defaults = { \"/channel\" = \"app\" } }",
    "{ ignore = [\"/currency\"] }",
    "{ decimals = [\"/amount\"] }",
    "{ fields = [\"/amount\", \"/account\", \"/merchant_reference\"] }",
];
/// How many names each operation takes turns with.
const NAMES: u64 = 4;
/// How long a gateway with an unsafe configuration may take to refuse it.
const REFUSAL: Duration = Duration::from_secs(5);
/// A little more than `drain` of the gateways' configuration.
const DRAIN: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);
/// What a gateway logs when it refuses a configuration.
const REFUSED: &str = "is refused; the running one stays in use";

/// What changes of a configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Settings {
    /// 0 is the first name.
    name: u64,
    /// An index into [`RULES`].
    rules: usize,
    unsafe_change: Option<UnsafeChange>,
}

/// A change after which retries would not find their records.
#[derive(Clone, Copy, Debug, PartialEq)]
enum UnsafeChange {
    RenamedWithoutWas,
    KeyScope,
    Header,
    Tenant,
}

/// How a process gets its new configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rollout {
    /// SIGHUP.
    Reload,
    /// SIGTERM, and a start after the drain.
    Restart,
    /// SIGKILL, and a start.
    Kill,
}

/// One deploy: each process in turn, with a pause after each, in milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Deploy {
    leg: Leg,
    settings: Settings,
    steps: Vec<(Target, Rollout, u64)>,
}

impl Settings {
    /// The configuration file.
    pub(crate) fn render(self, cache: &str) -> String {
        let changed = |what| self.unsafe_change == Some(what);
        let key_scope = if changed(UnsafeChange::KeyScope) {
            "key_scope = \"tenant\""
        } else {
            ""
        };
        let route = |first: &str| {
            let operation = match self.name {
                _ if changed(UnsafeChange::RenamedWithoutWas) => {
                    format!("operation = \"{first}_renamed\"")
                }
                0 => format!("operation = \"{first}\""),
                name => format!("operation = \"{first}_{name}\"\nwas = \"{first}\""),
            };
            let rules = RULES[self.rules];
            format!("{operation}\nfingerprint = {rules}\n{key_scope}")
        };
        let header = if changed(UnsafeChange::Header) {
            "header = \"X-Request-Id\""
        } else {
            ""
        };
        let tenant = if changed(UnsafeChange::Tenant) {
            "none"
        } else {
            "authorization"
        };
        TEMPLATE
            .replace("{{cache}}", cache)
            .replace("{{header}}", header)
            .replace("{{tenant}}", tenant)
            .replace("{{keyed}}", &route("create_payment"))
            .replace("{{unkeyed}}", &route("create_unkeyed_payment"))
    }
}

impl Deploy {
    pub(crate) fn draw(leg: Leg, is_unsafe: bool, random: &mut Random) -> Self {
        const UNSAFE: [UnsafeChange; 4] = [
            UnsafeChange::RenamedWithoutWas,
            UnsafeChange::KeyScope,
            UnsafeChange::Header,
            UnsafeChange::Tenant,
        ];
        let unsafe_change = is_unsafe.then(|| *random.pick(&UNSAFE));
        let mut targets = match leg {
            Leg::Postgres => (0..GATEWAYS).map(Target::Gateway).collect(),
            Leg::Sqlite => vec![Target::Sqlite],
        };
        for last in (1..targets.len()).rev() {
            targets.swap(last, random.index(last + 1));
        }
        if unsafe_change.is_some() {
            // A pipeline stops at the first process that refuses.
            targets.truncate(1);
        } else if leg == Leg::Postgres {
            targets.insert(random.index(targets.len() + 1), Target::Worker);
        }
        let steps = targets.into_iter().map(|target| {
            let rollout = match (target, random.below(3)) {
                (Target::Worker, _) | (_, 0) => Rollout::Restart,
                (_, 1) => Rollout::Kill,
                (_, _) => Rollout::Reload,
            };
            (target, rollout, random.between(100, 600))
        });
        let steps = steps.collect();
        let settings = Settings {
            name: random.below(NAMES),
            rules: random.index(RULES.len()),
            unsafe_change,
        };
        Self {
            leg,
            settings,
            steps,
        }
    }
}

impl FaultInjector {
    /// Rolls a configuration out; in between, old and new processes serve the store.
    pub(crate) async fn deploy(&self, deploy: Deploy, ends: Instant) -> Result<()> {
        let mut running = self.recovering.deployed(deploy.leg).lock().await;
        if Instant::now() >= ends {
            return Ok(());
        }
        let settings = deploy.settings;
        if settings.unsafe_change.is_some() {
            return self.deploy_unsafe(&deploy, *running).await;
        }
        self.test_bed.configure(deploy.leg, settings)?;
        *running = settings;
        for (target, rollout, pause) in deploy.steps {
            let _recovering = self.recovering.process(target).lock().await;
            let process = self.test_bed.process(target);
            match rollout {
                Rollout::Reload => {
                    self.test_bed.wait_for(target).await?;
                    process.signal(Signal::HUP);
                }
                Rollout::Restart => {
                    process.stop(DRAIN).await?;
                    process.start()?;
                }
                Rollout::Kill => {
                    process.kill();
                    process.start()?;
                }
            }
            self.recorder.fault("roll_out", process.name());
            sleep(Duration::from_millis(pause)).await;
        }
        self.recorder.fault("deploy", format!("{settings:?}"));
        Ok(())
    }

    /// A configuration that its gateway must refuse. One that does not serves clients with it until
    /// the next deploy, so that the effects show.
    async fn deploy_unsafe(&self, deploy: &Deploy, running: Settings) -> Result<()> {
        let Some((target, rollout, _)) = deploy.steps.first() else {
            return Ok(());
        };
        let _recovering = self.recovering.process(*target).lock().await;
        let process = self.test_bed.process(*target);
        // It runs before it is asked to run with something else.
        self.test_bed.wait_for(*target).await?;
        self.test_bed.configure(deploy.leg, deploy.settings)?;
        let until = Instant::now() + REFUSAL;
        let mut refused = false;
        if *rollout == Rollout::Reload {
            let before = process.logged(REFUSED)?;
            process.signal(Signal::HUP);
            while !refused && Instant::now() < until {
                sleep(POLL).await;
                refused = process.logged(REFUSED)? > before;
            }
        } else {
            process.stop(DRAIN).await?;
            process.try_start()?;
            while !refused && Instant::now() < until {
                sleep(POLL).await;
                refused = process.has_ended()?;
            }
        }
        self.test_bed.configure(deploy.leg, running)?;
        process.start()?;
        if refused {
            let what = format!("{:?}", deploy.settings);
            self.recorder.fault("refused_deploy", what);
        }
        Ok(())
    }
}
