//! Settings that are valid, and probably not meant.

use std::net::IpAddr;
use std::time::Duration;

use semel_http::KeyRule;

use super::units::format_duration;
use super::{Config, TenantFrom};

/// Clients retry for longer than this after an outage, and by hand after a night.
const SHORT_RETENTION: Duration = Duration::from_hours(1);

impl Config {
    /// What is logged at start.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let TenantFrom::Authorization { rotating: true } = self.tenant {
            warnings.push(
                "`[tenant] rotating = true` accepts credentials that expire: a retry with a renewed \
                 credential is another tenant's, and executes again; prefer `from = \"jwt:sub\"`"
                    .to_owned(),
            );
        }
        for (name, address) in self.region.iter().flat_map(|it| &it.table().regions) {
            let is_loopback = || {
                address
                    .host()
                    .parse()
                    .is_ok_and(|ip: IpAddr| ip.is_loopback())
            };
            if !address.is_secure() && !is_loopback() {
                warnings.push(format!(
                    "[region]: the address of {name:?} is not https: requests and the secret of the \
                     regions are sent unencrypted; only within a private network"
                ));
            }
        }
        let mut short = |name: &str, retention: Duration| {
            if retention < SHORT_RETENTION {
                warnings.push(format!(
                    "{name}: `retention` is {}; a client that retries later than that gets no \
                     replay. Most APIs keep responses for 24 hours",
                    format_duration(retention)
                ));
            }
        };
        let default = self.policy.guard.windows.replay;
        short("[policy]", default);
        for route in &self.routes {
            let retention = route.policy.guard.windows.replay;
            if retention != default && route.key != KeyRule::Ignored {
                short(&format!("route \"{}\"", route.pattern), retention);
            }
        }
        warnings
    }
}
