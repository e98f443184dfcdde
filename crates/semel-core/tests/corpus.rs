//! The properties of the fuzz targets over their corpora: whatever fuzzing once found stays
//! found, on a stable toolchain.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)] // In tests a panic is a verdict.

use std::fs;
use std::path::Path;

#[path = "../../../fuzz/properties/canonical.rs"]
mod canonical;
#[path = "../../../fuzz/properties/key.rs"]
mod key;

/// A corpus that went missing must not look like one that passed.
const MIN_INPUTS: usize = 20;

fn each_input(corpus: &str, check: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(corpus);
    let mut inputs = 0;
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        check(&fs::read(path).unwrap());
        inputs += 1;
    }
    assert!(inputs >= MIN_INPUTS, "only {inputs} inputs");
}

#[test]
fn keys() {
    each_input("key", key::check);
}

#[test]
fn bodies() {
    each_input("canonical", canonical::check);
}
