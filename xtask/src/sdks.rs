//! Third-party SDKs for the tests, in pinned versions. Installed from their registries into the
//! target directory, once per version.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::process::{Interrupt, Interrupted, run_interruptible};

/// How long a registry may be silent, in seconds. Without a network, installation takes this long to fail.
const REGISTRY_PATIENCE: &str = "15";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sdk {
    StripePython,
    StripeNode,
    /// The database driver of `examples/python`.
    Psycopg,
    /// The database driver of `examples/node`.
    NodePg,
    /// Tests the admin API against its `OpenAPI` description.
    Schemathesis,
    /// Drives a browser through the console.
    Playwright,
}

const ALL: [Sdk; 6] = [
    Sdk::StripePython,
    Sdk::StripeNode,
    Sdk::Psycopg,
    Sdk::NodePg,
    Sdk::Schemathesis,
    Sdk::Playwright,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Python,
    Node,
}

impl Sdk {
    fn language(self) -> Language {
        match self {
            Self::StripePython | Self::Psycopg | Self::Schemathesis | Self::Playwright => {
                Language::Python
            }
            Self::StripeNode | Self::NodePg => Language::Node,
        }
    }

    /// The version under test. Change it here to test a newer one.
    fn version(self) -> &'static str {
        match self {
            Self::StripePython => "16.1.0",
            Self::StripeNode => "23.1.0",
            Self::Psycopg => "3.3.8",
            Self::NodePg => "8.23.1",
            Self::Schemathesis => "4.32.5",
            Self::Playwright => "1.65.0",
        }
    }

    /// Tests read the SDK's path from this variable. A developer's setting wins.
    fn variable(self) -> &'static str {
        match self {
            Self::StripePython => "SEMEL_STRIPE_PYTHON",
            Self::StripeNode => "SEMEL_STRIPE_NODE",
            Self::Psycopg => "SEMEL_PSYCOPG",
            Self::NodePg => "SEMEL_NODE_PG",
            Self::Schemathesis => "SEMEL_SCHEMATHESIS",
            Self::Playwright => "SEMEL_PLAYWRIGHT",
        }
    }

    fn directory_name(self) -> String {
        let name = match self {
            Self::StripePython => "stripe-python",
            Self::StripeNode => "stripe-node",
            Self::Psycopg => "psycopg",
            Self::NodePg => "node-pg",
            Self::Schemathesis => "schemathesis",
            Self::Playwright => "playwright",
        };
        format!("{name}-{}", self.version())
    }

    /// The name of the module to import.
    fn module(self) -> &'static str {
        match self {
            Self::StripePython | Self::StripeNode => "stripe",
            Self::Psycopg => "psycopg",
            Self::NodePg => "pg",
            Self::Schemathesis => "schemathesis",
            Self::Playwright => "playwright",
        }
    }

    /// The requirement in the syntax of its registry.
    fn requirement(self) -> String {
        let (module, version) = (self.module(), self.version());
        match self {
            Self::StripePython | Self::Schemathesis | Self::Playwright => {
                format!("{module}=={version}")
            }
            // With the client library of PostgreSQL, which not every machine has.
            Self::Psycopg => format!("{module}[binary]=={version}"),
            Self::StripeNode | Self::NodePg => format!("{module}@{version}"),
        }
    }

    /// The value of the variable: the interpreter that has the SDK, or its directory.
    fn entry_point(self, directory: &Path) -> PathBuf {
        match self.language() {
            Language::Python => directory.join("bin/python"),
            Language::Node => directory.to_path_buf(),
        }
    }

    /// The commands that install it into a new directory. They run no code of a package.
    fn install_commands(self, directory: &Path) -> Vec<Command> {
        match self.language() {
            Language::Python => {
                let mut environment = Command::new("python3");
                environment.args(["-m", "venv"]).arg(directory);
                let mut install = Command::new(self.entry_point(directory));
                install
                    .args(["-m", "pip", "install", "--quiet"])
                    .args(["--disable-pip-version-check", "--only-binary=:all:"])
                    .args(["--retries=1", "--timeout", REGISTRY_PATIENCE])
                    .arg(self.requirement());
                vec![environment, install]
            }
            Language::Node => {
                let mut install = Command::new("npm");
                install
                    .args(["install", "--loglevel=error", "--ignore-scripts"])
                    .args(["--no-audit", "--no-fund", "--fetch-retries=1"])
                    .arg(format!("--fetch-timeout={REGISTRY_PATIENCE}000"))
                    .arg("--prefix")
                    .arg(directory)
                    .arg(self.requirement());
                vec![install]
            }
        }
    }

    /// Whether the language can load it. The interpreter may have changed since it was installed.
    fn loads_from(self, directory: &Path) -> bool {
        let module = self.module();
        let mut command = match self.language() {
            Language::Python => {
                let mut command = Command::new(self.entry_point(directory));
                command.args(["-c", &format!("import {module}")]);
                command
            }
            Language::Node => {
                let mut command = Command::new("node");
                command.args(["-e", &format!("require('{module}')")]);
                command
            }
        };
        command
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }
}

