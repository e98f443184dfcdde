//! `cargo xtask tidy`: the house rules that no other tool checks.
//!
//! Every check is a function from a [`Tree`] to problems; each problem names the rule and
//! the fix. The checks read text, not syntax: they are kept simple, and a rule that needs more
//! than a line to be recognised belongs in clippy.

mod architecture;
mod core_tree;
mod lab_boundary;
mod links;
mod manifests;
mod mutants;
mod names;
mod paths;
mod pipeline;
mod sql;
mod state_machine;
mod tests_and_leftovers;
mod tree;

use std::path::Path;

use anyhow::{Result, bail};

use crate::process::cargo_metadata;
use tree::{Problem, Tree};

pub(crate) fn run_all(root: &Path) -> Result<()> {
    let tree = Tree::read(root)?;
    let mut problems = check(&tree);
    let metadata = cargo_metadata(root, &[])?;
    problems.extend(core_tree::check(&metadata)?);
    problems.extend(lab_boundary::check(&metadata, root));
    problems.sort();

    for problem in &problems {
        println!("{problem}");
    }
    if !problems.is_empty() {
        bail!("tidy found {} problem(s)", problems.len());
    }
    println!("tidy: {} files follow the house rules", tree.len());
    Ok(())
}

fn check(tree: &Tree) -> Vec<Problem> {
    let checks = [
        architecture::check,
        links::check,
        manifests::check,
        mutants::check,
        names::check,
        names::check_length,
        paths::check,
        pipeline::check,
        sql::check_sources,
        sql::check_queries,
        state_machine::check,
        tests_and_leftovers::check_leftovers,
        tests_and_leftovers::check_ignored,
        tests_and_leftovers::check_sleeps,
    ];
    checks.iter().flat_map(|check| check(tree)).collect()
}
