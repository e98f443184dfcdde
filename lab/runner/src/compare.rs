//! `cargo xtask compare`: runs the same load and the same probes against Semel and its peers, one
//! subject at a time, each with a store of its own.

mod cpu;
mod declared;
mod deployment;
mod install;
mod ledger;
mod load;
mod outcome;
mod probe;
mod restate;
mod subjects;
mod supervisor;
mod table;
mod versions;

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use self::deployment::{CompareContext, Deployment, PlainApplication};
use self::install::PeerInstaller;
use self::ledger::Ledger;
use self::probe::{Effort, Prober};
use self::subjects::Subject;
use crate::process::{Interrupt, Interrupted, cargo, now, run_interruptible};
use crate::{evidence, process};
use xtask::DIST;

/// Use this `semel` binary instead of building one. For development.
const SEMEL_VARIABLE: &str = "SEMEL_BINARY";
/// Use this binary for `check` and `bench`. For development.
const PROBE_VARIABLE: &str = "SEMEL_PROBE";

pub(crate) fn run_all(root: &Path, may_install: bool, peers: &[String]) -> Result<()> {
    let chosen = subjects::chosen(peers)?;
    let began = evidence::began(root, "cargo xtask compare")?;
    let interrupt = Interrupt::listen()?;
    let semel = match env::var_os(SEMEL_VARIABLE) {
        Some(given) => PathBuf::from(given),
        None => build(root, &interrupt)?,
    };
    let probe = env::var_os(PROBE_VARIABLE).map_or_else(|| semel.clone(), PathBuf::from);

    let ledger = Ledger::open()?.url();
    let place = tempfile::tempdir().context("cannot create a temporary directory")?;
    let installer = PeerInstaller {
        root,
        may_install,
        interrupt: &interrupt,
    };
    let context = CompareContext {
        installer,
        ledger: &ledger,
        semel: &semel,
        plain: PlainApplication::Rust,
    };
    let prober = Prober {
        semel: &probe,
        ledger: &ledger,
        interrupt: &interrupt,
        place: place.path(),
        effort: Effort::Full,
    };

    // Build and install everything first: it would disturb the measurements.
    let mut prepared = Vec::new();
    for subject in chosen {
        println!("\n==> compare: prepare {}", subject.guard.name());
        prepared.push((subject, context.ready(subject)));
    }
    let mut results = Vec::new();
    for (subject, ready) in prepared {
        let started = now();
        let (name, store) = (subject.guard.name(), subject.store.name());
        println!("\n==> compare: {name}, {store}");
        results.push(compare_subject(&context, &prober, subject, ready)?);
        let seconds = started.elapsed().as_secs();
        println!("<== compare: {name}, {store}: {seconds} s");
    }
    println!("{}", table::render(&results));
    // A comparison with only some of the peers is not recorded.
    if peers.is_empty() {
        let report = json!({
            "subjects": results,
            "interpreters": versions::interpreters(),
            "ended": versions::date(),
        });
        evidence::record(root, "compare", &began, &report)?;
    }
    check_ours(&results)
}

fn build(root: &Path, interrupt: &Interrupt) -> Result<PathBuf> {
    let mut build = cargo(root);
    build.args([
        "build",
        "--profile",
        DIST,
        "--features",
        DIST,
        "-p",
        "semel-cli",
    ]);
    run_interruptible(&mut build, interrupt)?;
    Ok(process::target_directory(root)?.join(DIST).join("semel"))
}

/// Starts the gateway in front of an application that needs no build, loads it for a second and
/// probes it: shows that the comparison runs, and records nothing.
pub(crate) fn smoke(root: &Path, semel: &Path, interrupt: &Interrupt) -> Result<()> {
    let ledger = Ledger::open()?.url();
    let place = tempfile::tempdir().context("cannot create a temporary directory")?;
    let context = CompareContext {
        installer: PeerInstaller {
            root,
            may_install: false,
            interrupt,
        },
        ledger: &ledger,
        semel,
        plain: PlainApplication::Python,
    };
    let prober = Prober {
        semel,
        ledger: &ledger,
        interrupt,
        place: place.path(),
        effort: Effort::Smoke,
    };
    let mut result = empty_result(subjects::SMOKE);
    measure(&context, &prober, subjects::SMOKE, &mut result)?;
    run_probes(&context, &prober, subjects::SMOKE, &mut result)?;
    let results = [result];
    println!("{}", table::render(&results));
    check_ours(&results)
}

