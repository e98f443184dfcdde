//! `hosts`: which hosts are the same target.

use semel_core::fingerprint::Hosts;
use toml::Spanned;
use toml::de::DeValue;

use super::table::Table;

/// What `hosts` has to be.
const EXPECTED: &str =
    "\"any\", or groups of equivalent hosts, for example [[\"api.example\", \"api2.example\"]]";

/// Reads `hosts`. Without it each host is its own target.
pub(super) fn read(top: &mut Table<'_>) -> Hosts {
    let Some(value) = top.value("hosts") else {
        return Hosts::default();
    };
    match parse(value) {
        Ok(hosts) => hosts,
        Err(problem) => {
            top.problems.at(value.span(), problem);
            Hosts::default()
        }
    }
}

fn parse(value: &Spanned<DeValue<'_>>) -> Result<Hosts, String> {
    let wrong = || format!("`hosts` must be {EXPECTED}");
    if let Some(word) = value.get_ref().as_str() {
        let is_any = word == "any";
        return is_any.then(Hosts::any).ok_or_else(wrong);
    }
    let groups = value.get_ref().as_array().ok_or_else(wrong)?;
    let groups = groups.iter().map(|group| {
        let hosts = group.get_ref().as_array().filter(|hosts| !hosts.is_empty());
        let names = hosts?.iter().map(|host| host.get_ref().as_str());
        names.collect::<Option<Vec<&str>>>()
    });
    let groups: Vec<Vec<&str>> = groups.collect::<Option<_>>().ok_or_else(wrong)?;
    if groups.is_empty() {
        return Err(format!(
            "`hosts` is empty and has no effect: write {EXPECTED}"
        ));
    }
    Hosts::equivalent(groups).map_err(|error| format!("`hosts`: {error}"))
}
