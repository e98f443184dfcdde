//! What a run was made on, by kind and not by name: a report is for everybody to read.

use std::path::Path;
use std::process::Command;
use std::{env, fs, thread};

use serde_json::{Value, json};

use super::said;
use super::text::word;

const KIB_PER_GIB: u64 = 1 << 20;

/// Kind and number of processors, memory, kernel and compiler.
pub(super) fn described() -> Value {
    json!({
        "cpu": first("/proc/cpuinfo", "model name"),
        "cores": thread::available_parallelism().map_or(0, usize::from),
        "memory_gib": memory_gib(&first("/proc/meminfo", "MemTotal")),
        "kernel": said(Command::new("uname").args(["-srm"])).unwrap_or_default(),
        "rustc": said(Command::new("rustc").arg("--version")).unwrap_or_default(),
    })
}

/// The same in words.
pub(super) fn told(run: &Value) -> String {
    let machine = &run["machine"];
    let cpu = match word(&machine["cpu"]) {
        "" => "unknown processor",
        cpu => cpu,
    };
    format!(
        "{cpu}, {} cores, {} GiB of memory, {}, {}",
        machine["cores"],
        machine["memory_gib"],
        kernel(word(&machine["kernel"])),
        word(&machine["rustc"]),
    )
}

/// Without what a distribution or a host adds to the version: it says nothing to a reader.
fn kernel(told: &str) -> String {
    let words = told.split_whitespace();
    let short = words.map(|word| word.split('-').next().unwrap_or(word));
    short.collect::<Vec<_>>().join(" ")
}

/// The value of a line `name : value`, or nothing.
fn first(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let found = fields.find(|(field, _)| field.trim() == name);
    found.map_or_else(String::new, |(_, value)| value.trim().to_owned())
}

/// Rounded: the kernel keeps a little of it.
fn memory_gib(total: &str) -> u64 {
    let kib = total
        .split_whitespace()
        .next()
        .and_then(|kib| kib.parse().ok());
    (kib.unwrap_or(0_u64) + KIB_PER_GIB / 2) / KIB_PER_GIB
}

/// Where this machine keeps things, and what is said instead.
pub(super) fn places(root: &Path) -> Vec<(String, &'static str)> {
    let home = env::var("HOME").unwrap_or_default();
    let places = [
        (root.display().to_string(), "."),
        (env::temp_dir().display().to_string(), "TMP"),
        (home, "~"),
    ];
    // A place such as `/` is part of everything.
    places
        .into_iter()
        .filter(|(place, _)| place.len() > 1)
        .collect()
}

/// A text without this machine's places.
pub(super) fn without(text: &str, places: &[(String, &'static str)]) -> String {
    let mut text = text.to_owned();
    for (place, instead) in places {
        text = text.replace(place.as_str(), instead);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_rounded() {
        assert_eq!(memory_gib("8026312 kB"), 8);
        assert_eq!(memory_gib(""), 0);
    }

    #[test]
    fn places_are_taken_out() {
        let places = [("/srv/semel".to_owned(), ".")];
        assert_eq!(without("in /srv/semel/target", &places), "in ./target");
    }
}
