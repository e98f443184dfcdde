//! Seeds that once found something, and must go on finding it. See `seeds.txt`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code says what is wrong by panicking"
)]

use semel_simulation::{Sabotage, run};

/// A seed, what was broken when it found it, by which promise, and why it is kept.
struct Kept<'a> {
    seed: u64,
    /// `None` where it was the product.
    sabotage: Option<Sabotage>,
    invariant: &'a str,
    why: &'a str,
}

fn kept() -> Vec<Kept<'static>> {
    let lines = include_str!("../seeds.txt").lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(read).collect()
}

fn read(line: &'static str) -> Kept<'static> {
    let parts: Vec<_> = line.split('|').map(str::trim).collect();
    let [seed, sabotage, invariant, why] = parts[..] else {
        panic!("{line:?} has not four parts");
    };
    let sabotage = (sabotage != "product").then(|| {
        let sabotage = Sabotage::from_name(sabotage);
        sabotage.unwrap_or_else(|| panic!("{line:?}"))
    });
    Kept {
        seed: seed.parse().unwrap(),
        sabotage,
        invariant,
        why,
    }
}

#[test]
fn kept_seeds_find_nothing_in_the_product() {
    for Kept { seed, why, .. } in kept() {
        let run = run(seed, Sabotage::None, false).unwrap();
        assert!(
            run.violations.is_empty(),
            "{seed} ({why}): {:?}",
            run.violations
        );
    }
}

/// The guard that mended them is gone in the mutant `unanswered-journal`: there every one of them
/// must find it again, and `cargo xtask mutants` holds this test against that.
#[test]
fn kept_seeds_of_the_product_find_nothing() {
    let of_the_product = kept().into_iter().filter(|kept| kept.sabotage.is_none());
    let (mut looked, mut found) = (0, Vec::new());
    for Kept {
        seed, invariant, ..
    } in of_the_product
    {
        looked += 1;
        let run = run(seed, Sabotage::None, false).unwrap();
        if run.violations.iter().any(|(name, _)| *name == invariant) {
            found.push(seed);
        }
    }
    assert!(looked > 0);
    assert!(found.is_empty(), "{looked} were kept; found by {found:?}");
}

/// If this fails, a seed draws another world than it did: look for another one by
/// `semel-simulation --sabotage NAME`.
#[test]
fn kept_seeds_still_find_what_they_found() {
    let kept = kept();
    assert!(kept.len() >= Sabotage::ALL.len());
    for Kept {
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
