//! Three regions, each in a network namespace with its own store, gateway and application, in front of
//! one provider: links are cut, gateways and applications are killed, and the list of regions changes.
//!
//! Clients send every request to any region, also the retries of one key.

mod deployment;

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use semel_campaign_checker::history::Run;
use semel_testkit::cluster::network::Network;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::Arguments;
use crate::client::{Client, Gateway, Shared, Traffic};
use crate::heal::{Charge, charges, decide, each, list};
use crate::http;
use crate::launcher::Programs;
use crate::operation::{Leg, Operations};
use crate::random::Random;
use crate::record::Recorder;
use crate::result;
use crate::test_bed::{STORE_IS_OPEN, wait_for_answer};
use deployment::{REGIONS, Regions};

/// What the long run and the short one need: cut links, kills and operations.
const LONG: [usize; 3] = [200, 60, 50_000];
const SHORT: [usize; 3] = [4, 3, 200];
/// How long clients work until it is seen whether there were enough faults and operations.
const SLICE: Duration = Duration::from_secs(6);
/// How long clients work after the list has changed.
const AFTER_CHANGE: Duration = Duration::from_secs(20);
/// A list is in use once a new key is executed by every region.
const AGREEMENT: Duration = Duration::from_mins(1);
/// How long a gateway with another list may take to be refused.
const REFUSAL: Duration = Duration::from_secs(10);
/// How long nothing must be in progress before an operator trusts the ledger.
const QUIET: Duration = Duration::from_secs(6);
const QUIET_PATIENCE: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(200);
/// How long clients try in one round, and how many rounds operators and clients take turns.
const PERSISTENCE: Duration = Duration::from_secs(20);
const ROUNDS: usize = 5;

/// A run, with what its parts share.
struct Campaign {
    regions: Regions,
    shared: Shared,
    recorder: Recorder,
    random: Random,
    clients: usize,
}

/// Runs the campaign, and returns whether it passed.
pub(crate) async fn campaign(
    arguments: &Arguments,
    programs: &Programs,
    place: &Path,
    seed: u64,
) -> Result<bool> {
    let hosts = REGIONS.map(|(_, host)| host);
    let network = match Network::create(&hosts, &[]) {
        Ok(network) => network,
        Err(error) if arguments.allow_skips => {
            println!("SKIPPED: regions: {error}");
            let skipped = json!({ "passed": true, "skipped": [{ "reason": error.to_string() }] });
            fs::write(&arguments.json, serde_json::to_vec_pretty(&skipped)?)?;
            return Ok(true);
        }
        Err(error) => return Err(error).context("regions need root for their namespaces"),
    };
    println!("seed {seed}");
    let regions = Regions::prepare(programs, place, network)?;
    let ledger = regions.ledger.clone();
    let history = place.join("history.jsonl");
    let run = Run {
        seed,
        short: arguments.short,
        all_replayed: true,
    };
    let (recorder, writing) = Recorder::create(&history, run)?;
    let known = regions.all.iter().zip(REGIONS);
    let gateways: Vec<_> = known
        .map(|(region, (name, _))| Gateway {
            name: name.to_owned(),
            address: region.address,
            tls: None,
        })
        .collect();
    let mut campaign = Campaign {
        shared: Shared {
            recorder: recorder.clone(),
            operations: Arc::new(Operations::default()),
            postgres: gateways.clone(),
            sqlite: gateways,
            admin: regions.all[0].admin,
        },
        regions,
        recorder: recorder.clone(),
        random: Random::new(seed),
        clients: arguments.clients,
    };
    campaign.perform(arguments.short).await?;
    drop(campaign);
    drop(recorder);
    writing.finish()?;

    let mut report = semel_campaign_checker::check(&history, &[ledger])?;
    let [cuts, kills, operations] = if arguments.short { SHORT } else { LONG };
    let at_least = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    report.require("region_cut", at_least(cuts));
    report.require("kill", at_least(kills));
    report.require("operations", at_least(operations));
    if !arguments.short {
        report.require("list_refused", 1);
        report.require("list_changed", 1);
    }
    let result = result::to_json(&report, Vec::new(), &[], arguments.allow_skips)?;
    fs::write(&arguments.json, serde_json::to_vec_pretty(&result)?)?;
    println!("{}", result::summary(&result));
    Ok(result["passed"] == true)
}

