//! The table: its creation, its check at start, and its definition for other tools.

use std::fmt::Write as _;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::ProvideErrorMetadata as _;
use aws_sdk_dynamodb::operation::describe_continuous_backups::DescribeContinuousBackupsOutput;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType,
    MultiRegionConsistency, PointInTimeRecoverySpecification, PointInTimeRecoveryStatus,
    Projection, ProjectionType, ScalarAttributeType, TableDescription, TableStatus,
    TimeToLiveStatus,
};

use crate::address::Address;
use crate::attributes::{Attributes, PARTITION, SORT, key, number};
use crate::error::chain;
use crate::index::{DUE, IDS, RESOURCES, SECOND_DUE};
use crate::keys::{HEAD, MAX_SHARDS, SETTINGS};
use crate::{Error, Migration};

/// The layout of items that this version reads and writes.
const LAYOUT: u32 = 1;
/// How often a new table is looked at until it can be used: for two minutes.
const CREATION_LOOKS: u32 = 120;
/// The first delay between two looks.
const FIRST_DELAY: Duration = Duration::from_millis(50);
/// The code of a server that does not have an operation. AWS's has all.
const UNKNOWN_OPERATION: &str = "UnknownOperationException";
/// The version of global tables in which the last writer wins, and which do not name their replicas.
const OLD_GLOBAL_TABLE: &str = "2017.11.29";

