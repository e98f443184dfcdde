//! The regions, the provider, and the network between them.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use semel_testkit::cluster::network::{Host, Loss, Network};
use serde_json::Value;

use crate::deploy::Settings;
use crate::http;
use crate::launcher::{PROVIDER_TIMEOUT_MS, Programs};
use crate::process::{Process, free_address};
use crate::test_bed::{LEDGER, STORE_IS_OPEN, wait_for_answer};
use crate::tls::Tls;

/// A namespace each, by the last byte of its address.
pub(super) const REGIONS: [(&str, Host); 3] = [("ap", 1), ("eu", 2), ("us", 3)];
/// The namespace of this process, which the provider and the clients are in.
const OURS: Host = 254;
const GATEWAY_PORT: u16 = 8080;
const ADMIN_PORT: u16 = 8081;
const APP_PORT: u16 = 3000;
/// Longer than a guarded request takes at its home: three seconds, and a wait of two.
const FORWARD_TIMEOUT: &str = "6s";

/// One region.
pub(super) struct Region {
    pub(super) gateway: Process,
    pub(super) app: Process,
    pub(super) address: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) app_address: SocketAddr,
    pub(super) config: PathBuf,
    pub(super) store: PathBuf,
}

/// The regions and the provider. Dropping it stops every process.
pub(super) struct Regions {
    pub(super) all: Vec<Region>,
    pub(super) provider: Process,
    pub(super) provider_address: SocketAddr,
    pub(super) ledger: PathBuf,
    pub(super) semel: PathBuf,
    pub(super) place: PathBuf,
    /// Dropped last.
    pub(super) network: Network,
}

impl Regions {
    pub(super) fn prepare(programs: &Programs, place: &Path, network: Network) -> Result<Self> {
        let at = |host: Host, port: u16| SocketAddr::new(IpAddr::V4(network.address(host)), port);
        let provider_address = at(OURS, free_address()?.port());
        let ledger = place.join(LEDGER);
        let log = |name: &str| place.join(format!("{name}.log"));
        // Nothing here uses TLS, but every client loads certificates.
        let trusted = Tls::create(place)?.certificate;
        let process = |name: &str, program: &Path, arguments: Vec<String>| {
            Process::new(
                name,
                program.to_owned(),
                arguments,
                log(name),
                trusted.clone(),
            )
        };
        let (listen, path) = (provider_address.to_string(), ledger.to_string_lossy());
        let arguments = words(&["provider", "--listen", &listen, "--ledger", &path]);
        let provider = process("provider", &programs.payments, arguments);
        fs::write(place.join("admin.token"), http::ADMIN_TOKEN)?;
        fs::write(
            place.join("region.secret"),
            "the-secret-of-all-regions-of-the-campaign",
        )?;
        let regions = REGIONS.map(|(name, host)| {
            let [address, admin, app_address] =
                [GATEWAY_PORT, ADMIN_PORT, APP_PORT].map(|port| at(host, port));
            let (config, store) = (
                place.join(format!("{name}.toml")),
                place.join(format!("{name}.db")),
            );
            let inside = |program: &Path, arguments: Vec<String>| {
                let command = network.command(host);
                let enter = command.get_args();
                let enter = enter.map(|word| word.to_string_lossy().into_owned());
                let program = program.to_string_lossy().into_owned();
                enter.chain([program]).chain(arguments).collect()
            };
            let database = place.join(format!("{name}-payments.db"));
            let app = app_arguments(app_address, provider_address, &database);
            let app = inside(&programs.payments, app);
            let gateway = gateway_arguments(&config, [address, admin, app_address], &store);
            let gateway = inside(&programs.semel, gateway);
            Region {
                gateway: process(&format!("gateway-{name}"), ip_program(), gateway),
                app: process(&format!("app-{name}"), ip_program(), app),
                address,
                admin,
                app_address,
                config,
                store,
            }
        });
        let prepared = Self {
            all: regions.into(),
            provider,
            provider_address,
            ledger,
            semel: programs.semel.clone(),
            place: place.to_owned(),
            network,
        };
        for at in 0..REGIONS.len() {
            prepared.configure(at, 7)?;
        }
        Ok(prepared)
    }

