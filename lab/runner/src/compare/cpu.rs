//! Processor time, from the kernel's counters.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use anyhow::Result;

use crate::process::Interrupt;

/// The unit of the counters in /proc, on every Linux system by default.
const TICKS_PER_SECOND: f64 = 100.0;
/// The sampling time, long enough for the resolution of the counters.
const SAMPLE_TIME: Duration = Duration::from_secs(1);

/// Processor time of these processes and their descendants, in seconds. A child that ended is counted
/// by its parent, so that the sum never decreases.
pub(super) fn seconds(roots: &[u32]) -> f64 {
    let all: HashMap<u32, Stat> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            // It may have ended.
            let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, Stat::read(&text)?))
        })
        .collect();
    let ticks: u64 = all
        .iter()
        .filter(|(pid, _)| descends(&all, **pid, roots))
        .map(|(_, stat)| stat.ticks)
        .sum();
    f64::from(u32::try_from(ticks).unwrap_or(u32::MAX)) / TICKS_PER_SECOND
}

fn descends(all: &HashMap<u32, Stat>, pid: u32, roots: &[u32]) -> bool {
    let mut current = pid;
    // Bounded, since the processes change while they are read.
    for _ in 0..all.len() {
        if roots.contains(&current) {
            return true;
        }
        match all.get(&current) {
            Some(stat) => current = stat.parent,
            None => return false,
        }
    }
    false
}

struct Stat {
    parent: u32,
    /// Its own, and those of its ended children.
    ticks: u64,
}

impl Stat {
    /// Reads the fields after the name, which is in parentheses and may contain any character.
    fn read(text: &str) -> Option<Self> {
        let (_, behind) = text.rsplit_once(')')?;
        let fields: Vec<&str> = behind.split_whitespace().collect();
        let ticks = fields
            .get(11..15)?
            .iter()
            .filter_map(|n| n.parse::<u64>().ok());
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            ticks: ticks.sum(),
        })
    }
}

/// The load average of the last minute, which includes this command's own work.
pub(super) fn load_average() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// The number of processors in use by all processes, including time stolen by the host.
pub(super) fn busy(interrupt: &Interrupt) -> Result<Option<f64>> {
    let before = total_busy();
    interrupt.pause(SAMPLE_TIME)?;
    let after = total_busy();
    Ok(before.zip(after).map(|(before, after)| {
        let ticks = u32::try_from(after.saturating_sub(before)).unwrap_or(u32::MAX);
        f64::from(ticks) / TICKS_PER_SECOND / SAMPLE_TIME.as_secs_f64()
    }))
}

fn total_busy() -> Option<u64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    busy_ticks(text.lines().next()?)
}

/// Of `cpu user nice system idle iowait irq softirq steal …`, all but the two that wait. Guests are
/// counted under the user already.
fn busy_ticks(line: &str) -> Option<u64> {
    let numbers: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .filter_map(|number| number.parse().ok())
        .collect();
    let counted = numbers.get(..8)?;
    Some(counted.iter().sum::<u64>() - counted[3] - counted[4])
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_name_with_special_characters_is_parsed() {
        let text = "7 (a b) c) S 3 7 7 0 -1 0 0 0 0 0 10 20 30 40 20 0 1 0";
        let stat = Stat::read(text).unwrap();
        assert_eq!((stat.parent, stat.ticks), (3, 100));
        assert!(Stat::read("7 (a").is_none());
    }

    #[test]
    fn a_child_counts_for_its_parent() {
        let own = std::process::id();
        let mut child = Command::new("sh")
            .args([
                "-c",
                "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; exec sleep 60",
            ])
            .spawn()
            .unwrap();
        let pid = child.id();
        let deadline = crate::process::now() + Duration::from_secs(30);
        while seconds(&[pid]) < 0.02 && crate::process::now() < deadline {
            crate::process::block_for(Duration::from_millis(20));
        }
        let (of_child, of_both) = (seconds(&[pid]), seconds(&[own]));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(of_child >= 0.02 && of_both >= of_child);
    }

    #[test]
    fn waiting_is_not_busy() {
        assert_eq!(
            busy_ticks("cpu  10 1 5 1000 50 2 3 4 7 0"),
            Some(10 + 1 + 5 + 2 + 3 + 4)
        );
        assert_eq!(busy_ticks("cpu 1 2"), None);
    }
}
