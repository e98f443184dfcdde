//! Seeds that once found a violation, and must still find it. See `seeds.txt`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test reports a failure by panicking"
)]

use semel_simulation::{Sabotage, run};

/// A line of `seeds.txt`.
struct KeptSeed<'a> {
    seed: u64,
    /// `None` for a bug of the product.
    sabotage: Option<Sabotage>,
    invariant: &'a str,
    why: &'a str,
}

fn kept() -> Vec<KeptSeed<'static>> {
    let lines = include_str!("../seeds.txt").lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(parse).collect()
}

fn parse(line: &'static str) -> KeptSeed<'static> {
    let parts: Vec<_> = line.split('|').map(str::trim).collect();
    let [seed, sabotage, invariant, why] = parts[..] else {
        panic!("{line:?} does not have four parts");
    };
    let sabotage = (sabotage != "product").then(|| {
        let sabotage = Sabotage::from_name(sabotage);
        sabotage.unwrap_or_else(|| panic!("{line:?}"))
    });
    KeptSeed {
        seed: seed.parse().unwrap(),
        sabotage,
        invariant,
        why,
    }
}

#[test]
fn kept_seeds_find_nothing_in_the_product() {
    for KeptSeed { seed, why, .. } in kept() {
        let run = run(seed, Sabotage::None, false).unwrap();
        assert!(
            run.violations.is_empty(),
            "{seed} ({why}): {:?}",
            run.violations
        );
    }
}

/// The mutant `unanswered-journal` removes the guard that fixed these bugs: there every seed must find
/// the bug again, and `cargo xtask mutants` checks that with this test.
#[test]
fn kept_seeds_of_the_product_find_nothing() {
    let of_the_product = kept().into_iter().filter(|kept| kept.sabotage.is_none());
    let (mut tried, mut found) = (0, Vec::new());
    for KeptSeed {
        seed, invariant, ..
    } in of_the_product
    {
        tried += 1;
        let run = run(seed, Sabotage::None, false).unwrap();
        if run.violations.iter().any(|(name, _)| *name == invariant) {
            found.push(seed);
        }
    }
    assert!(tried > 0);
    assert!(found.is_empty(), "{tried} were kept; found by {found:?}");
}

/// If this fails, a seed draws another scenario than before: search for another one with
/// `semel-simulation --sabotage NAME`.
#[test]
fn kept_seeds_still_find_what_they_found() {
    let kept = kept();
    assert!(kept.len() >= Sabotage::ALL.len());
    for KeptSeed {
        seed,
        sabotage,
        invariant,
        why,
    } in kept
    {
        let Some(sabotage) = sabotage else {
            continue;
        };
        let run = run(seed, sabotage, false).unwrap();
        assert!(
            run.violations.iter().any(|(name, _)| *name == invariant),
            "{seed} {sabotage:?} ({why}): {:?}",
            run.violations
        );
    }
}
