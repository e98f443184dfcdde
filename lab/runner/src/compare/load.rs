//! Runs the same load against every subject with the released binary: `semel bench`, in rounds.

use std::env;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::cpu;
use super::deployment::{Deployment, ProcessIds};
use super::probe::{BODY, Effort, Prober};
use super::subjects::Guard;
use crate::process::Interrupted;

const CONNECTIONS: &str = "64";
/// The number of rounds; the median is reported, with the minimum and maximum.
const ROUNDS: usize = 3;
/// The length of each part of a round, in seconds.
const ROUND_SECONDS: u32 = 3;
/// The warm-up: some subjects compile at run time, and Restate's first answers take seconds.
const WARM_UP_SECONDS: u32 = 2;
/// Another length of a round in seconds, for development.
const SECONDS_VARIABLE: &str = "SEMEL_COMPARE_SECONDS";
/// The time limit, for a subject that hangs.
const BENCH_LIMIT: Duration = Duration::from_mins(2);
/// The parts of a round, in the order of `semel bench`. Duplicates come third, and are not reported.
const PARTS: [&str; 2] = ["new", "replay"];
/// The time at each end of a part that is excluded from the processor samples: nothing marks where
/// one part ends and the next begins.
const MARGIN: Duration = Duration::from_millis(300);

impl Prober<'_> {
    /// Measures new keys and replays. Returns `{"new": …, "replay": …}`.
    pub(super) fn bench(&self, guard: Guard, deployment: &Deployment) -> Result<Value> {
        if self.effort == Effort::Smoke {
            let round = self.load(guard, deployment, 1)?;
            return Ok(
                json!({ "new": median_round(&[&round["new"]])?, "replay": median_round(&[&round["replay"]])? }),
            );
        }
        let seconds = env::var(SECONDS_VARIABLE).ok();
        let seconds = seconds.and_then(|text| text.parse().ok());
        let seconds = seconds.unwrap_or(ROUND_SECONDS);
        // A subject that fails the warm-up also fails the measurement.
        if let Err(error) = self.load(guard, deployment, WARM_UP_SECONDS)
            && error.is::<Interrupted>()
        {
            return Err(error);
        }
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push(self.load(guard, deployment, seconds)?);
        }
        let of = |part: &str| -> Vec<&Value> { rounds.iter().map(|round| &round[part]).collect() };
        Ok(json!({ "new": median_round(&of("new"))?, "replay": median_round(&of("replay"))? }))
    }

    /// One round, each part with the processor time that a request took.
    fn load(&self, guard: Guard, deployment: &Deployment, seconds: u32) -> Result<Value> {
        let [caller, _] = guard.callers();
        let mut command = Command::new(self.semel);
        command
            .args(["bench", &deployment.load_url, "--json", "--body", BODY])
            .args(["--header", caller, "--header", "X-Work: quick"])
            .args(["--connections", CONNECTIONS])
            .args(["--duration", &format!("{seconds}s")]);
        let parts = deployment.parts();
        let length = Duration::from_secs(u64::from(seconds));
        let mut samples = Vec::new();
        let mut on_poll = |at: Duration| {
            if sample_times(length)
                .get(samples.len())
                .is_some_and(|m| at >= *m)
            {
                samples.push(Sample::take(at, &parts));
            }
        };
        let mut report = self.run_json(command, BENCH_LIMIT, &mut on_poll)?;
        for (part, pair) in PARTS.into_iter().zip(samples.chunks_exact(2)) {
            let rate = report[part]["per_second"].as_f64().unwrap_or_default();
            report[part]["cpu_us"] = cost(&pair[0], &pair[1], rate);
        }
        Ok(report)
    }
}

/// When processor time is sampled: at the start and the end of each part.
fn sample_times(length: Duration) -> [Duration; 4] {
    [
        MARGIN,
        length.saturating_sub(MARGIN),
        length + MARGIN,
        (length * 2).saturating_sub(MARGIN),
    ]
}

/// Processor time so far, in seconds.
struct Sample {
    at: Duration,
    subject: f64,
    beside: f64,
    store: f64,
}

