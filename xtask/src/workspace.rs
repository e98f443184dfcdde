//! The packages of the workspace, and the flags that select them.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::process::cargo_metadata;

/// The two halves of the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Everything outside `lab/`.
    Product,
    /// The verification tools. They depend on the product, never the reverse.
    Lab,
}

/// A package of the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Its directory, from the root of the workspace.
    pub(crate) directory: String,
}

impl Package {
    fn part(&self) -> Part {
        if self.directory.starts_with("lab/") {
            Part::Lab
        } else {
            Part::Product
        }
    }
}

/// All packages of the workspace.
pub(crate) fn packages(root: &Path) -> Result<Vec<Package>> {
    parse(&cargo_metadata(root, &["--no-deps"])?, root)
}

fn parse(metadata: &Value, root: &Path) -> Result<Vec<Package>> {
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata lists no packages")?;
    let read = |package: &Value| {
        let manifest = Path::new(package["manifest_path"].as_str()?);
        let directory = manifest.parent()?.strip_prefix(root).ok()?;
        Some(Package {
            name: package["name"].as_str()?.to_owned(),
            directory: directory.display().to_string(),
        })
    };
    Ok(packages.iter().filter_map(read).collect())
}

/// The names of the packages in one half of the workspace.
pub(crate) fn names(root: &Path, part: Part) -> Result<Vec<String>> {
    let packages = packages(root)?.into_iter();
    Ok(packages
        .filter(|package| package.part() == part)
        .map(|package| package.name)
        .collect())
}

/// Selects packages on cargo's command line.
pub(crate) fn flags(names: &[String]) -> impl Iterator<Item = &str> {
    names.iter().flat_map(|name| ["--package", name.as_str()])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn packages_in_lab_are_not_part_of_the_product() {
        let metadata = json!({"packages": [
            {"name": "a", "manifest_path": "/w/crates/a/Cargo.toml"},
            {"name": "b", "manifest_path": "/w/lab/b/Cargo.toml"},
        ]});
        let packages = parse(&metadata, Path::new("/w")).unwrap();
        assert_eq!(packages[0].part(), Part::Product);
        assert_eq!(packages[1].part(), Part::Lab);
        let names = vec!["a".to_owned(), "b".to_owned()];
        let flags: Vec<_> = flags(&names).collect();
        assert_eq!(flags, ["--package", "a", "--package", "b"]);
    }
}
