//! The checker shares no code with what it judges.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

/// By the list of what may be named, and not by a ban: a crate of the product by any name is
/// found.
#[test]
fn the_checker_depends_on_nothing_of_the_product() {
    let manifest = include_str!("../Cargo.toml");
    let mut section = "";
    let mut named = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if section.contains("dependencies") && !line.is_empty() && !line.starts_with('#') {
            named.push(line.split(['.', ' ', '=']).next().unwrap());
        }
    }
    assert_eq!(named, ["serde", "serde_json", "thiserror", "tempfile"]);
    // A table of its own would be a dependency that the loop above does not see.
    assert!(!manifest.contains("dependencies."));
    assert!(!manifest.contains("path ="));
}
