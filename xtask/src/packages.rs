//! `cargo xtask packages`: the client for Python as a wheel and for Node as a tarball, in
//! `target/packages`. The tests install them from there.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::process::{Interrupt, run_interruptible, target_directory};
use crate::sdks::{NODE_CLIENT, PYTHON_CLIENT, Sdks};

/// The statements and schemas of the journals, which the packages contain: there is one of each.
const SQL: &str = "crates/semel-client";
const SQL_DIRECTORIES: [&str; 2] = ["migrations", "queries"];

/// Builds the packages and installs them beside what their tests need. One whose language is absent
/// is left out.
pub fn install(root: &Path, tools: &Sdks, interrupt: &Interrupt) -> Result<()> {
    let packages = target_directory(root)?.join("packages");
    fs::create_dir_all(&packages)
        .with_context(|| format!("cannot create {}", packages.display()))?;
    for (variable, tools) in tools.environment() {
        match variable {
            PYTHON_CLIENT => install_wheel(root, &packages, tools, interrupt)?,
            NODE_CLIENT => install_tarball(root, &packages, tools, interrupt)?,
            _ => {}
        }
    }
    Ok(())
}

fn install_wheel(root: &Path, packages: &Path, python: &Path, interrupt: &Interrupt) -> Result<()> {
    remove_files(packages, "whl")?;
    let pip = |arguments: &[&str]| {
        let mut pip = Command::new(python);
        pip.args(["-m", "pip", "--quiet", "--disable-pip-version-check"])
            .args(arguments)
            .current_dir(root);
        pip
    };
    // Without isolation the build uses the pinned backend, and no network.
    let mut build = pip(&["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir"]);
    build.arg(packages).arg("./packages/python");
    run_interruptible(&mut build, interrupt)?;
    let wheel = built_file(packages, "whl")?;
    let mut install = pip(&["install", "--no-deps", "--no-index", "--force-reinstall"]);
    run_interruptible(install.arg(wheel), interrupt)
}

fn install_tarball(
    root: &Path,
    packages: &Path,
    tools: &Path,
    interrupt: &Interrupt,
) -> Result<()> {
    remove_files(packages, "tgz")?;
    let stage = packages.join("node");
    if stage.exists() {
        fs::remove_dir_all(&stage)?;
    }
    let source = root.join("packages/node");
    copy(&source.join("src"), &stage.join("src"))?;
    for name in ["package.json", "tsconfig.json", "README.md"] {
        copy(&source.join(name), &stage.join(name))?;
    }
    for name in SQL_DIRECTORIES {
        copy(&root.join(SQL).join(name), &stage.join("sql").join(name))?;
    }
    let modules = tools.join("node_modules");
    let mut compile = Command::new(modules.join(".bin/tsc"));
    let types = modules.join("@types");
    compile
        .current_dir(&stage)
        .args(["--project", ".", "--typeRoots"])
        .arg(types);
    run_interruptible(&mut compile, interrupt)?;
    let mut pack = Command::new("npm");
    pack.current_dir(&stage)
        .args(["pack", "--silent", "--ignore-scripts", "--pack-destination"])
        .arg(packages);
    run_interruptible(&mut pack, interrupt)?;
    // Node looks for modules beside the real path of a program.
    copy(&source.join("examples"), &tools.join("examples"))?;
    let mut install = Command::new("npm");
    install
        .args(["install", "--offline", "--no-save", "--ignore-scripts"])
        .args(["--loglevel=error", "--no-audit", "--no-fund", "--prefix"])
        .arg(tools)
        .arg(built_file(packages, "tgz")?);
    run_interruptible(&mut install, interrupt)
}

/// Removes what an earlier version was built into.
fn remove_files(directory: &Path, extension: &str) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension() == Some(OsStr::new(extension)) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

fn built_file(directory: &Path, extension: &str) -> Result<PathBuf> {
    fs::read_dir(directory)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension() == Some(OsStr::new(extension)))
        .with_context(|| format!("the build left no .{extension} in {}", directory.display()))
}

/// Copies a file or a directory.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("cannot copy {}", from.display());
    if from.is_dir() {
        fs::create_dir_all(to).with_context(failed)?;
        for entry in fs::read_dir(from).with_context(failed)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    fs::create_dir_all(to.parent().unwrap_or(to)).with_context(failed)?;
    fs::copy(from, to).map(drop).with_context(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_copied_with_what_it_holds() {
        let directory = tempfile::tempdir().unwrap();
        let from = directory.path().join("from");
        fs::create_dir_all(from.join("inner")).unwrap();
        fs::write(from.join("inner/file"), "text").unwrap();
        let to = directory.path().join("to/there");
        copy(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("inner/file")).unwrap(), "text");
    }

    #[test]
    fn a_file_of_an_earlier_version_is_not_installed() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("semel-0.0.9.tgz"), "").unwrap();
        fs::write(directory.path().join("semel-0.0.9.whl"), "").unwrap();
        remove_files(directory.path(), "tgz").unwrap();
        assert!(built_file(directory.path(), "tgz").is_err());
        assert!(built_file(directory.path(), "whl").is_ok());
    }
}
