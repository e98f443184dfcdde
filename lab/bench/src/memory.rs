//! Whether the gateway's memory stays where it is, under a mixed load.

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;

use crate::client::{Client, Expect, Keyed, Keys, Latencies, Plan, Request, Shot, Until};
use crate::http::{Starter, knows_gateway};
use crate::measure::middle;
use crate::process::resident;
use crate::store::scratch;

/// Keys that are replayed over and over.
const REPLAYED: u64 = 1_000;

/// Of so many requests one has a large body, and the next a large answer.
const LARGE_EVERY: u64 = 200;

/// Caches fill in this time, or in a tenth of a shorter run.
const WARM_UP: Duration = Duration::from_mins(1);

/// The last third beside the first.
const TARGET: f64 = 1.2;

#[derive(clap::Args)]
pub(crate) struct Settings {
    /// The `semel` binary.
    #[arg(long)]
    semel: Option<PathBuf>,
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Requests per second, at fixed moments: as many as the server could answer would fill
    /// the disk with stored bodies.
    #[arg(long, default_value_t = 1000.0)]
    rate: f64,
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Milliseconds between two samples of the memory.
    #[arg(long, default_value_t = 1000)]
    sample_ms: u64,
    /// Where the files are made; one to two gigabytes for the defaults.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Fails if the target is missed or the binary has no gateway.
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let Some(semel) = knows_gateway(settings.semel.as_deref()) else {
        ensure!(!settings.check, "there is no gateway to be measured");
        return Ok(());
    };
    let directory = scratch(settings.directory.clone())?;
    let start = Starter {
        directory: directory.path(),
    };
    let application = start.plain()?;
    let gateway = start.gateway("gateway", semel, &application)?;
    let mut client = Client::connect(gateway.address, settings.connections)?;
    let mut latencies = Latencies::new();
    let mut mix = Mix::new();
    client.closed(
        &mut mix.to_be_replayed(),
        Until::Requests(REPLAYED),
        &mut latencies,
    )?;

    let time = Duration::from_secs_f64(settings.minutes * 60.0);
    let id = gateway.id();
    let sample = Duration::from_millis(settings.sample_ms);
    let (stop, stopped) = channel::<()>();
    let watch = std::thread::spawn(move || {
        let mut samples = Vec::new();
        while stopped.recv_timeout(sample) == Err(RecvTimeoutError::Timeout) {
            samples.push(resident(id)?);
        }
        anyhow::Ok(samples)
    });
    let driven = client.paced(&mut mix, settings.rate, time, &mut latencies);
    drop(stop);
    let samples = watch.join().ok().context("the watch panicked")??;
    let requests = driven?;
    latencies.clear();

    println!(
        "{requests} requests, {} samples of the resident memory",
        samples.len()
    );
    report(&samples, sample, settings.check)
}

fn report(samples: &[u64], sample: Duration, check: bool) -> Result<()> {
    let mebibytes: Vec<_> = samples
        .iter()
        .map(|&bytes| bytes as f64 / f64::from(1 << 20))
        .collect();
    ensure!(mebibytes.len() >= 10, "too short for ten samples");
    for tenth in 1..=10 {
        let at = mebibytes.len() * tenth / 10 - 1;
        println!("{tenth:>2}/10 {:>9.1} MiB", mebibytes[at]);
    }
    let growth = growth(&mebibytes, sample);
    let holds = growth <= TARGET;
    println!(
        "last third / first third after the warm-up: {growth:.2} (limit: ≤ {TARGET}) {}",
        if holds { "holds" } else { "MISSED" }
    );
    ensure!(!check || holds, "the gateway's memory grows");
    Ok(())
}

/// The median of the last third of the samples by that of the first, the warm-up left out.
fn growth(samples: &[f64], sample: Duration) -> f64 {
    let warm_up = (WARM_UP.as_millis() / sample.as_millis().max(1)) as usize;
    let rest = &samples[warm_up.min(samples.len() / 10)..];
    let third = rest.len() / 3;
    let median = |samples: &[f64]| middle(samples.iter().copied());
    median(&rest[rest.len() - third..]) / median(&rest[..third])
}

