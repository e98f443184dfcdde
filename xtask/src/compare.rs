//! `cargo xtask compare`: peers beside Semel, in one run. The same load and the same probes, one
//! subject at a time, each with a store of its own.

mod cpu;
mod declared;
mod install;
mod keeper;
mod ledger;
mod load;
mod outcome;
mod probe;
mod restate;
mod stage;
mod subjects;
mod table;
mod versions;

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use self::install::Shop;
use self::ledger::Ledger;
use self::probe::Prober;
use self::stage::{Hall, Stage};
use self::subjects::Subject;
use crate::process::{Interrupt, Interrupted, cargo, now, run_interruptible};
use crate::{bench, evidence};

/// A `semel` that is built already, instead of building it here. For development.
const SEMEL_VARIABLE: &str = "SEMEL_BINARY";
/// Another one that has `check` and `bench`. For development.
const PROBE_VARIABLE: &str = "SEMEL_PROBE";

pub(crate) fn run_all(root: &Path, may_install: bool, peers: &[String]) -> Result<()> {
    let chosen = subjects::chosen(peers)?;
    let began = evidence::began(root, "cargo xtask compare")?;
    let interrupt = Interrupt::listen()?;
    let semel = match env::var_os(SEMEL_VARIABLE) {
        Some(given) => PathBuf::from(given),
        None => built(root, &interrupt)?,
    };
    let probe = env::var_os(PROBE_VARIABLE).map_or_else(|| semel.clone(), PathBuf::from);

    let ledger = Ledger::open()?.url();
    let place = tempfile::tempdir().context("cannot create a temporary directory")?;
    let shop = Shop {
        root,
        may_install,
        interrupt: &interrupt,
    };
    let hall = Hall {
        shop,
        ledger: &ledger,
        semel: &semel,
    };
    let prober = Prober {
        semel: &probe,
        ledger: &ledger,
        interrupt: &interrupt,
        place: place.path(),
    };

    // All of it first: what is built or installed beside a measurement is measured.
    let mut prepared = Vec::new();
    for subject in chosen {
        println!("\n==> compare: {} is made ready", subject.guard.name());
        prepared.push((subject, hall.ready(subject)));
    }
    let mut results = Vec::new();
    for (subject, ready) in prepared {
        let started = now();
        let (name, store) = (subject.guard.name(), subject.store.name());
        println!("\n==> compare: {name}, {store}");
        results.push(compared(&hall, &prober, subject, ready)?);
        let seconds = started.elapsed().as_secs();
        println!("<== compare: {name}, {store}: {seconds} s");
    }
    println!("{}", table::rendered(&results));
    // A part of the peers is no comparison to keep.
    if peers.is_empty() {
        let content = json!({
            "subjects": results,
            "interpreters": versions::interpreters(),
            "ended": versions::date(),
        });
        evidence::record(root, "compare", &began, &content)?;
    }
    judged(&results)
}

fn built(root: &Path, interrupt: &Interrupt) -> Result<PathBuf> {
    let mut build = cargo(root);
    build.args(["build", "--release", "-p", "semel-cli"]);
    run_interruptible(&mut build, interrupt)?;
    Ok(bench::target(root)?.join("release").join("semel"))
}

/// A peer that cannot run is a result, too. Only somebody who wants us to stop is an error.
fn compared(
    hall: &Hall<'_>,
    prober: &Prober<'_>,
    subject: Subject,
    ready: Result<Vec<String>>,
) -> Result<Value> {
    let guard = subject.guard;
    let mut result = described(subject);
    match ready {
        Ok(installed) => result["installed"] = installed.into(),
        Err(error) => return unable(result, "cannot be started", error),
    }
    if guard.is_loaded() {
        result = match measured(hall, prober, subject, &mut result) {
            Ok(()) => result,
            Err(error) => unable(result, "no figures", error)?,
        };
    }
    // With a store of its own: what the load left behind is no part of a probe.
    if !guard.is_baseline() {
        result = match probed(hall, prober, subject, &mut result) {
            Ok(()) => result,
            Err(error) => unable(result, "no probes", error)?,
        };
    }
    Ok(result)
}