impl Campaign {
    async fn perform(&mut self, short: bool) -> Result<()> {
        let [cuts, kills, operations] = if short { SHORT } else { LONG };
        self.regions.start().await?;
        self.wait_until_agreed().await?;
        self.phase("region_cuts", cuts, operations * 3 / 4, Self::cut_links)
            .await?;
        self.phase("region_kills", kills, operations, Self::kill_one)
            .await?;
        self.heal().await?;
        self.refuse_list().await?;
        if short {
            return Ok(());
        }
        self.change_list().await?;
        let until = Instant::now() + AFTER_CHANGE;
        self.recorder.enter("region_after_change");
        let mut working = self.send_traffic(until);
        while Instant::now() < until {
            self.cut_links().await?;
            self.kill_one().await?;
        }
        while let Some(ended) = working.join_next().await {
            ended?;
        }
        self.report("region_after_change");
        self.heal().await
    }

    /// Traffic with faults, until there were enough of both.
    async fn phase(
        &mut self,
        name: &'static str,
        faults: usize,
        operations: usize,
        inject: impl AsyncFn(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.recorder.enter(name);
        let mut injected = 0;
        while injected < faults || self.shared.operations.count() < operations {
            let until = Instant::now() + SLICE;
            let mut working = self.send_traffic(until);
            while Instant::now() < until {
                inject(self).await?;
                injected += 1;
            }
            // Not aborted: every request has to be in the history.
            while let Some(ended) = working.join_next().await {
                ended?;
            }
        }
        self.report(name);
        Ok(())
    }

    fn send_traffic(&mut self, until: Instant) -> JoinSet<()> {
        let traffic = Traffic {
            leg: Leg::Postgres,
            badly: 30,
            provider: 60,
            again: 0,
            earlier: 20,
            disguised: 60,
            erased: 0,
        };
        let mut working = JoinSet::new();
        for _ in 0..self.clients {
            let mut client = Client::new(self.shared.clone(), self.random.fork());
            working.spawn(async move { client.work(traffic, until).await });
        }
        working
    }

    /// Cuts one region off from another, or from both, for a while.
    async fn cut_links(&mut self) -> Result<()> {
        let one = self.random.index(REGIONS.len());
        let others = [(one + 1) % REGIONS.len(), (one + 2) % REGIONS.len()];
        let pairs = [(one, others[0]), (one, others[1])];
        let pairs = if self.random.one_in(3) {
            &pairs[..]
        } else {
            &pairs[..1]
        };
        self.regions.cut(pairs)?;
        for (one, other) in pairs {
            let link = format!("{}-{}", REGIONS[*one].0, REGIONS[*other].0);
            self.recorder.fault("region_cut", link);
        }
        self.pause(100, 1_500).await;
        self.regions.heal_links()?;
        self.pause(50, 400).await;
        Ok(())
    }

    /// Kills a region's gateway, or now and then its application, and starts it again.
    async fn kill_one(&mut self) -> Result<()> {
        let region = self.random.index(REGIONS.len());
        let is_app = self.random.one_in(4);
        let region = &self.regions.all[region];
        let process = if is_app { &region.app } else { &region.gateway }.clone();
        process.kill();
        self.recorder.fault("kill", process.name());
        self.pause(0, 1_000).await;
        process.start()?;
        self.pause(300, 1_500).await;
        Ok(())
    }

    async fn pause(&mut self, least_ms: u64, most_ms: u64) {
        let ms = self.random.between(least_ms, most_ms);
        sleep(Duration::from_millis(ms)).await;
    }

    /// Waits until every region executes keys.
    async fn wait_until_agreed(&mut self) -> Result<()> {
        self.recorder.enter("warm_up");
        let until = Instant::now() + AGREEMENT;
        for region in &self.regions.all {
            loop {
                // A region that does not agree refuses the key; the application refuses the body.
                match http::send_empty_payment(region.address).await {
                    Some(status) if status != 503 => break,
                    _ if Instant::now() > until => bail!("{} does not agree", region.address),
                    _ => sleep(POLL).await,
                }
            }
        }
        Ok(())
    }

    /// A gateway with another list does not start while there are records, and changes nothing.
    async fn refuse_list(&mut self) -> Result<()> {
        self.recorder.enter("region_list");
        let at = self.random.index(REGIONS.len());
        let gateway = &self.regions.all[at].gateway;
        self.regions.configure(at, 8)?;
        gateway.kill();
        gateway.try_start()?;
        let until = Instant::now() + REFUSAL;
        while !gateway.has_ended()? {
            if Instant::now() > until {
                bail!("a changed list of regions is not refused");
            }
            sleep(POLL).await;
        }
        if gateway.logged("regions ap, eu, us (version 8")? == 0 {
            bail!("the refusal does not name the list");
        }
        self.recorder.fault("list_refused", REGIONS[at].0);
        self.regions.configure(at, 7)?;
        gateway.start()?;
        self.wait_until_agreed().await
    }

    /// Nothing is open, and no client sends a key again: the new list is accepted in every region.
    async fn change_list(&mut self) -> Result<()> {
        self.recorder.enter("region_list");
        self.shared.operations.forget_all();
        for at in 0..REGIONS.len() {
            self.regions.configure(at, 8)?;
            self.regions.accept(at)?;
        }
        for region in &self.regions.all {
            region.gateway.kill();
            region.gateway.start()?;
        }
        for region in &self.regions.all {
            wait_for_answer(region.admin, STORE_IS_OPEN).await?;
        }
        self.wait_until_agreed().await?;
        self.recorder.fault("list_changed", "all");
        Ok(())
    }

    /// Brings every operation to its end, and asks for all of them again, at any region.
    async fn heal(&mut self) -> Result<()> {
        self.recorder.enter("heal");
        self.regions.heal_links()?;
        self.regions.start().await?;
        self.wait_until_quiet().await?;
        self.recorder.enter("heal");
        for _ in 0..ROUNDS {
            self.decide().await?;
            let open = self.shared.operations.open();
            if open.is_empty() {
                break;
            }
            let until = Instant::now() + PERSISTENCE;
            let retry = async |client: &mut Client, operation: &_, index| {
                client.retry_until(operation, index, until).await;
            };
            each(&self.shared, self.clients, open, &mut self.random, retry).await;
        }
        let ended = self.shared.operations.ended();
        let ask_again = async |client: &mut Client, operation: &_, index| {
            let until = Instant::now() + PERSISTENCE;
            client.retry_until(operation, index, until).await;
        };
        each(
            &self.shared,
            self.clients,
            ended,
            &mut self.random,
            ask_again,
        )
        .await;
        for region in &self.regions.all {
            for status in ["in_progress", "unknown"] {
                for left in list(region.admin, &format!("status={status}")).await? {
                    self.recorder.leftover(&left.id, &left.status);
                }
            }
        }
        self.report("heal");
        Ok(())
    }

    async fn wait_until_quiet(&self) -> Result<()> {
        let patience = Instant::now() + QUIET_PATIENCE;
        let mut since = Instant::now();
        while since.elapsed() < QUIET {
            if self.regions.under_way().await.unwrap_or(1) > 0 {
                since = Instant::now();
            }
            anyhow::ensure!(Instant::now() < patience, "payments stay in progress");
            sleep(POLL).await;
        }
        Ok(())
    }

    /// Resolves the dead-lettered operations by the ledger, at their homes.
    async fn decide(&self) -> Result<()> {
        let ledger: HashMap<String, Charge> = charges(&self.regions.ledger)?;
        for region in &self.regions.all {
            for listed in list(region.admin, "dead_lettered=true").await? {
                let charge = ledger.get(&listed.id);
                decide(&self.recorder, region.admin, &listed, charge).await?;
            }
        }
        Ok(())
    }

    fn report(&self, phase: &str) {
        crate::report(phase, &self.shared);
    }
}
