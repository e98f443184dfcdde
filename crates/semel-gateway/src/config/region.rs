//! `[region]`: several regions, each with its own store.

use std::collections::BTreeMap;
use std::ops::Range;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use semel_core::identity::MAX_TENANT_BYTES;
use semel_core::key::{Dialect, KeyHasher};
use semel_http::{InFlight, KeyRule};
use toml::Spanned;

use super::problem::Problems;
use super::table::{Table, type_name};
use super::units::format_duration;
use super::{Config, Environment, Upstream, secrets};
use crate::regions::{RegionTable, Regions, TenantHome};
use crate::tenant;

/// Maximum number of regions: a confirmation asks all of them.
const MAX_REGIONS: usize = 16;

/// Maximum number of `tenant_home` rules: each request looks at all.
const MAX_RULES: usize = 1_000;

/// Longest name of a region, which is a label and a part of contracts.
const MAX_NAME: usize = 32;

/// Shortest secret: 128 random bits as base64.
const MIN_SECRET: usize = 22;

/// How much longer than the application a home may take: ten seconds for the reservation, five for
/// the final write, and the way there and back.
const MARGIN: Duration = Duration::from_secs(20);

/// The table, before it is compared with the rest of the configuration.
pub(super) struct RegionDocument {
    name: Arc<str>,
    table: RegionTable,
    tokens: Vec<String>,
    timeout: Option<Spanned<Duration>>,
}

/// Reads `[region]`.
pub(super) fn read(mut table: Table<'_>, environment: &Environment) -> Option<RegionDocument> {
    let problems = table.problems;
    table.require("name", "name = \"eu\"");
    table.require(
        "regions",
        "regions = { eu = \"https://eu.example\", us = \"https://us.example\" }",
    );
    table.require("version", "version = 1");
    let name = table.parsed("name", check_name);
    let version = table.integer("version", 1..=u32::MAX as usize);
    let regions = read_regions(&mut table);
    let tenant_homes = read_tenant_homes(&mut table, regions.as_ref());
    let timeout = table.nonzero_duration("timeout");
    let is_alone = regions.as_ref().is_none_or(|regions| regions.len() < 2);
    let required = "[region] has no secret by which the regions know each other: add \
                    `secret_env = \"SEMEL_REGION_SECRET\"` or `secret_file = \"region.secret\"`";
    let required = (!is_alone).then_some(required);
    let tokens = secrets::read(&mut table, None, environment, required);
    let secrets_at = table
        .key_span("secret_env")
        .or(table.key_span("secret_file"))
        .unwrap_or_else(|| table.span());
    for token in tokens.iter().flatten() {
        if let Err(problem) = check_secret(token) {
            problems.at(secrets_at.clone(), problem);
        }
    }
    if let (Some(name), Some(regions)) = (&name, &regions)
        && !regions.contains_key(name.get_ref())
    {
        let message = format!("region {:?} is not in `regions`", name.get_ref());
        problems.at(name.span(), message);
    }
    table.finish();
    Some(RegionDocument {
        name: name?.into_inner(),
        table: RegionTable {
            version: u32::try_from(version?.into_inner()).ok()?,
            regions: regions?,
            tenant_homes,
        },
        tokens: tokens.unwrap_or_default(),
        timeout,
    })
}

impl RegionDocument {
    /// The regions of a configuration.
    pub(super) fn merge(self, config: &Config, problems: &Problems) -> Regions {
        let longest = longest_request(config);
        if let Some(timeout) = self.timeout.as_ref().filter(|it| *it.get_ref() <= longest) {
            let message = format!(
                "`timeout` must be longer than a request may take at its home, which is {}",
                format_duration(longest)
            );
            problems.at(timeout.span(), message);
        }
        let timeout = self.timeout.map_or(longest + MARGIN, Spanned::into_inner);
        let dialect = match config.dialect {
            Dialect::Ietf { .. } => "ietf",
            Dialect::Stripe => "stripe",
        };
        let hasher = config.key_hasher.as_ref().map(KeyHasher::id);
        // How a request becomes an identity. Routes are compared by each request's own identity.
        let identity = [
            config.header.as_str(),
            dialect,
            &tenant::rule(&config.tenant),
            &hasher.unwrap_or_default(),
        ];
        Regions::new(self.name, self.table, &identity, &self.tokens, timeout)
    }
}