    /// Writes a region's configuration for its next start. In version 8 one tenant has a fixed home.
    pub(super) fn configure(&self, at: usize, version: u32) -> Result<()> {
        let (name, _) = REGIONS[at];
        let known = self.all.iter().zip(REGIONS);
        let urls: Vec<_> = known
            .map(|(region, (name, _))| format!("{name} = \"http://{}\"", region.address))
            .collect();
        let rules = if version == 7 {
            ""
        } else {
            // The name of a tenant is the hash of its credential.
            "tenant_home = { \"a_*\" = \"us\", \"a_0*\" = \"ap\", \"a_1*\" = \"ap\", \
             \"a_2*\" = \"ap\", \"a_3*\" = \"ap\", \"a_4*\" = \"ap\", \"a_5*\" = \"eu\", \
             \"a_6*\" = \"eu\", \"a_7*\" = \"eu\", \"a_8*\" = \"eu\", \"a_9*\" = \"eu\" }"
        };
        let place = self.place.display();
        let tables = format!(
            "\n[admin]\ntoken_file = \"{place}/admin.token\"\n\
             [region]\nname = \"{name}\"\nversion = {version}\nregions = {{ {} }}\n{rules}\n\
             secret_file = \"{place}/region.secret\"\ntimeout = \"{FORWARD_TIMEOUT}\"\n",
            urls.join(", ")
        );
        let text = Settings::default().render("") + &tables;
        fs::write(&self.all[at].config, text)?;
        Ok(())
    }

    pub(super) async fn start(&self) -> Result<()> {
        self.provider.start()?;
        wait_for_answer(self.provider_address, "/pending").await?;
        for region in &self.all {
            region.app.start()?;
            region.gateway.start()?;
        }
        for region in &self.all {
            wait_for_answer(region.app_address, "/summary").await?;
            wait_for_answer(region.admin, STORE_IS_OPEN).await?;
        }
        Ok(())
    }

    /// Links between these regions, in both directions.
    pub(super) fn cut(&self, pairs: &[(usize, usize)]) -> Result<()> {
        for (one, other) in pairs {
            let [(_, one), (_, other)] = [REGIONS[*one], REGIONS[*other]];
            self.network.lose(one, Loss::With(other))?;
        }
        Ok(())
    }

    pub(super) fn heal_links(&self) -> Result<()> {
        for (_, host) in REGIONS {
            self.network.heal(host)?;
        }
        Ok(())
    }

    /// How many payments are in progress, in the applications and at the provider.
    pub(super) async fn under_way(&self) -> Result<u64> {
        let count = |value: &Value| value.as_u64().unwrap_or_default();
        let mut all = count(&http::ask(self.provider_address, "/pending", None).await?);
        for region in &self.all {
            let summary = http::ask(region.app_address, "/summary", None).await?;
            all += count(&summary["by_status"]["processing"]);
        }
        Ok(all)
    }

    /// Gives a region's store a new contract, by `semel contract accept`.
    pub(super) fn accept(&self, at: usize) -> Result<()> {
        let region = &self.all[at];
        let store = format!("sqlite:{}", region.store.display());
        let upstream = format!("http://{}", region.app_address);
        let output = Command::new(&self.semel)
            .args(["contract", "accept", "--reason", "no client retries"])
            .args(["--upstream", &upstream, "--store", &store, "--config"])
            .arg(&region.config)
            .env_clear()
            .stdin(Stdio::null())
            .output()?;
        if !output.status.success() {
            bail!(
                "the list is not accepted: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(())
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

fn app_arguments(listen: SocketAddr, provider: SocketAddr, database: &Path) -> Vec<String> {
    let (listen, provider) = (listen.to_string(), format!("http://{provider}"));
    let database = database.to_string_lossy();
    let mut arguments = words(&["app", "--unkeyed", "--listen", &listen]);
    arguments.extend(words(&["--provider", &provider, "--database", &database]));
    arguments.extend(words(&["--provider-timeout-ms", PROVIDER_TIMEOUT_MS]));
    arguments
}

/// `addresses` are those of its two listeners and of its application.
fn gateway_arguments(config: &Path, addresses: [SocketAddr; 3], store: &Path) -> Vec<String> {
    let [listen, admin, app] = addresses.map(|address| address.to_string());
    let config = config.to_string_lossy();
    let (upstream, store) = (
        format!("http://{app}"),
        format!("sqlite:{}", store.display()),
    );
    let mut arguments = words(&["gateway", "--config", &config, "--listen", &listen]);
    arguments.extend(words(&["--admin-listen", &admin, "--upstream", &upstream]));
    arguments.extend(words(&["--store", &store, "--threads", "1"]));
    arguments
}

/// The program that enters a namespace: the processes have no `PATH`.
fn ip_program() -> &'static Path {
    const PLACES: [&str; 4] = ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip", "/bin/ip"];
    let mut places = PLACES.iter().map(Path::new);
    places.find(|path| path.exists()).unwrap_or(Path::new("ip"))
}