/// An index: its name, its keys, and their types.
pub(crate) struct Index {
    pub(crate) name: &'static str,
    pub(crate) partition: (&'static str, ScalarAttributeType),
    pub(crate) sort: (&'static str, ScalarAttributeType),
}

pub(crate) fn indexes() -> [Index; 4] {
    use ScalarAttributeType::{B, N, S};
    [
        Index {
            name: IDS,
            partition: ("x", S),
            sort: ("i", B),
        },
        Index {
            name: DUE,
            partition: ("d", S),
            sort: ("t", N),
        },
        Index {
            name: SECOND_DUE,
            partition: ("e", S),
            sort: ("u", N),
        },
        Index {
            name: RESOURCES,
            partition: ("r", S),
            sort: ("i", B),
        },
    ]
}

/// The key attributes of the table and of all indexes, each once.
pub(crate) fn attributes() -> Vec<(&'static str, ScalarAttributeType)> {
    let mut all = vec![
        (PARTITION, ScalarAttributeType::S),
        (SORT, ScalarAttributeType::S),
    ];
    for index in indexes() {
        for attribute in [index.partition, index.sort] {
            if !all.contains(&attribute) {
                all.push(attribute);
            }
        }
    }
    all
}

/// Creates the table, unless there is one, its settings and its backup.
pub(crate) async fn migrate(client: &Client, address: &Address) -> Result<Migration, Error> {
    let fails = |reason: String| connect(address, reason);
    let is_created = create(client, &address.table).await.map_err(fails)?;
    let description = await_active(client, address).await?;
    check(address, &description)?;
    let mut settings = key(SETTINGS, HEAD);
    settings.insert("layout".to_owned(), number(LAYOUT));
    settings.insert("shards".to_owned(), number(address.shards));
    let put = client
        .put_item()
        .table_name(&*address.table)
        .set_item(Some(settings))
        // The number of shards of a table never changes: what is in them would not be found.
        .condition_expression("attribute_not_exists(p)")
        .send();
    match put.await {
        Ok(_) => {}
        Err(error) if error.code() == Some("ConditionalCheckFailedException") => {}
        Err(error) => return Err(connect(address, chain(&error))),
    }
    Ok(Migration {
        is_created,
        has_recovery: enable_recovery(client, address).await?,
    })
}

/// Enables point-in-time recovery, and reads back that it is on. `false` where the server has none:
/// AWS's has.
async fn enable_recovery(client: &Client, address: &Address) -> Result<bool, Error> {
    let is_off = |reason: String| Error::NoRecovery {
        table: address.table.clone(),
        reason: reason.into(),
    };
    let recovery = PointInTimeRecoverySpecification::builder()
        .point_in_time_recovery_enabled(true)
        .build()
        .map_err(|error| is_off(error.to_string()))?;
    let mut delay = FIRST_DELAY;
    for _ in 0..CREATION_LOOKS {
        let described = client
            .describe_continuous_backups()
            .table_name(&*address.table)
            .send();
        match described.await {
            Ok(answer) if is_recoverable(&answer) => return Ok(true),
            Ok(_) => {}
            Err(error) if error.code() == Some(UNKNOWN_OPERATION) => return Ok(false),
            Err(error) if error.as_service_error().is_none() => {}
            Err(error) => return Err(is_off(chain(&error))),
        }
        let enabled = client
            .update_continuous_backups()
            .table_name(&*address.table)
            .point_in_time_recovery_specification(recovery.clone())
            .send();
        match enabled.await {
            Ok(_) => {}
            // It is, until backups of a new table begin.
            Err(error) if error.code() == Some("ContinuousBackupsUnavailableException") => {}
            // No answer: the next look shows whether it was enabled.
            Err(error) if error.as_service_error().is_none() => {}
            Err(error) => return Err(is_off(chain(&error))),
        }
        wait(&mut delay).await;
    }
    Err(is_off("it is not on after two minutes".to_owned()))
}

fn is_recoverable(described: &DescribeContinuousBackupsOutput) -> bool {
    let status = described
        .continuous_backups_description()
        .and_then(|backups| backups.point_in_time_recovery_description())
        .and_then(|recovery| recovery.point_in_time_recovery_status());
    status == Some(&PointInTimeRecoveryStatus::Enabled)
}

/// Waits, longer each time.
async fn wait(delay: &mut Duration) {
    tokio::time::sleep(*delay).await;
    *delay = (*delay * 2).min(Duration::from_secs(1));
}

/// Creates the table; returns whether there was none.
async fn create(client: &Client, table: &str) -> Result<bool, String> {
    let mut request = client
        .create_table()
        .table_name(table)
        .billing_mode(BillingMode::PayPerRequest);
    for (name, kind) in attributes() {
        let attribute = AttributeDefinition::builder()
            .attribute_name(name)
            .attribute_type(kind)
            .build();
        request = request.attribute_definitions(attribute.map_err(|error| error.to_string())?);
    }
    for element in key_schema(PARTITION, SORT)? {
        request = request.key_schema(element);
    }
    for index in indexes() {
        let keys_only = Projection::builder()
            .projection_type(ProjectionType::KeysOnly)
            .build();
        let index = GlobalSecondaryIndex::builder()
            .index_name(index.name)
            .set_key_schema(Some(key_schema(index.partition.0, index.sort.0)?))
            .projection(keys_only)
            .build();
        request = request.global_secondary_indexes(index.map_err(|error| error.to_string())?);
    }
    match request.send().await {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some("ResourceInUseException") => Ok(false),
        Err(error) => Err(chain(&error)),
    }
}

fn key_schema(partition: &str, sort: &str) -> Result<Vec<KeySchemaElement>, String> {
    let element = |name: &str, kind| {
        let element = KeySchemaElement::builder()
            .attribute_name(name)
            .key_type(kind)
            .build();
        element.map_err(|error| error.to_string())
    };
    Ok(vec![
        element(partition, KeyType::Hash)?,
        element(sort, KeyType::Range)?,
    ])
}

/// Waits until a new table can be used.
async fn await_active(client: &Client, address: &Address) -> Result<TableDescription, Error> {
    let mut delay = FIRST_DELAY;
    for _ in 0..CREATION_LOOKS {
        let found = describe(client, address).await?;
        if found.table_status == Some(TableStatus::Active) {
            return Ok(found);
        }
        wait(&mut delay).await;
    }
    Err(connect(
        address,
        "it is not active after two minutes".to_owned(),
    ))
}

async fn describe(client: &Client, address: &Address) -> Result<TableDescription, Error> {
    let described = client.describe_table().table_name(&*address.table).send();
    match described.await {
        Ok(answer) => answer
            .table
            .ok_or_else(|| connect(address, "its description is empty".to_owned())),
        Err(error) if error.code() == Some("ResourceNotFoundException") => Err(Error::NoTable {
            table: address.table.clone(),
            url: address.url().into(),
        }),
        Err(error) => Err(connect(address, chain(&error))),
    }
}

/// Checks that a table can be used, and returns the number of its shards.
pub(crate) async fn open(client: &Client, address: &Address) -> Result<u8, Error> {
    let description = describe(client, address).await?;
    check(address, &description)?;
    check_time_to_live(client, address).await?;
    let settings = client
        .get_item()
        .table_name(&*address.table)
        .set_key(Some(key(SETTINGS, HEAD)))
        .consistent_read(true)
        .send();
    let settings = settings
        .await
        .map_err(|error| connect(address, chain(&error)))?;
    let settings = settings.item.ok_or_else(|| {
        let url = address.url();
        unfit(
            address,
            &format!("it has no settings: run `semel migrate --store {url}`"),
        )
    })?;
    let mut settings = Attributes(settings);
    let invalid = |_| unfit(address, "its settings are invalid");
    let layout: u32 = settings.need("layout").map_err(invalid)?;
    if layout > LAYOUT {
        return Err(Error::NewerLayout {
            table: address.table.clone(),
            found: layout,
            supported: LAYOUT,
        });
    }
    let shards: u8 = settings.need("shards").map_err(invalid)?;
    if (1..=MAX_SHARDS).contains(&shards) {
        Ok(shards)
    } else {
        Err(unfit(address, "its settings are invalid"))
    }
}

/// Refuses a table that is not Semel's, or whose replicas accept writes that others do not see.
pub(crate) fn check(address: &Address, table: &TableDescription) -> Result<(), Error> {
    let has_keys = |found: &[KeySchemaElement], partition: &str, sort: &str| {
        let names = found.iter().map(KeySchemaElement::attribute_name);
        names.eq([partition, sort])
    };
    if !has_keys(table.key_schema(), PARTITION, SORT) {
        return Err(unfit(address, "its keys are not those of Semel's tables"));
    }
    for index in indexes() {
        let found = table.global_secondary_indexes().iter();
        let mut found = found.filter(|found| found.index_name() == Some(index.name));
        let Some(found) = found.next() else {
            return Err(unfit(address, &format!("it has no index {}", index.name)));
        };
        if !has_keys(found.key_schema(), index.partition.0, index.sort.0) {
            let reason = format!("the keys of its index {} are others", index.name);
            return Err(unfit(address, &reason));
        }
    }
    let is_strong = table.multi_region_consistency() == Some(&MultiRegionConsistency::Strong);
    let is_old = table.global_table_version() == Some(OLD_GLOBAL_TABLE);
    if is_old || (!table.replicas().is_empty() && !is_strong) {
        let reason = "it is a global table in which the last writer wins, so a key could execute \
                      once in each region. Use multi-region strong consistency, or one region";
        return Err(unfit(address, reason));
    }
    Ok(())
}

/// Refuses a table from which DynamoDB deletes by itself: it could be the only memory of a charge.
async fn check_time_to_live(client: &Client, address: &Address) -> Result<(), Error> {
    let described = client
        .describe_time_to_live()
        .table_name(&*address.table)
        .send();
    let status = match described.await {
        Ok(answer) => answer
            .time_to_live_description
            .and_then(|ttl| ttl.time_to_live_status),
        Err(error) if error.code() == Some(UNKNOWN_OPERATION) => None,
        Err(error) => {
            let reason = format!(
                "whether its Time to Live is off is not known: {}",
                chain(&error)
            );
            return Err(connect(address, reason));
        }
    };
    match status {
        Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling) => {
            let reason = "its Time to Live is enabled, which deletes unfinished records. Disable \
                          it: the worker removes what is over";
            Err(unfit(address, reason))
        }
        Some(_) | None => Ok(()),
    }
}

fn connect(address: &Address, reason: String) -> Error {
    Error::Connect {
        table: address.table.clone(),
        reason: reason.into(),
    }
}

fn unfit(address: &Address, reason: &str) -> Error {
    Error::Unfit {
        table: address.table.clone(),
        reason: reason.into(),
    }
}

impl Address {
    /// The address as it is written. It holds no credential.
    pub(crate) fn url(&self) -> String {
        let mut url = format!("dynamodb://{}", self.table);
        let parameters = [("region", &self.region), ("endpoint", &self.endpoint)];
        let given = parameters
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.as_deref()?)));
        for (place, (name, value)) in given.enumerate() {
            let separator = if place == 0 { '?' } else { '&' };
            let _ = write!(url, "{separator}{name}={value}");
        }
        url
    }
}
