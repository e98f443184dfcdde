//! Programs and throwaway servers, for `cargo xtask` and for the verification tools in `lab/`.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "these are commands for a person or a build log to read"
)]
#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "internal: `cargo xtask` and `lab/` are the only users"
)]

pub mod packages;
pub mod process;
pub mod sdks;
pub mod servers;

use std::path::PathBuf;

use anyhow::{Context as _, Result};

/// The one feature set that the tests and the lab are built with. Another selection would compile
/// the dependencies again.
pub const FEATURES: [&str; 1] = ["--all-features"];

/// The profile of what is shipped and measured, and the directory that it is built into.
pub const DIST: &str = "dist";

/// The root of the workspace that cargo runs us in.
///
/// Cargo sets the variable at run time. The compiled-in directory may belong to another checkout
/// where several share a target directory, so it serves only a binary that is started by hand.
///
/// # Errors
/// Where no directory above the manifest holds a lock file.
pub fn workspace_root() -> Result<PathBuf> {
    let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let root = manifest_dir
        .ancestors()
        .find(|directory| directory.join("Cargo.lock").is_file())
        .context("no directory above this one holds a Cargo.lock")?;
    Ok(root.to_path_buf())
}