/// The SDKs of this run.
pub(crate) struct Sdks {
    installed: Vec<(&'static str, PathBuf)>,
}

impl Sdks {
    /// The variables to add to the environment of the tests.
    pub(crate) fn environment(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        self.installed
            .iter()
            .map(|(variable, path)| (*variable, path.as_path()))
    }
}

/// Installs the SDKs. Prints which ones cannot be installed, without the language or the network;
/// their tests are skipped.
pub(crate) fn install(root: &Path, may_install: bool, interrupt: &Interrupt) -> Result<Sdks> {
    let sdks = sdk_directory(root, env::var_os("CARGO_TARGET_DIR"));
    let mut installed = Vec::new();
    for sdk in ALL {
        if env::var_os(sdk.variable()).is_some_and(|path| !path.is_empty()) {
            println!("{sdk:?}: given by {}", sdk.variable());
            continue;
        }
        match install_one(sdk, &sdks, may_install, interrupt) {
            Ok(directory) => installed.push((sdk.variable(), sdk.entry_point(&directory))),
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => println!("SKIPPED: the tests with {sdk:?}: {error:#}"),
        }
    }
    Ok(Sdks { installed })
}

/// Beside what cargo builds, so that `cargo clean` removes it.
fn sdk_directory(root: &Path, target_directory: Option<OsString>) -> PathBuf {
    let target = target_directory.unwrap_or_else(|| "target".into());
    root.join(target).join("sdks")
}

fn install_one(sdk: Sdk, sdks: &Path, may_install: bool, interrupt: &Interrupt) -> Result<PathBuf> {
    let directory = sdks.join(sdk.directory_name());
    if sdk.loads_from(&directory) {
        return Ok(directory);
    }
    if !may_install {
        bail!("not installed yet, and --no-install forbids it");
    }
    fs::create_dir_all(sdks).with_context(|| format!("cannot create {}", sdks.display()))?;
    // Installed elsewhere and then renamed, so that a directory with the final name is complete.
    let draft = tempfile::tempdir_in(sdks).context("cannot create a temporary directory")?;
    for mut command in sdk.install_commands(draft.path()) {
        command.stdin(Stdio::null());
        run_interruptible(&mut command, interrupt)?;
    }
    if !sdk.loads_from(draft.path()) {
        bail!("installed, but it does not load: check the version of the language's interpreter");
    }
    if directory.exists() {
        fs::remove_dir_all(&directory)
            .with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    match fs::rename(draft.path(), &directory) {
        Ok(()) => Ok(directory),
        // Another run installed it at the same time.
        Err(_) if sdk.loads_from(&directory) => Ok(directory),
        Err(error) => Err(error).with_context(|| format!("cannot create {}", directory.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sdks_are_installed_in_the_target_directory() {
        let root = Path::new("project");
        assert_eq!(sdk_directory(root, None), Path::new("project/target/sdks"));
        assert_eq!(
            sdk_directory(root, Some("/elsewhere".into())),
            Path::new("/elsewhere/sdks")
        );
    }

    #[test]
    fn no_install_installs_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let sdks = directory.path().join("sdks");
        for sdk in ALL {
            let error = install_one(sdk, &sdks, false, &Interrupt::never()).unwrap_err();
            assert!(error.to_string().contains("--no-install"), "{error}");
        }
        assert!(!sdks.exists());
    }

    #[test]
    fn the_directory_name_contains_the_version() {
        for sdk in ALL {
            assert!(sdk.directory_name().ends_with(sdk.version()));
        }
    }

    #[test]
    fn the_examples_pin_the_tested_versions() {
        let python = include_str!("../../examples/python/requirements.txt");
        assert_eq!(python.trim(), Sdk::Psycopg.requirement());
        let node = include_str!("../../examples/node/package.json");
        let pinned = format!("\"pg\": \"{}\"", Sdk::NodePg.version());
        assert!(node.contains(&pinned), "{node}");
    }
}
