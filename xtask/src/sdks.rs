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

/// Dependencies of Patroni that are published as source only. All other packages come as wheels, whose
/// installation runs no code of a package.
const SOURCE_ONLY: &str = "python-etcd,ydiff";
/// Where tests find Patroni.
pub const PATRONI: &str = "SEMEL_PATRONI";
/// Names the servers that speak DynamoDB's protocol.
pub const DYNAMODB: &str = "SEMEL_DYNAMODB_SERVERS";

/// Where tests find the packages of `packages/`, installed beside what builds and tests them.
pub const PYTHON_CLIENT: &str = "SEMEL_PYTHON_CLIENT";
pub const NODE_CLIENT: &str = "SEMEL_NODE_CLIENT";

/// Packages that tests load, in one directory.
#[derive(Debug)]
struct Sdk {
    name: &'static str,
    /// Tests read its path from this variable. A developer's setting wins.
    variable: &'static str,
    language: Language,
    /// The modules, and their requirements in the syntax of the registry. Change a version here to
    /// test a newer one.
    packages: &'static [(&'static str, &'static str)],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Python,
    Node,
    /// Programs from npm, by their paths instead of modules.
    NodePrograms,
}

const ALL: [Sdk; 12] = [
    Sdk {
        name: "stripe-python",
        variable: "SEMEL_STRIPE_PYTHON",
        language: Language::Python,
        packages: &[("stripe", "stripe==16.1.0")],
    },
    Sdk {
        name: "stripe-node",
        variable: "SEMEL_STRIPE_NODE",
        language: Language::Node,
        packages: &[("stripe", "stripe@23.1.0")],
    },
    // The database drivers of `examples/python` and `examples/node`; the first with the client
    // library of PostgreSQL, which not every machine has.
    Sdk {
        name: "psycopg",
        variable: "SEMEL_PSYCOPG",
        language: Language::Python,
        packages: &[("psycopg", "psycopg[binary]==3.3.8")],
    },
    Sdk {
        name: "node-pg",
        variable: "SEMEL_NODE_PG",
        language: Language::Node,
        packages: &[("pg", "pg@8.23.1")],
    },
    // Tests the admin API against its `OpenAPI` description.
    Sdk {
        name: "schemathesis",
        variable: "SEMEL_SCHEMATHESIS",
        language: Language::Python,
        packages: &[("schemathesis", "schemathesis==4.32.5")],
    },
    // Drives a browser through the console.
    Sdk {
        name: "playwright",
        variable: "SEMEL_PLAYWRIGHT",
        language: Language::Python,
        packages: &[("playwright", "playwright==1.65.0")],
    },
    // Applications behind the gateway, which route paths and close connections each in their own way,
    // and an HTTP client.
    Sdk {
        name: "express",
        variable: "SEMEL_EXPRESS",
        language: Language::Node,
        packages: &[("express", "express@5.3.0")],
    },
    Sdk {
        name: "python-web",
        variable: "SEMEL_PYTHON_WEB",
        language: Language::Python,
        packages: &[
            ("django", "django==5.2.19"),
            ("flask", "flask==3.1.3"),
            ("gunicorn", "gunicorn==27.0.1"),
            ("httpx", "httpx==0.28.1"),
            ("uvicorn", "uvicorn==0.54.0"),
        ],
    },
    // Elects the leader of a PostgreSQL cluster.
    Sdk {
        name: "patroni",
        variable: PATRONI,
        language: Language::Python,
        packages: &[
            ("patroni.dcs.etcd3", "patroni[etcd3]==4.1.5"),
            ("psycopg", "psycopg[binary]==3.3.8"),
        ],
    },
    // Two independent servers that speak DynamoDB's protocol.
    Sdk {
        name: "dynamodb-servers",
        variable: DYNAMODB,
        language: Language::NodePrograms,
        packages: &[
            (
                "node_modules/@extenddb/linux-x64/extenddb",
                "@extenddb/linux-x64@0.1.10",
            ),
            (
                "node_modules/@dynoxide/linux-x64/dynoxide",
                "@dynoxide/linux-x64@1.2.1",
            ),
        ],
    },
    // Build and test `packages/python` and `packages/node`.
    Sdk {
        name: "python-package",
        variable: PYTHON_CLIENT,
        language: Language::Python,
        packages: &[
            ("hatchling", "hatchling==1.33.0"),
            ("httpx", "httpx==0.28.1"),
            ("mypy", "mypy==2.4.1"),
            ("psycopg", "psycopg[binary]==3.3.8"),
            ("pytest", "pytest==9.2.0"),
        ],
    },
    Sdk {
        name: "node-package",
        variable: NODE_CLIENT,
        language: Language::Node,
        packages: &[
            ("@types/node/package.json", "@types/node@20.19.0"),
            ("pg", "pg@8.23.1"),
            ("typescript", "typescript@7.0.2"),
        ],
    },
];