/// New keys, replays, no keys, and now and then something large, with and without a key.
struct Mix {
    bare: Request,
    keyed: Request,
    /// 1 to 8 MiB to the server.
    uploads: Vec<Request>,
    /// 512 KiB to 2 MiB from it; more than 1 MiB is passed on, but not stored.
    downloads: Vec<Request>,
    stored: Keys,
    fresh: Keys,
    sent: u64,
}

impl Mix {
    fn new() -> Self {
        let uploads = [1, 2, 4, 8].map(|mebibytes: usize| {
            let body = large_json((mebibytes << 20) - 1024);
            move |keyed| Request::post("/sized?bytes=512", "application/json", body.clone(), keyed)
        });
        let downloads = [512, 1024, 1536, 2048].map(|kibibytes: usize| {
            let target = format!("/sized?bytes={}", kibibytes << 10);
            let body = Bytes::from_static(b"{}");
            move |keyed| Request::post(&target, "application/json", body.clone(), keyed)
        });
        Self {
            bare: Request::payment(Keyed::No),
            keyed: Request::payment(Keyed::Yes),
            uploads: both_ways(&uploads),
            downloads: both_ways(&downloads),
            stored: Keys::new(),
            fresh: Keys::new(),
            sent: 0,
        }
    }

    /// Executes what the mix replays.
    fn to_be_replayed(&self) -> Filling {
        Filling {
            request: Request::payment(Keyed::Yes),
            keys: self.stored.clone(),
            sent: 0,
        }
    }
}

/// Each with a key and without.
fn both_ways(makes: &[impl Fn(Keyed) -> Request]) -> Vec<Request> {
    let requests = makes
        .iter()
        .flat_map(|make| [Keyed::Yes, Keyed::No].map(make));
    requests.collect()
}

impl Plan for Mix {
    fn next(&mut self) -> Shot<'_> {
        let number = self.sent;
        self.sent += 1;
        let cycle = (number / LARGE_EVERY) as usize;
        let (request, stored) = match (number % LARGE_EVERY, number % 5) {
            (0, _) => (&self.uploads[cycle % self.uploads.len()], false),
            (1, _) => (&self.downloads[cycle % self.downloads.len()], false),
            (_, 0 | 1) => (&self.keyed, false),
            (_, 2 | 3) => (&self.keyed, true),
            (_, _) => (&self.bare, false),
        };
        // Where the request has no place for a key, none is sent.
        let (key, expect) = if stored {
            (self.stored.text(number % REPLAYED), Expect::Replay)
        } else {
            (self.fresh.text(number), Expect::First)
        };
        Shot {
            request,
            key: Some(key),
            expect,
        }
    }
}

struct Filling {
    request: Request,
    keys: Keys,
    sent: u64,
}

impl Plan for Filling {
    fn next(&mut self) -> Shot<'_> {
        self.sent += 1;
        Shot {
            request: &self.request,
            key: Some(self.keys.text(self.sent - 1)),
            expect: Expect::First,
        }
    }
}

/// An object of this many bytes.
fn large_json(bytes: usize) -> Bytes {
    const AROUND: (&str, &str) = ("{\"scan\":\"", "\"}");
    let filling = "x".repeat(bytes - AROUND.0.len() - AROUND.1.len());
    format!("{}{filling}{}", AROUND.0, AROUND.1).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn growth_leaves_the_warm_up_out() {
        let mut samples = vec![1.0; 60];
        samples.extend([100.0; 180]);
        samples.extend([150.0; 180]);
        assert!((growth(&[1.0; 600], SECOND) - 1.0).abs() < 1e-9);
        // 60 of 420 samples are more than a tenth: 42 are left out.
        assert!((growth(&samples, SECOND) - 1.5).abs() < 1e-9);
    }

    #[test]
    fn the_mix_replays_only_what_was_stored_and_never_repeats_a_new_key() {
        let mut mix = Mix::new();
        let stored: Vec<_> = (0..REPLAYED)
            .map(|number| mix.stored.text(number))
            .collect();
        let mut fresh = std::collections::HashSet::new();
        let mut replays = 0;
        for _ in 0..LARGE_EVERY * 8 {
            let shot = mix.next();
            let key = shot.key.unwrap();
            if shot.expect == Expect::Replay {
                assert!(stored.contains(&key));
                replays += 1;
            } else {
                assert!(fresh.insert(key));
            }
        }
        assert!(replays > 0);
    }
}
