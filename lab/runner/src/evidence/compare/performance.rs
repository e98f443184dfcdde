//! The table of rates and latencies.

use std::fmt::Write as _;

use serde_json::Value;

use super::super::text::{Table, count, decimal, text_of};
use super::name;

/// If other processes use more processors than this before the load, the rate is less reliable.
const BUSY: f64 = 0.5;
/// The percentage of answers that must be marked as replays, where a subject marks them.
const REPLAYED: u64 = 99;

pub(super) fn render(subjects: &[Value]) -> String {
    let mut text = String::from(
        "`×` is the throughput divided by that of Semel on the same kind of store; below 1 the \
         peer is slower. **Languages differ**, and a library cannot be faster than its platform: \
         *of plain* is the share of the throughput of the same application in the same language \
         without any guard, where that was measured. Peers that guarantee less also do less for \
         each request; the next tables show what they guarantee.\n\n\
         Rates are medians of three rounds of three seconds, with the minimum and the maximum. \
         Latencies are of a closed loop: 64 connections, each with one request in progress, so \
         they include queueing and are not those of a single request. The generator has one \
         thread on the same processors, and makes about 30,000 requests a second at most: a \
         rate near that is a lower bound. *CPU µs* is processor time for each request, of the \
         subject (with the application behind it, where it is a proxy) and, after the plus, of \
         its store's server.\n\n\
         ![Throughput, on a logarithmic scale](images/evidence-throughput.svg)\n\n",
    );
    text.push_str(&table(subjects));
    text.push_str(&doubts(subjects));
    text
}

fn table(subjects: &[Value]) -> String {
    let head = ["", "language", "version", "store"];
    let new = ["new/s", "×", "of plain", "p50 ms", "p99 ms", "CPU µs"];
    let replays = ["replays/s", "×", "p50 ms", "p99 ms", "CPU µs", "beside"];
    let mut table = Table::new(&[&head[..], &new[..], &replays[..]].concat());
    for subject in subjects.iter().filter(|subject| subject["new"].is_object()) {
        let ours = ours_like(subjects, subject);
        let mut row = vec![name(subject)];
        row.extend(["language", "version", "store"].map(|of| text_of(&subject[of]).to_owned()));
        for kind in ["new", "replay"] {
            let (rates, beside) = (&subject[kind], ours.map(|ours| &ours[kind]));
            row.extend([rate(rates), ratio(rates, beside)]);
            if kind == "new" {
                row.push(share(subjects, subject));
            }
            row.extend([
                decimal(&rates["p50_ms"], 2),
                decimal(&rates["p99_ms"], 2),
                processors(&rates["cpu_us"]),
            ]);
        }
        let beside = ours.map_or_else(|| "–".to_owned(), |ours| text_of(&ours["name"]).to_owned());
        row.push(beside);
        table.row(row);
    }
    table.done()
}

/// The median rate, with the range of the rounds.
fn rate(rates: &Value) -> String {
    let middle = count(&rates["per_second"]);
    let [least, most] = [&rates["least_per_second"], &rates["most_per_second"]];
    if least.is_null() {
        return middle;
    }
    format!("{middle} ({}–{})", count(least), count(most))
}

fn processors(cost: &Value) -> String {
    let Some(subject) = cost["subject"].as_f64() else {
        return "–".to_owned();
    };
    let own = subject + cost["beside"].as_f64().unwrap_or_default();
    match cost["store"].as_f64() {
        Some(store) if store > 0.0 => format!("{own:.0} + {store:.0}"),
        Some(_) | None => format!("{own:.0}"),
    }
}

/// Semel with the same store, else with a store of the same kind. None for Semel itself and for the
/// baselines.
fn ours_like<'a>(subjects: &'a [Value], subject: &Value) -> Option<&'a Value> {
    if subject["ours"] == true || subject["baseline"] == true {
        return None;
    }
    let like = |same: &dyn Fn(&str, &str) -> bool| {
        subjects.iter().find(|ours| {
            ours["ours"] == true
                && ours["new"].is_object()
                && same(text_of(&ours["store"]), text_of(&subject["store"]))
        })
    };
    like(&|ours, theirs| ours == theirs)
        .or_else(|| like(&|ours, theirs| kind(ours) == kind(theirs)))
}

/// `PostgreSQL` of `PostgreSQL, Redis as cache`.
fn kind(store: &str) -> &str {
    store.split([',', ' ']).next().unwrap_or_default()
}

fn per_second(rates: &Value) -> Option<f64> {
    rates["per_second"].as_f64().filter(|rate| *rate > 0.0)
}