/// Measures and probes one subject. A peer that cannot run is a result; only an interrupt is an error.
fn compare_subject(
    context: &CompareContext<'_>,
    prober: &Prober<'_>,
    subject: Subject,
    ready: Result<Vec<String>>,
) -> Result<Value> {
    let guard = subject.guard;
    let mut result = empty_result(subject);
    match ready {
        Ok(installed) => result["installed"] = installed.into(),
        Err(error) => return add_reason(result, "cannot be started", error),
    }
    if guard.is_loaded() {
        result = match measure(context, prober, subject, &mut result) {
            Ok(()) => result,
            Err(error) => add_reason(result, "no rates", error)?,
        };
    }
    // With a new store, so that the load does not affect the probes.
    if !guard.is_baseline() {
        result = match run_probes(context, prober, subject, &mut result) {
            Ok(()) => result,
            Err(error) => add_reason(result, "no probes", error)?,
        };
    }
    Ok(result)
}

/// The result of a subject before it is run.
fn empty_result(subject: Subject) -> Value {
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

fn measure(
    context: &CompareContext<'_>,
    prober: &Prober<'_>,
    subject: Subject,
    result: &mut Value,
) -> Result<()> {
    let deployment = Deployment::start(context, subject)?;
    result["ran"] = true.into();
    result["servers"] = deployment.servers().into();
    let load_average = cpu::load_average();
    let busy = cpu::busy(prober.interrupt)?;
    result["before"] = json!({ "load_average": load_average, "busy_processors": busy });
    let rates = prober
        .bench(subject.guard, &deployment)
        .with_context(|| format!("the end of its log: {}", deployment.log_tail()))?;
    result["new"] = rates["new"].clone();
    result["replay"] = rates["replay"].clone();
    Ok(())
}

fn run_probes(
    context: &CompareContext<'_>,
    prober: &Prober<'_>,
    subject: Subject,
    result: &mut Value,
) -> Result<()> {
    let deployment = Deployment::start(context, subject)?;
    result["ran"] = true.into();
    result["servers"] = deployment.servers().into();
    let found = prober
        .check(subject.guard, &deployment)
        .with_context(|| format!("the end of its log: {}", deployment.log_tail()))?;
    for probe in &found {
        let (verdict, id) = (text_field(probe, "verdict"), text_field(probe, "id"));
        println!("{verdict:<9} {id} {}", probe["seen"]);
    }
    result["probes"] = found.into();
    Ok(())
}

/// Adds the reason of a failure. An interrupt is returned as an error.
fn add_reason(mut result: Value, what: &str, error: anyhow::Error) -> Result<Value> {
    if error.is::<Interrupted>() {
        return Err(error);
    }
    let before = text_field(&result, "reason").to_owned();
    let separator = if before.is_empty() { "" } else { "; " };
    let reason = format!("{before}{separator}{what}: {error:#}");
    println!("{reason}");
    result["reason"] = reason.into();
    Ok(result)
}

/// Checks that Semel ran, with rates and without a failed guarantee. A failure of a peer is only a
/// result.
fn check_ours(results: &[Value]) -> Result<()> {
    let mut wrong = Vec::new();
    for result in results.iter().filter(|result| result["ours"] == true) {
        let who = format!(
            "{}, {}",
            text_field(result, "name"),
            text_field(result, "store")
        );
        if !text_field(result, "reason").is_empty() {
            wrong.push(format!("{who}: {}", text_field(result, "reason")));
        }
        for probe in result["probes"].as_array().into_iter().flatten() {
            if probe["verdict"] == "fail" {
                wrong.push(format!(
                    "{who}: {} failed: {}",
                    text_field(probe, "id"),
                    probe["seen"]
                ));
            }
        }
    }
    if !wrong.is_empty() {
        bail!("Semel failed:\n{}", wrong.join("\n"));
    }
    Ok(())
}

fn text_field<'a>(value: &'a Value, name: &str) -> &'a str {
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
        assert!(check_ours(&[result(true, "", "pass"), result(false, "x", "fail")]).is_ok());
        let error = check_ours(&[result(true, "", "fail")])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("replay") && error.contains("twice"),
            "{error}"
        );
        assert!(check_ours(&[result(true, "cannot be started", "pass")]).is_err());
        assert!(check_ours(&[result(true, "", "not_seen")]).is_ok());
    }

    #[test]
    fn reasons_are_joined_and_an_interrupt_is_an_error() {
        let first = add_reason(json!({"reason": ""}), "no rates", anyhow::anyhow!("a")).unwrap();
        let second = add_reason(first, "no probes", anyhow::anyhow!("b")).unwrap();
        assert_eq!(second["reason"], "no rates: a; no probes: b");
        assert!(add_reason(json!({}), "no rates", Interrupted.into()).is_err());
    }
}
