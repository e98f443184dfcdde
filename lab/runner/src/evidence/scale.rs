//! `docs/scale.md`: what a number of new keys per second needs, computed from the measured figures.
use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::short;
use super::text::{Table, count, list, text_of};

/// The explanation, with a line for the tables.
const TEXT: &str = include_str!("scale.txt");
const TABLES: &str = "<!-- tables -->\n";

/// New keys per second.
const RATES: [f64; 3] = [1e4, 1e6, 1e7];
const SECONDS_A_MONTH: f64 = 730.0 * 3_600.0;
const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// The share of a processor that is planned for; the rest is for peaks, failover and maintenance.
const UTILISATION: f64 = 0.5;
/// The largest leader that is planned with.
const LEADER_CORES: f64 = 64.0;
/// What one leader's log may take: half of a volume of 1,000 MB/s.
const LEADER_LOG_BYTES: f64 = 500e6;
/// A leader and two standbys.
const NODES: f64 = 3.0;
/// The replay window, in seconds.
const WINDOW: f64 = 86_400.0;
/// A record of PostgreSQL with a response of 1 KiB, with its indexes.
const RECORD_BYTES: f64 = 2_000.0;
/// A request and its response, with their heads.
const MESSAGE_BYTES: f64 = 2_500.0;
/// A partition of DynamoDB writes this many units per second.
const PARTITION_UNITS: f64 = 1_000.0;
/// Units for a new key, as docs/dynamodb.md counts them.
const WRITE_UNITS: f64 = 6.0;

/// Public list prices, us-east-1, on demand, without discounts, as of June 2026, in dollars.
const CORE_HOUR: f64 = 0.0816 / 2.0;
const GIB_MONTH: f64 = 0.08;
const MILLION_WRITE_UNITS: f64 = 0.625;
const DYNAMODB_GIB_MONTH: f64 = 0.25;
const EGRESS_GB: f64 = 0.05;
/// An assumption, not a price.
const EUROS_PER_DOLLAR: f64 = 0.9;

/// What one new key costs, measured.
struct Measured {
    gateway_micros: f64,
    postgres_micros: f64,
    log_bytes: f64,
}

impl Measured {
    fn of(content: &Value) -> Result<Self> {
        let find = |title: &str, name: &str| {
            list(&content["tables"])
                .iter()
                .filter(|table| text_of(&table["title"]).starts_with(title))
                .flat_map(|table| list(&table["rows"]))
                .find(|row| text_of(&row["name"]) == name)
                .with_context(|| format!("`{name}` was not measured"))
        };
        let own = |row: &Value| row["median"]["cpu_own"].as_f64();
        let no_figure = "a row without its figures";
        let most = find("PostgreSQL: ", "semel-postgres, new, 256 callers")?;
        let layer = find("HTTP on PostgreSQL", "layer, new keys")?;
        let plain = find("HTTP on SQLite", "plain axum")?;
        let proxy = find("HTTP on SQLite", "gateway, pass-through")?;
        let layer = own(layer).zip(own(plain)).context(no_figure)?;
        Ok(Self {
            // The gateway on PostgreSQL has no benchmark of its own: its proxy, and what the layer adds to
            // an application.
            gateway_micros: own(proxy).context(no_figure)? + layer.0 - layer.1,
            postgres_micros: most["median"]["cpu_behind"].as_f64().context(no_figure)?,
            log_bytes: most["median"]["log_bytes"].as_f64().context(no_figure)?,
        })
    }
}