/// A row before anything was seen.
fn described(subject: Subject) -> Value {
    let guard = subject.guard;
    let not_promised = subject.not_promised().iter();
    let not_promised = not_promised.map(|(id, reason)| json!({ "id": id, "reason": reason }));
    json!({
        "name": guard.title(),
        "version": guard.version(),
        "language": guard.language(),
        "store": subject.store.name(),
        "ours": guard.is_ours(),
        "baseline": guard.is_baseline(),
        "notes": subject.note(),
        "and_then": subject.and_then(),
        "not_promised": not_promised.collect::<Vec<_>>(),
        "installed": [],
        "servers": [],
        "before": null,
        "ran": false,
        "reason": "",
        "new": null,
        "replay": null,
        "probes": [],
    })
}

fn measured(
    hall: &Hall<'_>,
    prober: &Prober<'_>,
    subject: Subject,
    result: &mut Value,
) -> Result<()> {
    let stage = Stage::set(hall, subject)?;
    result["ran"] = true.into();
    result["servers"] = stage.servers().into();
    let load_average = cpu::load_average();
    let busy = cpu::busy(prober.interrupt)?;
    result["before"] = json!({ "load_average": load_average, "busy_processors": busy });
    let figures = prober
        .bench(subject.guard, &stage)
        .with_context(|| format!("its last words: {}", stage.last_words()))?;
    result["new"] = figures["new"].clone();
    result["replay"] = figures["replay"].clone();
    Ok(())
}

fn probed(
    hall: &Hall<'_>,
    prober: &Prober<'_>,
    subject: Subject,
    result: &mut Value,
) -> Result<()> {
    let stage = Stage::set(hall, subject)?;
    result["ran"] = true.into();
    result["servers"] = stage.servers().into();
    let found = prober
        .check(subject.guard, &stage)
        .with_context(|| format!("its last words: {}", stage.last_words()))?;
    for probe in &found {
        let (verdict, id) = (said(probe, "verdict"), said(probe, "id"));
        println!("{verdict:<9} {id} {}", probe["seen"]);
    }
    result["probes"] = found.into();
    Ok(())
}

/// Adds the reason, unless it is that we are to stop.
fn unable(mut result: Value, what: &str, error: anyhow::Error) -> Result<Value> {
    if error.is::<Interrupted>() {
        return Err(error);
    }
    let before = said(&result, "reason").to_owned();
    let separator = if before.is_empty() { "" } else { "; " };
    let reason = format!("{before}{separator}{what}: {error:#}");
    println!("{reason}");
    result["reason"] = reason.into();
    Ok(result)
}

/// Ours have to run, with figures and without a failed guarantee. Whether a peer does is a
/// finding.
fn judged(results: &[Value]) -> Result<()> {
    let mut wrong = Vec::new();
    for result in results.iter().filter(|result| result["ours"] == true) {
        let who = format!("{}, {}", said(result, "name"), said(result, "store"));
        if !said(result, "reason").is_empty() {
            wrong.push(format!("{who}: {}", said(result, "reason")));
        }
        for probe in result["probes"].as_array().into_iter().flatten() {
            if probe["verdict"] == "fail" {
                wrong.push(format!(
                    "{who}: {} failed: {}",
                    said(probe, "id"),
                    probe["seen"]
                ));
            }
        }
    }
    if !wrong.is_empty() {
        bail!("ours did not hold:\n{}", wrong.join("\n"));
    }
    Ok(())
}

fn said<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(ours: bool, reason: &str, verdict: &str) -> Value {
        json!({
            "name": "a", "store": "memory", "ours": ours, "reason": reason,
            "probes": [{"id": "replay", "verdict": verdict, "seen": ["twice"]}],
        })
    }

    #[test]
    fn only_ours_can_fail_the_command() {
        assert!(judged(&[result(true, "", "pass"), result(false, "x", "fail")]).is_ok());
        let error = judged(&[result(true, "", "fail")]).unwrap_err().to_string();
        assert!(
            error.contains("replay") && error.contains("twice"),
            "{error}"
        );
        assert!(judged(&[result(true, "cannot be started", "pass")]).is_err());
        assert!(judged(&[result(true, "", "not_seen")]).is_ok());
    }

    #[test]
    fn reasons_add_up_and_an_interrupt_is_none() {
        let first = unable(json!({"reason": ""}), "no figures", anyhow::anyhow!("a")).unwrap();
        let second = unable(first, "no probes", anyhow::anyhow!("b")).unwrap();
        assert_eq!(second["reason"], "no figures: a; no probes: b");
        assert!(unable(json!({}), "no figures", Interrupted.into()).is_err());
    }
}