fn ratio(rates: &Value, beside: Option<&Value>) -> String {
    match (per_second(rates), beside.and_then(per_second)) {
        (Some(theirs), Some(ours)) => format!("×{:.2}", theirs / ours),
        (_, _) => "–".to_owned(),
    }
}

/// The rate relative to the baseline in the same language.
fn share(subjects: &[Value], subject: &Value) -> String {
    let plain = subjects
        .iter()
        .find(|one| one["baseline"] == true && one["language"] == subject["language"]);
    let plain = plain.and_then(|plain| per_second(&plain["new"]));
    match (per_second(&subject["new"]), plain) {
        (Some(rate), Some(plain)) if subject["baseline"] != true => {
            format!("{:.0} %", rate / plain * 100.0)
        }
        (_, _) => "–".to_owned(),
    }
}

/// The reasons why a rate may be unreliable.
fn doubts(subjects: &[Value]) -> String {
    let mut text = String::new();
    let mut unmarked: Vec<String> = Vec::new();
    for subject in subjects.iter().filter(|subject| subject["new"].is_object()) {
        let who = format!("{}, {}", name(subject), text_of(&subject["store"]));
        let before = &subject["before"];
        if let Some(busy) = before["busy_processors"]
            .as_f64()
            .filter(|busy| *busy > BUSY)
        {
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(
                text,
                "- **WARNING**: {who}: {busy:.1} processors were busy with something else before \
                 the load (load average {}).",
                decimal(&before["load_average"], 1),
            );
        }
        let of = |kind: &str, field: &str| subject[kind][field].as_u64();
        if of("new", "replayed").is_some_and(|replayed| replayed > 0) {
            let _ = writeln!(
                text,
                "- **WARNING**: {who}: new keys were answered as replays."
            );
        }
        match (of("replay", "replayed"), of("replay", "requests")) {
            (Some(0), _) if subject["baseline"] != true => unmarked.push(who),
            (Some(replayed @ 1..), Some(requests)) if replayed * 100 < requests * REPLAYED => {
                let _ = writeln!(
                    text,
                    "- **WARNING**: {who}: only {replayed} of {requests} replays were marked as \
                     such.",
                );
            }
            (_, _) => {}
        }
    }
    if !unmarked.is_empty() {
        let _ = writeln!(
            text,
            "- Not marked, so that nothing under load says that replays were replays (the probe \
             `replay` does): {}.",
            unmarked.join("; ")
        );
    }
    let loads = list_of_loads(subjects);
    if !loads.is_empty() {
        let _ = writeln!(
            text,
            "- Load averages before the loads, which remember the subject before: {}.",
            loads.join(", ")
        );
    }
    if text.is_empty() { text } else { text + "\n" }
}

fn list_of_loads(subjects: &[Value]) -> Vec<String> {
    let loads = subjects
        .iter()
        .map(|subject| &subject["before"]["load_average"]);
    let numbers = loads.filter(|load| load.is_number());
    numbers.map(|load| decimal(load, 1)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn subject(language: &str, baseline: bool, rate: f64, replayed: u64) -> Value {
        let rates = json!({ "per_second": rate, "least_per_second": rate - 1.0,
            "most_per_second": rate + 1.0, "p50_ms": 1.0, "p99_ms": 2.0, "requests": 1000,
            "cpu_us": { "subject": 30.0, "beside": 12.0, "store": 5.0 } });
        let mut replay = rates.clone();
        replay["replayed"] = replayed.into();
        json!({ "name": "a", "language": language, "store": "Redis", "baseline": baseline,
            "before": { "load_average": 1.25, "busy_processors": 0.75 },
            "new": rates, "replay": replay })
    }

    #[test]
    fn a_share_is_of_the_same_language_and_a_rate_has_its_spread() {
        let subjects = [
            subject("Rust", true, 2_000.0, 0),
            subject("JavaScript", true, 4_000.0, 0),
            subject("JavaScript", false, 1_000.0, 1000),
        ];
        let page = render(&subjects);
        assert!(page.contains("| 1,000 (999–1,001) | – | 25 % |"), "{page}");
        assert!(page.contains("| 42 + 5 |"), "{page}");
        assert!(!page.contains("Not marked"), "{page}");
    }

    #[test]
    fn what_weakens_a_figure_is_said() {
        let page = render(&[
            subject("Rust", false, 10.0, 900),
            subject("Rust", false, 10.0, 0),
        ]);
        for expected in [
            "0.8 processors were busy",
            "only 900 of 1000 replays",
            "Not marked",
            "1.2, 1.2",
        ] {
            assert!(page.contains(expected), "{expected}\n{page}");
        }
    }
}