impl Sdk {
    /// With the versions, so that another one is installed anew.
    fn directory_name(&self) -> String {
        let versions = self.packages.iter().map(|(_, requirement)| {
            let version = requirement.rsplit(['=', '@']).next();
            format!("-{}", version.unwrap_or_default())
        });
        self.name.to_owned() + &versions.collect::<String>()
    }

    fn requirements(&self) -> impl Iterator<Item = &'static str> {
        self.packages.iter().map(|(_, requirement)| *requirement)
    }

    /// The value of the variable: the interpreter that has the SDK, or its directory.
    fn entry_point(&self, directory: &Path) -> PathBuf {
        match self.language {
            Language::Python => directory.join("bin/python"),
            Language::Node | Language::NodePrograms => directory.to_path_buf(),
        }
    }

    /// The commands that install it into a new directory. They run no code of a package, but of those
    /// that are [source only](SOURCE_ONLY).
    fn install_commands(&self, directory: &Path) -> Vec<Command> {
        match self.language {
            Language::Python => {
                let mut environment = Command::new("python3");
                environment.args(["-m", "venv"]).arg(directory);
                let mut install = Command::new(self.entry_point(directory));
                install
                    .args(["-m", "pip", "install", "--quiet"])
                    .args(["--disable-pip-version-check", "--only-binary=:all:"])
                    .args(["--no-binary", SOURCE_ONLY])
                    .args(["--retries=1", "--timeout", REGISTRY_PATIENCE])
                    .args(self.requirements());
                vec![environment, install]
            }
            Language::Node | Language::NodePrograms => {
                let mut install = Command::new("npm");
                install
                    .args(["install", "--loglevel=error", "--ignore-scripts"])
                    .args(["--no-audit", "--no-fund", "--fetch-retries=1"])
                    .arg(format!("--fetch-timeout={REGISTRY_PATIENCE}000"))
                    .arg("--prefix")
                    .arg(directory)
                    .args(self.requirements());
                vec![install]
            }
        }
    }

    /// Whether the language can load it. The interpreter may have changed since it was installed.
    fn loads_from(&self, directory: &Path) -> bool {
        let load = |how: fn(&str) -> String| {
            let loads = self.packages.iter().map(|(module, _)| how(module));
            loads.collect::<Vec<_>>().join(";")
        };
        let mut command = match self.language {
            Language::Python => {
                let mut command = Command::new(self.entry_point(directory));
                command.args(["-c", &load(|module| format!("import {module}"))]);
                command
            }
            Language::Node => {
                let mut command = Command::new("node");
                command.args(["-e", &load(|module| format!("require('{module}')"))]);
                command
            }
            Language::NodePrograms => {
                let mut programs = self.packages.iter().map(|(path, _)| directory.join(path));
                return programs.all(|program| program.is_file());
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
pub struct Sdks {
    installed: Vec<(&'static str, PathBuf)>,
}

impl Sdks {
    /// The variables to add to the environment of the tests.
    pub fn environment(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        self.installed
            .iter()
            .map(|(variable, path)| (*variable, path.as_path()))
    }
}

/// Where the SDK with this variable is installed, or would be.
pub fn directory_of(variable: &str, root: &Path) -> Option<PathBuf> {
    if let Some(given) = env::var_os(variable).filter(|path| !path.is_empty()) {
        return Some(given.into());
    }
    let sdk = ALL.iter().find(|sdk| sdk.variable == variable)?;
    let sdks = sdk_directory(root, env::var_os("CARGO_TARGET_DIR"));
    Some(sdks.join(sdk.directory_name()))
}

/// Installs the SDKs. Prints which ones cannot be installed, without the language or the network;
/// their tests are skipped.
pub fn install(root: &Path, may_install: bool, interrupt: &Interrupt) -> Result<Sdks> {
    install_some(root, may_install, interrupt, |_| true)
}

/// Like [`install`], but only the SDKs with these variables.
pub fn install_for(
    variables: &[&str],
    root: &Path,
    may_install: bool,
    interrupt: &Interrupt,
) -> Result<Sdks> {
    install_some(root, may_install, interrupt, |sdk| {
        variables.contains(&sdk.variable)
    })
}

fn install_some(
    root: &Path,
    may_install: bool,
    interrupt: &Interrupt,
    wanted: impl Fn(&&Sdk) -> bool,
) -> Result<Sdks> {
    let sdks = sdk_directory(root, env::var_os("CARGO_TARGET_DIR"));
    let mut installed = Vec::new();
    for sdk in ALL.iter().filter(wanted) {
        let Sdk { name, variable, .. } = sdk;
        if env::var_os(variable).is_some_and(|path| !path.is_empty()) {
            println!("{name}: given by {variable}");
            continue;
        }
        match install_one(sdk, &sdks, may_install, interrupt) {
            Ok(directory) => installed.push((*variable, sdk.entry_point(&directory))),
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => println!("SKIPPED: the tests with {name}: {error:#}"),
        }
    }
    Ok(Sdks { installed })
}

/// Beside what cargo builds, so that `cargo clean` removes it.
fn sdk_directory(root: &Path, target_directory: Option<OsString>) -> PathBuf {
    let target = target_directory.unwrap_or_else(|| "target".into());
    root.join(target).join("sdks")
}

fn install_one(
    sdk: &Sdk,
    sdks: &Path,
    may_install: bool,
    interrupt: &Interrupt,
) -> Result<PathBuf> {
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
        for sdk in &ALL {
            let error = install_one(sdk, &sdks, false, &Interrupt::never()).unwrap_err();
            assert!(error.to_string().contains("--no-install"), "{error}");
        }
        assert!(!sdks.exists());
    }

    #[test]
    fn the_directory_name_contains_the_version() {
        let names = ALL.iter().map(Sdk::directory_name).collect::<Vec<_>>();
        assert_eq!(names[0], "stripe-python-16.1.0");
        assert_eq!(names[1], "stripe-node-23.1.0");
        assert_eq!(names[2], "psycopg-3.3.8");
        assert_eq!(names[7], "python-web-5.2.19-3.1.3-27.0.1-0.28.1-0.54.0");
        assert_eq!(names[8], "patroni-4.1.5-3.3.8");
        assert_eq!(names[9], "dynamodb-servers-0.1.10-1.2.1");
    }

    #[test]
    fn the_examples_pin_the_tested_versions() {
        let all: Vec<&str> = ALL.iter().flat_map(Sdk::requirements).collect();
        let python = include_str!("../../examples/python/requirements.txt");
        assert!(all.contains(&python.trim()), "{python}");
        let node = include_str!("../../examples/node/package.json");
        let pg = all.iter().find_map(|one| one.strip_prefix("pg@"));
        let pinned = format!("\"pg\": \"{}\"", pg.unwrap());
        assert!(node.contains(&pinned), "{node}");
    }
}
