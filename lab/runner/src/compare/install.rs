//! Installs the peers from their registries into the target directory, once per version.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::process::{Interrupt, cargo, run_interruptible};

/// How long a registry may be silent, in seconds.
const REGISTRY_PATIENCE: &str = "60";

/// In the target directory, so that `cargo clean` removes it.
const PEERS_DIRECTORY: &str = "target/peers";

/// Installs peers and builds their adapters.
#[derive(Clone, Copy)]
pub(super) struct PeerInstaller<'a> {
    pub(super) root: &'a Path,
    pub(super) may_install: bool,
    pub(super) interrupt: &'a Interrupt,
}

impl PeerInstaller<'_> {
    fn peers_directory(&self) -> PathBuf {
        self.root.join(PEERS_DIRECTORY)
    }

    /// The directory of the adapters.
    pub(super) fn adapters(&self) -> PathBuf {
        self.root.join("lab/peers")
    }

    /// Builds an adapter in Rust with its own lock file. Returns the path of the binary.
    ///
    /// A peer may declare a newer compiler than ours; it is built anyway, and may fail.
    pub(super) fn rust(&self, workspace: &str, package: &str, binary: &str) -> Result<PathBuf> {
        let target = self.peers_directory().join("rust");
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

    /// Installs npm packages without running their scripts. Returns the directory of `node_modules`.
    pub(super) fn node(&self, name: &str, packages: &[&str]) -> Result<PathBuf> {
        self.install_once(name, packages, |directory| {
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

    /// Installs Python packages. Returns the directory of the virtual environment.
    pub(super) fn python(&self, name: &str, packages: &[&str]) -> Result<PathBuf> {
        self.install_once(name, packages, |directory| {
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

    /// Installs packages unless the same versions are installed. Writes a marker with the versions at
    /// the end, so that an interrupted installation has none.
    fn install_once(
        &self,
        name: &str,
        packages: &[&str],
        commands: impl FnOnce(&Path) -> Vec<Command>,
    ) -> Result<PathBuf> {
        let directory = self.peers_directory().join(name);
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
    fn a_version_is_installed_once() {
        let root = tempfile::tempdir().unwrap();
        let interrupt = Interrupt::never();
        let installer = PeerInstaller {
            root: root.path(),
            may_install: true,
            interrupt: &interrupt,
        };
        let touch = |name: &'static str| {
            move |directory: &Path| {
                let mut command = Command::new("touch");
                command.arg(directory.join(name));
                vec![command]
            }
        };
        let there = |directory: &Path, name| directory.join(name).exists();

        let directory = installer
            .install_once("a", &["a@1"], touch("first"))
            .unwrap();
        installer
            .install_once("a", &["a@1"], touch("again"))
            .unwrap();
        assert!(there(&directory, "first") && !there(&directory, "again"));
        installer
            .install_once("a", &["a@2"], touch("second"))
            .unwrap();
        assert!(there(&directory, "second") && !there(&directory, "first"));
    }

    #[test]
    fn no_install_installs_nothing() {
        let root = tempfile::tempdir().unwrap();
        let interrupt = Interrupt::never();
        let installer = PeerInstaller {
            root: root.path(),
            may_install: false,
            interrupt: &interrupt,
        };
        let error = installer.node("a", &["a@1"]).unwrap_err();
        assert!(error.to_string().contains("--no-install"), "{error}");
    }
}
