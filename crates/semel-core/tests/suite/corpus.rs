//! Runs the fuzz targets' properties over their corpora, on a stable toolchain, so that every input
//! that fuzzing found stays covered.

use std::fs;
use std::path::Path;

#[path = "../../fuzz/properties/canonical.rs"]
mod canonical;
#[path = "../../fuzz/properties/key.rs"]
mod key;

/// The fewest inputs of a corpus, so that a missing corpus fails the test.
const MIN_INPUTS: usize = 20;

fn check_corpus(corpus: &str, check: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
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
fn key_corpus_satisfies_its_properties() {
    check_corpus("key", key::check);
}

#[test]
fn canonical_corpus_satisfies_its_properties() {
    check_corpus("canonical", canonical::check);
}
