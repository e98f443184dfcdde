//! The files in `deploy/` and `docs/metrics.md` match the program.

mod dashboard;
mod files;
mod live;
mod metrics;
mod promql;
mod rules;

use std::path::PathBuf;

/// A file of the repository.
fn path(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}