/// The longest that a request may take at its home, apart from its store.
fn longest_request(config: &Config) -> Duration {
    let routes = config.routes.iter();
    let guarded = routes.filter(|route| route.key != KeyRule::Ignored);
    let times = guarded.map(|route| {
        let wait = match route.in_flight {
            InFlight::Wait { max } => max,
            InFlight::Reject | InFlight::Accept => Duration::ZERO,
        };
        route.policy.upstream_timeout + wait
    });
    times.fold(config.policy.upstream_timeout, Duration::max)
}

fn read_regions(table: &mut Table<'_>) -> Option<BTreeMap<Arc<str>, Upstream>> {
    let entries = read_texts(table, "regions", "[region] regions", MAX_REGIONS)?;
    let problems = table.problems;
    let mut regions = BTreeMap::new();
    for (name, url) in entries {
        match check_name(&name) {
            Ok(name) => match Upstream::from_str(url.get_ref()) {
                Ok(address) => drop(regions.insert(name, address)),
                Err(problem) => {
                    problems.at(url.span(), problem.replacen("upstream", "region URL", 1));
                }
            },
            Err(problem) => problems.at(url.span(), problem),
        }
    }
    Some(regions)
}

fn read_tenant_homes(
    table: &mut Table<'_>,
    regions: Option<&BTreeMap<Arc<str>, Upstream>>,
) -> Vec<TenantHome> {
    let entries = read_texts(table, "tenant_home", "[region] tenant_home", MAX_RULES);
    let problems = table.problems;
    let mut rules = Vec::new();
    for (tenant, home) in entries.into_iter().flatten() {
        if tenant.is_empty() || tenant.len() > MAX_TENANT_BYTES {
            let message =
                format!("a tenant in `tenant_home` has 1 to {MAX_TENANT_BYTES} characters");
            problems.at(home.span(), message);
        }
        let known = regions.and_then(|regions| regions.get_key_value(&**home.get_ref()));
        match (known, regions) {
            (Some((name, _)), _) => rules.push(TenantHome {
                tenant: tenant.strip_suffix('*').unwrap_or(&tenant).into(),
                is_prefix: tenant.ends_with('*'),
                home: Arc::clone(name),
            }),
            (None, Some(_)) => {
                let message = format!("region {:?} is not in `regions`", home.get_ref());
                problems.at(home.span(), message);
            }
            (None, None) => {}
        }
    }
    rules
}

/// A table of texts, whose keys the user chooses.
fn read_texts(
    table: &mut Table<'_>,
    key: &'static str,
    name: &'static str,
    max: usize,
) -> Option<Vec<(String, Spanned<String>)>> {
    let entries = table.table(key, name)?;
    let problems = table.problems;
    let mut texts = Vec::new();
    for (key, value) in entries.entries() {
        let name = (*key.get_ref()).to_owned();
        if let Some(text) = value.get_ref().as_str() {
            texts.push((name, Spanned::new(value.span(), text.to_owned())));
        } else {
            let found = type_name(value.get_ref());
            let message = format!("`{name}` must be a string, not {found}");
            problems.at(value.span(), message);
        }
    }
    let span: Range<usize> = entries.span();
    if texts.len() > max {
        problems.at(span, format!("at most {max} entries are allowed here"));
    }
    Some(texts)
}

fn check_name(name: &str) -> Result<Arc<str>, String> {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(is_allowed) {
        return Err(format!(
            "invalid name of a region {name:?}: use 1 to {MAX_NAME} lower-case letters, digits and `-`"
        ));
    }
    Ok(name.into())
}

fn check_secret(secret: &str) -> Result<(), String> {
    if secret.len() < MIN_SECRET || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "the secret of the regions needs at least {MIN_SECRET} characters, without \
             blanks: write the output of `openssl rand -base64 32`"
        ));
    }
    Ok(())
}
