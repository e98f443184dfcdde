//! The list of mutants, as it is written in `lab/mutants`.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum as _;
use serde::Deserialize;

use crate::servers::Server;

/// Where the list is, below the workspace's root.
pub(super) const PLACE: &str = "lab/mutants";
/// The time after which a test counts as hung. The slowest one waits half a minute for an event that
/// does not come.
pub(super) const PATIENCE: Duration = Duration::from_secs(PATIENCE_SECONDS);
const PATIENCE_SECONDS: u64 = 120;

/// One guard, and how it is removed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mutant {
    /// The name in the environment variable.
    pub(super) name: String,
    /// The guard that is removed.
    pub(super) guard: String,
    /// The consequence for a user.
    pub(super) why: String,
    /// Every one of these must fail.
    pub(super) caught_by: Vec<TestName>,
    /// The text that must be in the failure messages: one for each test, or one for all. A test that
    /// fails for another reason, such as invalid SQL, has not detected the missing guard.
    says: Vec<String>,
    /// The servers that these tests need.
    #[serde(default)]
    needs: Vec<String>,
    /// Whether a test that hangs counts as failed.
    #[serde(default)]
    pub(super) may_hang: bool,
    #[serde(default = "patience_seconds")]
    pub(super) patience_seconds: u64,
    /// The phases of the fault campaign that detect it, too.
    #[serde(default)]
    pub(super) campaign: Vec<String>,
    /// Invariants of the simulation, at least one of which is broken without the guard.
    #[serde(default)]
    pub(super) simulation: Vec<String>,
    #[serde(rename = "edit")]
    pub(super) edits: Vec<Edit>,
}

/// One change to one file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Edit {
    /// Below the workspace's root.
    pub(super) file: String,
    /// Must occur exactly once.
    pub(super) find: String,
    /// The replacement. In Rust it contains [`ON`], which is true for the active mutant; an SQL
    /// statement is replaced as a whole.
    pub(super) replace: String,
}

/// The one package with tests that is not in `crates/`.
const SIMULATION: &str = "semel-simulation";
const SIMULATION_PLACE: &str = "lab/simulation";

/// In a replacement: an expression that is true while the mutant is active.
pub(super) const ON: &str = "{{on}}";

/// A test: `package/binary/name`, where the binary `lib` means the package's unit tests.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(try_from = "String")]
pub(super) struct TestName {
    pub(super) package: String,
    pub(super) binary: String,
    pub(super) name: String,
}

/// The contents of a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    mutant: Vec<Mutant>,
}

fn patience_seconds() -> u64 {
    PATIENCE_SECONDS
}

impl Mutant {
    /// Every test that must fail, and the text in its message.
    pub(super) fn tests(&self) -> impl Iterator<Item = (&TestName, &str)> {
        let all = &self.says;
        self.caught_by.iter().enumerate().map(move |(at, test)| {
            let says = all.get(at).or_else(|| all.first());
            (test, says.map_or("", String::as_str))
        })
    }

    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(self.patience_seconds)
    }
}

impl Edit {
    /// The crate and the name of the statement that is changed; `None` where it is no statement.
    pub(super) fn statement(&self) -> Option<(&str, &str)> {
        let (package, name) = self.file.split_once("/queries/")?;
        Some((package, name.strip_suffix(".sql")?))
    }
}

impl TestName {
    /// Where the package is, below the workspace's root.
    pub(super) fn package_directory(&self) -> String {
        match self.package.as_str() {
            SIMULATION => SIMULATION_PLACE.to_owned(),
            package => format!("crates/{package}"),
        }
    }

    /// The name without characters that a file name cannot have.
    pub(super) fn as_file_name(&self) -> String {
        self.to_string().replace(['/', ':'], "-")
    }
}

impl TryFrom<String> for TestName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parts: Vec<&str> = text.splitn(3, '/').collect();
        match parts[..] {
            [package, binary, name] if !name.is_empty() => Ok(Self {
                package: package.to_owned(),
                binary: binary.to_owned(),
                name: name.to_owned(),
            }),
            _ => Err(format!("`{text}` is not `package/binary/test`")),
        }
    }
}

impl fmt::Display for TestName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}/{}", self.package, self.binary, self.name)
    }
}

/// Reads every list in the directory, in the order of the files' names.
pub(super) fn read(place: &Path) -> Result<Vec<Mutant>> {
    let mut paths = Vec::new();
    let entries =
        fs::read_dir(place).with_context(|| format!("cannot read {}", place.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            paths.push(path);
        }
    }
    paths.sort();
    let mut all = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path)?;
        all.extend(parse(&text).with_context(|| format!("{} is no list", path.display()))?);
    }
    check(&all)?;
    Ok(all)
}

pub(super) fn parse(text: &str) -> Result<Vec<Mutant>> {
    Ok(toml::from_str::<Listed>(text)?.mutant)
}

/// Checks a list, without comparing it with the tree.
fn check(all: &[Mutant]) -> Result<()> {
    let mut names = BTreeSet::new();
    for mutant in all {
        let Mutant {
            name,
            edits,
            caught_by,
            says,
            ..
        } = mutant;
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || !name.chars().all(plain) {
            bail!("`{name}` is no name for a mutant: small letters, digits and hyphens");
        }
        if !names.insert(name) {
            bail!("two mutants are called {name}");
        }
        if edits.is_empty() {
            bail!("{name} changes nothing");
        }
        if caught_by.is_empty() {
            bail!("{name}: no test is named that catches it");
        }
        let one_for = says.len() == 1 || says.len() == caught_by.len();
        if !one_for || says.iter().any(|text| text.trim().is_empty()) {
            bail!("{name}: `says` needs one text for each of its tests, or one for all of them");
        }
        for edit in edits {
            if edit.find.trim().is_empty() {
                bail!("{name}: an edit of {} looks for nothing", edit.file);
            }
            if edit.statement().is_none() && !edit.replace.contains(ON) {
                bail!(
                    "{name}: the replacement in {} does not contain {ON}, so it would always be active",
                    edit.file
                );
            }
        }
    }
    Ok(())
}

