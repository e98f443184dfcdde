//! Other people's SDKs that the tests use as they come, in their current versions: from their
//! registries into the target directory, once for a version.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::process::{Interrupt, Interrupted, run_interruptible};

/// How long a registry may be silent, in seconds. Without a network this is all that is lost.
const REGISTRY_PATIENCE: &str = "15";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sdk {
    StripePython,
    StripeNode,
    /// What `examples/python` speaks to its database with.
    Psycopg,
    /// What `examples/node` speaks to its database with.
    NodePg,
    /// What tries the admin API against its own description.
    Schemathesis,
    /// What drives a browser through the console.
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

    /// What the tests are about. A newer one is tried by changing it here.
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

    /// Tests read here where it is. Set by the developer, it wins.
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

    /// What it is called by those who load it.
    fn module(self) -> &'static str {
        match self {
            Self::StripePython | Self::StripeNode => "stripe",
            Self::Psycopg => "psycopg",
            Self::NodePg => "pg",
            Self::Schemathesis => "schemathesis",
            Self::Playwright => "playwright",
        }
    }

    /// What its registry is asked for.
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

    /// What the variable is to say of an SDK in this directory: the interpreter that has it, or
    /// the directory itself.
    fn entrance(self, directory: &Path) -> PathBuf {
        match self.language() {
            Language::Python => directory.join("bin/python"),
            Language::Node => directory.to_path_buf(),
        }
    }

    /// The commands that put it into a new directory. No code of a package runs meanwhile.
    fn installation(self, directory: &Path) -> Vec<Command> {
        match self.language() {
            Language::Python => {
                let mut environment = Command::new("python3");
                environment.args(["-m", "venv"]).arg(directory);
                let mut install = Command::new(self.entrance(directory));
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
                let mut command = Command::new(self.entrance(directory));
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
    /// What the tests must see in their environment, beside what is there already.
    pub(crate) fn environment(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        self.installed
            .iter()
            .map(|(variable, path)| (*variable, path.as_path()))
    }
}

/// Makes available what can be. A machine without the language or the network tests everything
/// else, and is told what it left out.
pub(crate) fn install(root: &Path, may_install: bool, interrupt: &Interrupt) -> Result<Sdks> {
    let shelf = shelf(root, env::var_os("CARGO_TARGET_DIR"));
    let mut installed = Vec::new();
    for sdk in ALL {
        if env::var_os(sdk.variable()).is_some_and(|path| !path.is_empty()) {
            println!("{sdk:?}: given by {}", sdk.variable());
            continue;
        }
        match install_one(sdk, &shelf, may_install, interrupt) {
            Ok(directory) => installed.push((sdk.variable(), sdk.entrance(&directory))),
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => println!("SKIPPED: the tests with {sdk:?}: {error:#}"),
        }
    }
    Ok(Sdks { installed })
}

/// Beside what cargo builds, so that `cargo clean` removes it.
fn shelf(root: &Path, target_directory: Option<OsString>) -> PathBuf {
    let target = target_directory.unwrap_or_else(|| "target".into());
    root.join(target).join("sdks")
}

fn install_one(
    sdk: Sdk,
    shelf: &Path,
    may_install: bool,
    interrupt: &Interrupt,
) -> Result<PathBuf> {
    let directory = shelf.join(sdk.directory_name());
    if sdk.loads_from(&directory) {
        return Ok(directory);
    }
    if !may_install {
        bail!("not installed yet, and --no-install forbids it");
    }
    fs::create_dir_all(shelf).with_context(|| format!("cannot create {}", shelf.display()))?;
    // Finished elsewhere and then renamed: what has the name is whole, whoever is interrupted.
    let draft = tempfile::tempdir_in(shelf).context("cannot create a temporary directory")?;
    for mut command in sdk.installation(draft.path()) {
        command.stdin(Stdio::null());
        run_interruptible(&mut command, interrupt)?;
    }
    if !sdk.loads_from(draft.path()) {
        bail!("it was installed and does not load; is the language's own version too old?");
    }
    if directory.exists() {
        fs::remove_dir_all(&directory)
            .with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    match fs::rename(draft.path(), &directory) {
        Ok(()) => Ok(directory),
        // Another run was quicker.
        Err(_) if sdk.loads_from(&directory) => Ok(directory),
        Err(error) => Err(error).with_context(|| format!("cannot create {}", directory.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lies_where_cargo_builds() {
        let root = Path::new("project");
        assert_eq!(shelf(root, None), Path::new("project/target/sdks"));
        assert_eq!(
            shelf(root, Some("/elsewhere".into())),
            Path::new("/elsewhere/sdks")
        );
    }

    #[test]
    fn nothing_is_installed_where_that_is_forbidden() {
        let directory = tempfile::tempdir().unwrap();
        let shelf = directory.path().join("sdks");
        for sdk in ALL {
            let error = install_one(sdk, &shelf, false, &Interrupt::never()).unwrap_err();
            assert!(error.to_string().contains("--no-install"), "{error}");
        }
        assert!(!shelf.exists());
    }

    #[test]
    fn the_version_is_in_the_name_so_that_a_new_one_is_installed() {
        for sdk in ALL {
            assert!(sdk.directory_name().ends_with(sdk.version()));
        }
    }

    #[test]
    fn the_examples_ask_for_what_is_tested() {
        let python = include_str!("../../examples/python/requirements.txt");
        assert_eq!(python.trim(), Sdk::Psycopg.requirement());
        let node = include_str!("../../examples/node/package.json");
        let pinned = format!("\"pg\": \"{}\"", Sdk::NodePg.version());
        assert!(node.contains(&pinned), "{node}");
    }
}
