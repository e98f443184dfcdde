//! The peers, from their registries into the target directory, once for a version. Nothing of
//! theirs is in the repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::process::{Interrupt, cargo, run_interruptible};

/// How long a registry may be silent, in seconds.
const REGISTRY_PATIENCE: &str = "60";

/// Beside what cargo builds, so that `cargo clean` removes it.
const SHELF: &str = "target/peers";

/// Where things are, and what may be done.
#[derive(Clone, Copy)]
pub(super) struct Shop<'a> {
    pub(super) root: &'a Path,
    pub(super) may_install: bool,
    pub(super) interrupt: &'a Interrupt,
}

impl Shop<'_> {
    fn shelf(&self) -> PathBuf {
        self.root.join(SHELF)
    }

    /// The adapters: ours.
    pub(super) fn adapters(&self) -> PathBuf {
        self.root.join("evidence/peers")
    }

    /// Builds an adapter in Rust by its own lock file. The binary's path.
    ///
    /// A peer may ask for a newer compiler than ours; whether it builds is found out, not
    /// believed.
    pub(super) fn rust(&self, workspace: &str, package: &str, binary: &str) -> Result<PathBuf> {
        let target = self.shelf().join("rust");
        let mut build = cargo(&self.adapters().join(workspace));
        build
            .args([
                "build",
                "--release",
                "--locked",
                "--quiet",
                "--ignore-rust-version",
            ])
            .args(["--package", package, "--bin", binary])
            .arg("--target-dir")
            .arg(&target);
        if !self.may_install {
            build.arg("--offline");
        }
        run_interruptible(&mut build, self.interrupt)?;
        Ok(target.join("release").join(binary))
    }

    /// The directory with `node_modules`. No code of a package runs meanwhile.
    pub(super) fn node(&self, name: &str, packages: &[&str]) -> Result<PathBuf> {
        self.once(name, packages, |directory| {
            let mut install = Command::new("npm");
            install
                .args(["install", "--loglevel=error", "--ignore-scripts"])
                .args(["--no-audit", "--no-fund", "--fetch-retries=1"])
                .arg(format!("--fetch-timeout={REGISTRY_PATIENCE}000"))
                .arg("--prefix")
                .arg(directory)
                .args(packages);
            vec![install]
        })
    }

    /// The directory of the virtual environment.
    pub(super) fn python(&self, name: &str, packages: &[&str]) -> Result<PathBuf> {
        self.once(name, packages, |directory| {
            let mut environment = Command::new("python3");
            environment.args(["-m", "venv"]).arg(directory);
            let mut install = Command::new(directory.join("bin/python"));
            install
                .args(["-m", "pip", "install", "--quiet"])
                .args(["--disable-pip-version-check", "--only-binary=:all:"])
                .args(["--retries=1", "--timeout", REGISTRY_PATIENCE])
                .args(packages);
            vec![environment, install]
        })
    }

    /// Installs unless the same packages are there. The last thing written is the mark that says
    /// which: a broken installation has none.
    fn once(
        &self,
        name: &str,
        packages: &[&str],
        commands: impl FnOnce(&Path) -> Vec<Command>,
    ) -> Result<PathBuf> {
        let directory = self.shelf().join(name);
        let mark = directory.join("installed");
        let wanted = packages.join(" ");
        if fs::read_to_string(&mark).is_ok_and(|found| found == wanted) {
            return Ok(directory);
        }
        if !self.may_install {
            bail!("not installed yet, and --no-install forbids it");
        }
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        for mut command in commands(&directory) {
            command.stdin(Stdio::null());
            run_interruptible(&mut command, self.interrupt)?;
        }
        fs::write(mark, wanted)?;
        Ok(directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_installed_is_installed_once_for_a_version() {
        let root = tempfile::tempdir().unwrap();
        let interrupt = Interrupt::never();
        let shop = Shop {
            root: root.path(),
            may_install: true,
            interrupt: &interrupt,
        };
        let note = |word: &'static str| {
            move |directory: &Path| {
                let mut command = Command::new("touch");
                command.arg(directory.join(word));
                vec![command]
            }
        };
        let there = |directory: &Path, word| directory.join(word).exists();

        let directory = shop.once("a", &["a@1"], note("first")).unwrap();
        shop.once("a", &["a@1"], note("again")).unwrap();
        assert!(there(&directory, "first") && !there(&directory, "again"));
        shop.once("a", &["a@2"], note("second")).unwrap();
        assert!(there(&directory, "second") && !there(&directory, "first"));
    }

    #[test]
    fn nothing_is_installed_where_that_is_forbidden() {
        let root = tempfile::tempdir().unwrap();
        let interrupt = Interrupt::never();
        let shop = Shop {
            root: root.path(),
            may_install: false,
            interrupt: &interrupt,
        };
        let error = shop.node("a", &["a@1"]).unwrap_err();
        assert!(error.to_string().contains("--no-install"), "{error}");
    }
}
