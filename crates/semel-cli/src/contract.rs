//! `semel contract`: what decides whether two requests are the same, as published in a store.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use semel_core::Store as _;
use semel_core::contract::Contracts;
use semel_core::store::AnyStore;
use semel_gateway::config::{Config, Environment, Flags, Source, StoreUrl, Upstream};
use semel_gateway::regions::{self, Regions};
use semel_gateway::{build_layer, open_store};
use semel_http::{ContractPlan, Layer};

/// A record outlives the configuration that it was made under. Every process publishes its
/// contracts in the store, and refuses a configuration under which it would take a retry for a new
/// request.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Print what is published in a store
    #[command(after_help = "Example:\n  semel contract show --store sqlite:semel.db")]
    Show(ShowArgs),
    /// Print what a configuration would change; exits with 1 if it would be refused
    #[command(after_help = "Example:\n  semel contract diff --config semel.toml")]
    Diff(ConfigArgs),
    /// Publish a configuration that would be refused: retries of the records it names execute again
    #[command(
        after_help = "Example:\n  semel contract accept --config semel.toml --reason 'OPS-412: no client retries'"
    )]
    Accept(AcceptArgs),
}

#[derive(clap::Args)]
struct ShowArgs {
    /// The store, such as sqlite:semel.db or <postgres://user@host/database>
    #[arg(long, env = "SEMEL_STORE", hide_env_values = true, value_name = "URL")]
    store: StoreUrl,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct ConfigArgs {
    /// The configuration file, in TOML [env: `SEMEL_CONFIG`]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// The store, unless the configuration names it [env: `SEMEL_STORE`]
    #[arg(long, value_name = "URL")]
    store: Option<StoreUrl>,

    /// URL of the application, unless the configuration names it [env: `SEMEL_UPSTREAM`]
    #[arg(long, value_name = "URL")]
    upstream: Option<Upstream>,
}

#[derive(clap::Args)]
struct AcceptArgs {
    #[command(flatten)]
    source: ConfigArgs,

    /// Why it is safe, for the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// Who accepts it, for the audit trail
    #[arg(long, env = "USER", value_name = "NAME", default_value = "operator")]
    by: String,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        match args.command {
            Command::Show(args) => show(&args).await,
            Command::Diff(args) => diff(args).await,
            Command::Accept(args) => accept(args).await,
        }
    })
}

async fn show(args: &ShowArgs) -> Result<()> {
    let store = open_store(&args.store).await?;
    let contracts = store.contracts().await?.contracts;
    let text = if args.json {
        contracts.to_text() + "\n"
    } else {
        published(&contracts)
    };
    print(&text)
}

async fn diff(args: ConfigArgs) -> Result<()> {
    let (layer, regions) = layer(args).await?;
    let published = layer.store().contracts().await?.contracts;
    let plan = layer.plan_contracts().await?;
    print(&planned(&plan))?;
    regions::check(regions.as_deref(), &published)?;
    if plan
        .changes
        .iter()
        .any(semel_http::ContractChange::is_refused)
    {
        bail!("this configuration would be refused");
    }
    Ok(())
}

async fn accept(args: AcceptArgs) -> Result<()> {
    if args.reason.trim().is_empty() {
        bail!("--reason is empty: say why it is safe");
    }
    let (layer, regions) = layer(args.source).await?;
    let published = layer.store().contracts().await?.contracts;
    let plan = layer.plan_contracts().await?;
    print(&planned(&plan))?;
    if regions.is_some() {
        regions::check(regions.as_deref(), &published)?;
    }
    layer.accept_contracts(&args.by, &args.reason).await?;
    if regions.is_none() && published.regions.is_some() {
        regions::leave(layer.store()).await?;
        print("this store is no longer one of several regions\n")?;
    }
    print("published\n")
}

/// The layer that the configuration describes, over its store, and its list of regions.
async fn layer(args: ConfigArgs) -> Result<(Layer<AnyStore>, Option<Arc<Regions>>)> {
    let source = Source {
        file: args.config,
        flags: Flags {
            store: args.store,
            upstream: args.upstream,
            ..Flags::default()
        },
        environment: Environment::of_process(),
    };
    let config: Config = source.load()?;
    let store = open_store(&config.store).await?;
    Ok((build_layer(&config, store)?, config.region))
}

fn published(contracts: &Contracts) -> String {
    let routes = contracts
        .routes
        .iter()
        .map(|route| format!("{}\n  {}", route.route, route.identity));
    let rules = contracts
        .rule_sets
        .iter()
        .map(|set| format!("fingerprint rules of {:?}\n  {}", set.operation, set.rules));
    let acceptances = contracts.acceptances.iter().map(|accepted| {
        let (by, route, reason) = (&accepted.by, &accepted.route, &accepted.reason);
        format!("accepted by {by} for {route}: {reason}")
    });
    let rollbacks = contracts.rollbacks.iter().map(|lost| {
        let record = &lost.record;
        match &lost.accepted {
            Some(accepted) => format!(
                "the store lost record {record}: accepted by {}: {}",
                accepted.by, accepted.reason
            ),
            None => format!("the store lost record {record}: run `semel store accept`"),
        }
    });
    let lines: Vec<_> = routes
        .chain(rules)
        .chain(acceptances)
        .chain(rollbacks)
        .collect();
    lines_or(&lines, "nothing is published")
}

fn planned(plan: &ContractPlan) -> String {
    let changes = plan.changes.iter().map(|change| {
        let verdict = if change.is_refused() {
            "refused"
        } else {
            "allowed"
        };
        format!("{verdict}: {change}")
    });
    let rules = plan.rules.iter().flat_map(|change| {
        let new = format!(
            "allowed: new fingerprint rules of {:?}: {}",
            change.operation, change.to
        );
        let held = change.from.iter();
        let held = held.map(|held| format!("  records are still compared under {held}"));
        std::iter::once(new).chain(held)
    });
    let lines: Vec<_> = changes.chain(rules).collect();
    lines_or(&lines, "no change")
}

fn lines_or(lines: &[String], nothing: &str) -> String {
    let text = if lines.is_empty() {
        nothing.to_owned()
    } else {
        lines.join("\n")
    };
    text + "\n"
}

fn print(text: &str) -> Result<()> {
    io::stdout()
        .write_all(text.as_bytes())
        .context("cannot write standard output")
}
