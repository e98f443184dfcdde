//! The machine of a run, by kind and not by name, since the report is public.

use std::path::Path;
use std::process::Command;
use std::{env, fs, thread};

use serde_json::{Value, json};

use super::command_output;
use super::text::text_of;

const KIB_PER_GIB: u64 = 1 << 20;

/// Kind and number of processors, memory, kernel and compiler.
pub(super) fn read_machine() -> Value {
    json!({
        "cpu": first("/proc/cpuinfo", "model name"),
        "cores": thread::available_parallelism().map_or(0, usize::from),
        "memory_gib": memory_gib(&first("/proc/meminfo", "MemTotal")),
        "kernel": command_output(Command::new("uname").args(["-srm"])).unwrap_or_default(),
        "rustc": command_output(Command::new("rustc").arg("--version")).unwrap_or_default(),
    })
}

/// The machine of a run, as a sentence.
pub(super) fn describe_machine(run: &Value) -> String {
    let machine = &run["machine"];
    let cpu = match text_of(&machine["cpu"]) {
        "" => "unknown processor",
        cpu => cpu,
    };
    format!(
        "{cpu}, {} cores, {} GiB of memory, {}, {}",
        machine["cores"],
        machine["memory_gib"],
        kernel(text_of(&machine["kernel"])),
        text_of(&machine["rustc"]),
    )
}

/// Without a distribution's or host's suffix.
fn kernel(version: &str) -> String {
    let parts = version.split_whitespace();
    let short = parts.map(|part| part.split('-').next().unwrap_or(part));
    short.collect::<Vec<_>>().join(" ")
}

/// The value of a line `name : value`, or nothing.
fn first(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let found = fields.find(|(field, _)| field.trim() == name);
    found.map_or_else(String::new, |(_, value)| value.trim().to_owned())
}

/// Rounded up: the kernel reserves a little of it.
fn memory_gib(total: &str) -> u64 {
    let kib = total
        .split_whitespace()
        .next()
        .and_then(|kib| kib.parse().ok());
    (kib.unwrap_or(0_u64) + KIB_PER_GIB / 2) / KIB_PER_GIB
}

/// Directories of this machine, and their replacements in the report.
pub(super) fn places(root: &Path) -> Vec<(String, &'static str)> {
    let home = env::var("HOME").unwrap_or_default();
    let places = [
        (root.display().to_string(), "."),
        (env::temp_dir().display().to_string(), "TMP"),
        (home, "~"),
    ];
    // A directory such as `/` is part of every path.
    places
        .into_iter()
        .filter(|(place, _)| place.len() > 1)
        .collect()
}

/// A text without the directories of this machine.
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