/// The requested mutants, or all.
pub(super) fn choose<'a>(all: &'a [Mutant], names: &[String]) -> Result<Vec<&'a Mutant>> {
    if let Some(unknown) = names
        .iter()
        .find(|name| all.iter().all(|mutant| mutant.name != **name))
    {
        let known: Vec<&str> = all.iter().map(|mutant| mutant.name.as_str()).collect();
        bail!(
            "there is no mutant called {unknown}; there are {}",
            known.join(", ")
        );
    }
    Ok(all
        .iter()
        .filter(|mutant| names.is_empty() || names.contains(&mutant.name))
        .collect())
}

/// The servers that these mutants need, each once.
pub(super) fn needs(chosen: &[&Mutant]) -> Result<Vec<Server>> {
    let mut needed = Vec::new();
    for mutant in chosen {
        for name in &mutant.needs {
            let server = Server::from_str(name, true)
                .map_err(|problem| anyhow::anyhow!("{}: {problem}", mutant.name))?;
            if !needed.contains(&server) {
                needed.push(server);
            }
        }
    }
    Ok(needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = r#"
        [[mutant]]
        name = "a-guard"
        guard = "what it guards"
        why = "what breaks"
        caught_by = ["semel-core/lib/a::test"]
        says = ["left: 2; right: 1"]
        needs = ["redis"]
        [[mutant.edit]]
        file = "crates/semel-core/src/a.rs"
        find = "if guarded {"
        replace = "if !{{on}} && guarded {"
    "#;

    fn problem(text: &str) -> String {
        let read = parse(text).and_then(|all| check(&all));
        format!("{:#}", read.unwrap_err())
    }

    #[test]
    fn a_list_is_read() {
        let all = parse(ONE).unwrap();
        check(&all).unwrap();
        assert_eq!(all[0].caught_by[0].to_string(), "semel-core/lib/a::test");
        assert_eq!(all[0].patience(), PATIENCE);
        assert!(!all[0].may_hang);
        let chosen = choose(&all, &[]).unwrap();
        assert_eq!(needs(&chosen).unwrap(), [Server::Redis]);
    }

    #[test]
    fn an_edit_that_would_always_be_there_is_refused() {
        let text = ONE.replace("!{{on}} && ", "");
        assert!(problem(&text).contains("does not contain {{on}}"));
        // A statement is replaced as a whole and needs no condition.
        let text = text.replace("src/a.rs", "queries/a.sql");
        check(&parse(&text).unwrap()).unwrap();
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(problem(&format!("{ONE}{ONE}")).contains("two mutants"));
        assert!(problem(&ONE.replace("a-guard", "A guard")).contains("no name"));
        assert!(problem(&ONE.replace("if guarded {\"\n", "  \"\n")).contains("looks for nothing"));
        let text = ONE.replace("[\"semel-core/lib/a::test\"]", "[]");
        assert!(problem(&text).contains("no test"));
        for says in ["[]", "[\" \"]", "[\"a\", \"b\"]"] {
            let text = ONE.replace("[\"left: 2; right: 1\"]", says);
            assert!(problem(&text).contains("`says` needs"), "{says}");
        }
        assert!(problem(&ONE.replace("/lib/", "-")).contains("package/binary/test"));
        assert!(problem(&ONE.replace("why", "because")).contains("because"));
    }

    #[test]
    fn a_test_says_its_own_word_or_the_one_for_all() {
        let two = "[\"a/lib/x\", \"semel-simulation/t/y\"]";
        let text = ONE.replace("[\"semel-core/lib/a::test\"]", two);
        let expected = |text: &str| {
            let all = parse(text).unwrap();
            check(&all).unwrap();
            let expected = all[0].tests().map(|(_, says)| says.to_owned());
            expected.collect::<Vec<_>>()
        };
        assert_eq!(expected(&text), ["left: 2; right: 1", "left: 2; right: 1"]);
        let text = text.replace("[\"left: 2; right: 1\"]", "[\"one\", \"two\"]");
        assert_eq!(expected(&text), ["one", "two"]);
        let tests = &parse(&text).unwrap()[0].caught_by;
        assert_eq!(tests[0].package_directory(), "crates/a");
        assert_eq!(tests[1].package_directory(), "lab/simulation");
    }

    #[test]
    fn only_what_there_is_can_be_chosen() {
        let all = parse(ONE).unwrap();
        assert_eq!(choose(&all, &["a-guard".to_owned()]).unwrap().len(), 1);
        let error = choose(&all, &["b".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("no mutant called b") && error.contains("a-guard"));
    }

    #[test]
    fn a_server_that_nobody_knows_is_refused() {
        let all = parse(&ONE.replace("\"redis\"", "\"oracle\"")).unwrap();
        let chosen = choose(&all, &[]).unwrap();
        assert!(needs(&chosen).unwrap_err().to_string().contains("a-guard"));
    }
}