pub(super) fn page(run: &Value, content: &Value) -> Result<String> {
    let measured = Measured::of(content)?;
    let mut tables = format!(
        "Measured ([performance.md](performance.md), commit `{}`): a new key takes {:.0} µs of a gateway's \
         processor and {:.0} µs of PostgreSQL's, and {:.0} bytes of log.\n\n",
        short(text_of(&run["commit"])),
        measured.gateway_micros,
        measured.postgres_micros,
        measured.log_bytes,
    );
    let columns = RATES.map(|rate| format!("{}/s", whole(rate)));
    let head = |first: &'static str| {
        let mut head = vec![first];
        head.extend(columns.iter().map(String::as_str));
        Table::new(&head)
    };
    let row = |table: &mut Table, name: &str, value: &dyn Fn(f64) -> String| {
        let mut cells = vec![name.to_owned()];
        cells.extend(RATES.map(value));
        table.row(cells);
    };

    let cores = |rate: f64, micros: f64| (rate * micros / 1e6 / UTILISATION).ceil();
    let gateways = |rate: f64| cores(rate, measured.gateway_micros);
    let databases = |rate: f64| cores(rate, measured.postgres_micros);
    let log = |rate: f64| rate * measured.log_bytes;
    let leaders = |rate: f64| {
        (databases(rate) / LEADER_CORES)
            .max(log(rate) / LEADER_LOG_BYTES)
            .ceil()
    };
    let stored = |rate: f64| rate * WINDOW * RECORD_BYTES / GIB;
    let egress = |rate: f64| rate * MESSAGE_BYTES * SECONDS_A_MONTH / 1e9;
    let euros = |dollars: f64| whole(dollars * EUROS_PER_DOLLAR);
    let month = |cores: f64| cores * CORE_HOUR * 730.0;
    // Standbys replay the log with about half of the leader's work, and are sized as leaders.
    let postgres_dollars = |rate: f64| {
        month(gateways(rate) + NODES * databases(rate)) + NODES * stored(rate) * GIB_MONTH
    };
    let units = |rate: f64| rate * WRITE_UNITS;
    let dynamodb_dollars = |rate: f64| {
        month(gateways(rate))
            + units(rate) * SECONDS_A_MONTH / 1e6 * MILLION_WRITE_UNITS
            + stored(rate) * DYNAMODB_GIB_MONTH
    };

    let mut postgres = head("PostgreSQL, new keys");
    row(&mut postgres, "gateway cores", &|rate| {
        whole(gateways(rate))
    });
    row(&mut postgres, "PostgreSQL cores on leaders", &|rate| {
        whole(databases(rate))
    });
    row(&mut postgres, "log, MB/s", &|rate| whole(log(rate) / 1e6));
    row(&mut postgres, "leaders (shards)", &|rate| {
        whole(leaders(rate))
    });
    row(&mut postgres, "disk of one copy for a day, GiB", &|rate| {
        whole(stored(rate))
    });
    row(&mut postgres, "traffic in and out, TB a month", &|rate| {
        whole(egress(rate) / 1e3)
    });
    row(
        &mut postgres,
        "€ a month, with two standbys each",
        &|rate| euros(postgres_dollars(rate)),
    );
    let mut dynamodb = head("DynamoDB, new keys");
    row(&mut dynamodb, "gateway cores", &|rate| {
        whole(gateways(rate))
    });
    row(&mut dynamodb, "write units per second", &|rate| {
        whole(units(rate))
    });
    row(&mut dynamodb, "partitions, at least", &|rate| {
        whole((units(rate) / PARTITION_UNITS).ceil())
    });
    row(&mut dynamodb, "stored for a day, GiB", &|rate| {
        whole(stored(rate))
    });
    row(&mut dynamodb, "€ a month, on demand", &|rate| {
        euros(dynamodb_dollars(rate))
    });
    // Writing to a String cannot fail.
    let _ = writeln!(
        tables,
        "{}{}Responses that leave the cloud cost about € {} for each TB in addition.",
        postgres.done(),
        dynamodb.done(),
        whole(EGRESS_GB * 1e3 * EUROS_PER_DOLLAR),
    );
    let comment = "<!-- Generated by `cargo xtask evidence` of the last `cargo xtask bench`, from \
                   lab/runner/src/evidence/scale.txt. -->\n";
    Ok(format!("{comment}{}", TEXT.replace(TABLES, &tables)))
}

fn whole(value: f64) -> String {
    count(&Value::from(value.round()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::performance::tests::made_up;
    use super::*;

    #[test]
    fn capacity_follows_from_the_figures() {
        let run = json!({ "commit": "abcdef0123456789" });
        let page = page(&run, &made_up()).unwrap();
        // 20 µs on the gateway (20 + 20 − 20) and 40 on PostgreSQL, at half of a core.
        for expected in [
            "| gateway cores | 1 | 40 | 400 |",
            "| PostgreSQL cores on leaders | 1 | 80 | 800 |",
            "| log, MB/s | 20 | 2,000 | 20,000 |",
            "| leaders (shards) | 1 | 4 | 40 |",
            "| write units per second | 60,000 | 6,000,000 | 60,000,000 |",
        ] {
            assert!(page.contains(expected), "{expected}\n{page}");
        }
        assert!(super::page(&run, &json!({})).is_err());
    }
}