impl Sample {
    fn take(at: Duration, parts: &ProcessIds) -> Self {
        Self {
            at,
            subject: cpu::seconds(&parts.subject),
            beside: cpu::seconds(&parts.beside),
            store: cpu::seconds(&parts.store),
        }
    }
}

/// Processor time per request, in microseconds.
fn cost(from: &Sample, to: &Sample, rate: f64) -> Value {
    let requests = (to.at.saturating_sub(from.at)).as_secs_f64() * rate;
    if requests <= 0.0 {
        return Value::Null;
    }
    let each = |from: f64, to: f64| ((to - from) / requests * 1e7).round() / 10.0;
    json!({
        "subject": each(from.subject, to.subject),
        "beside": each(from.beside, to.beside),
        "store": each(from.store, to.store),
    })
}

/// The median of the rounds, with the minimum and maximum of the rate.
fn median_round(rounds: &[&Value]) -> Result<Value> {
    let sum = |name: &str| -> u64 { rounds.iter().filter_map(|part| part[name].as_u64()).sum() };
    let (requests, errors) = (sum("requests"), sum("errors"));
    if requests == 0 {
        bail!("no requests were counted");
    }
    // Refusals are quick, so their rate would be misleading.
    if errors * 100 > requests {
        bail!("{errors} of {requests} requests of the load failed");
    }
    let rates = sorted(rounds, |part| part["per_second"].as_f64());
    let [Some(least), Some(most)] = [rates.first(), rates.last()] else {
        bail!("the report has no rate");
    };
    let median = |of: &dyn Fn(&Value) -> Option<f64>| {
        let all = sorted(rounds, of);
        all.get(all.len() / 2).copied()
    };
    let cpu = |name: &str| median(&|part| part["cpu_us"][name].as_f64());
    let rate = median(&|part| part["per_second"].as_f64()).context("the report has no rate")?;
    Ok(json!({
        "per_second": rate,
        "least_per_second": least,
        "most_per_second": most,
        "p50_ms": median(&|part| part["p50_ms"].as_f64()),
        "p99_ms": median(&|part| part["p99_ms"].as_f64()),
        "requests": requests,
        "errors": errors,
        "replayed": sum("replayed"),
        "cpu_us": {
            "subject": cpu("subject"), "beside": cpu("beside"), "store": cpu("store"),
        },
    }))
}

fn sorted(rounds: &[&Value], of: impl Fn(&Value) -> Option<f64>) -> Vec<f64> {
    let mut all: Vec<f64> = rounds.iter().filter_map(|part| of(part)).collect();
    all.sort_by(f64::total_cmp);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(rate: f64, errors: u64) -> Value {
        json!({"requests": 1000, "errors": errors, "per_second": rate, "p50_ms": rate / 10.0,
            "replayed": 7, "cpu_us": {"subject": rate, "beside": 0.0, "store": null}})
    }

    #[test]
    fn the_median_round_is_reported_with_the_spread() {
        let rounds = [round(30.0, 0), round(10.0, 3), round(20.0, 0)];
        let rounds: Vec<&Value> = rounds.iter().collect();
        let result = median_round(&rounds).unwrap();
        assert_eq!(result["per_second"], 20.0);
        assert_eq!(result["least_per_second"], 10.0);
        assert_eq!(result["most_per_second"], 30.0);
        assert_eq!(result["p50_ms"], 2.0);
        assert_eq!(result["replayed"], 21);
        assert_eq!(result["cpu_us"]["subject"], 20.0);
        assert!(result["cpu_us"]["store"].is_null());
    }

    #[test]
    fn a_load_that_was_refused_has_no_rate() {
        let refused = [round(10.0, 11), round(10.0, 11)];
        assert!(median_round(&refused.iter().collect::<Vec<_>>()).is_err());
        assert!(median_round(&[&json!({})]).is_err());
    }

    #[test]
    fn processor_time_is_reported_per_request() {
        let sample = |seconds: u64, used: f64| Sample {
            at: Duration::from_secs(seconds),
            subject: used,
            beside: 0.0,
            store: used / 2.0,
        };
        let cost = cost(&sample(1, 1.0), &sample(3, 2.0), 1000.0);
        assert_eq!(cost["subject"], 500.0);
        assert_eq!(cost["store"], 250.0);
    }
}
