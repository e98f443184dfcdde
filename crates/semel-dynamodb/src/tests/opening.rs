//! Which tables are refused at start.

use std::sync::Arc;

use aws_sdk_dynamodb::types::{
    MultiRegionConsistency, ReplicaDescription, TimeToLiveSpecification,
};
use semel_core::Store as _;
use semel_testkit::ManualClock;
use semel_testkit::dynamodb_proxy::Proxy;

use super::server::{Server, options};
use crate::Error;
use crate::address::Address;
use crate::schema;

#[tokio::test]
async fn the_number_of_shards_of_a_table_never_changes() {
    let url = Server::Dynoxide.new_table().await;
    let other = url.replace("shards=2", "shards=5");
    let migrated = options(&other).migrate().await.unwrap();
    assert!(!migrated.is_created, "it exists");
    let store = options(&other).open().await.unwrap();
    assert_eq!(store.inner.shards, 2);
}

#[tokio::test]
async fn a_table_with_time_to_live_is_refused() {
    let url = Server::ExtendDb.new_table().await;
    let clock = Arc::new(ManualClock::default());
    let store = options(&url).clock(clock).open().await.unwrap();
    let enabled = TimeToLiveSpecification::builder()
        .enabled(true)
        .attribute_name("t")
        .build()
        .unwrap();
    let client = &store.inner.client;
    let update = client.update_time_to_live().table_name(&store.inner.table);
    update
        .time_to_live_specification(enabled)
        .send()
        .await
        .unwrap();
    let error = options(&url).open().await.unwrap_err();
    assert!(error.to_string().contains("Time to Live"), "{error}");
}

const DENIED: &str = "{\"__type\":\"com.amazon.coral.service#AccessDeniedException\"}";

/// The address of a table behind a proxy.
async fn through_proxy(url: &str, server: Server) -> (String, Proxy) {
    let proxy = Proxy::start(&server.endpoint()).await;
    (url.replace(&server.endpoint(), &proxy.endpoint()), proxy)
}

#[tokio::test]
async fn a_table_whose_time_to_live_may_not_be_read_is_refused() {
    let url = Server::Dynoxide.new_table().await;
    let (url, proxy) = through_proxy(&url, Server::Dynoxide).await;
    proxy.answer("DescribeTimeToLive", 400, DENIED, 1);
    let error = options(&url).open().await.unwrap_err();
    assert!(error.to_string().contains("Time to Live"), "{error}");
    options(&url).open().await.unwrap();
}

/// Backups of a new table begin after a while. Then they are enabled, which is read back.
#[tokio::test]
async fn migrate_waits_until_recovery_is_on_and_fails_where_it_is_not() {
    const NOT_YET: &str =
        "{\"__type\":\"com.amazonaws.dynamodb.v20120810#ContinuousBackupsUnavailableException\"}";
    let state = |state: &str| {
        format!(
            "{{\"ContinuousBackupsDescription\":{{\"ContinuousBackupsStatus\":\"ENABLED\",\
             \"PointInTimeRecoveryDescription\":{{\"PointInTimeRecoveryStatus\":\"{state}\"}}}}}}"
        )
    };
    let url = Server::Dynoxide.unused_table();
    let (url, proxy) = through_proxy(&url, Server::Dynoxide).await;
    proxy.answer("DescribeContinuousBackups", 200, state("DISABLED"), 3);
    proxy.answer("UpdateContinuousBackups", 400, NOT_YET, 2);
    proxy.answer("UpdateContinuousBackups", 200, state("ENABLED"), 1);
    proxy.answer("DescribeContinuousBackups", 200, state("ENABLED"), 1);
    let migrated = options(&url).migrate().await.unwrap();
    assert!(migrated.is_created && migrated.has_recovery);

    // Of a table that exists as well.
    proxy.answer("DescribeContinuousBackups", 200, state("DISABLED"), 1);
    proxy.answer("UpdateContinuousBackups", 400, DENIED, 1);
    let error = options(&url).migrate().await.unwrap_err();
    assert!(matches!(error, Error::NoRecovery { .. }), "{error}");

    // The server itself does not know it.
    let migrated = options(&url).migrate().await.unwrap();
    assert!(!migrated.is_created && !migrated.has_recovery);
}

#[tokio::test]
async fn a_table_of_a_newer_layout_is_refused() {
    let url = Server::Dynoxide.new_table().await;
    let store = options(&url).open().await.unwrap();
    let mut settings = crate::attributes::key(crate::keys::SETTINGS, crate::keys::HEAD);
    settings.insert("layout".to_owned(), crate::attributes::number(2));
    settings.insert("shards".to_owned(), crate::attributes::number(3));
    store.inner.write_item(settings).await.unwrap();
    let error = options(&url).open().await.unwrap_err();
    assert!(
        matches!(error, Error::NewerLayout { found: 2, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn replicas_in_which_the_last_writer_wins_are_refused() {
    let url = Server::Dynoxide.new_table().await;
    let address: Address = url.parse().unwrap();
    let store = options(&url).open().await.unwrap();
    let client = &store.inner.client;
    let described = client.describe_table().table_name(&store.inner.table);
    let found = described.send().await.unwrap().table.unwrap();
    schema::check(&address, &found).unwrap();

    let replica = ReplicaDescription::builder()
        .region_name("us-west-2")
        .build();
    let replicated = |consistency: Option<MultiRegionConsistency>| {
        let mut changed = found.clone();
        changed.replicas = Some(vec![replica.clone()]);
        changed.multi_region_consistency = consistency;
        changed
    };
    for consistency in [None, Some(MultiRegionConsistency::Eventual)] {
        let refused = schema::check(&address, &replicated(consistency)).unwrap_err();
        assert!(
            refused.to_string().contains("last writer wins"),
            "{refused}"
        );
    }
    let strong = replicated(Some(MultiRegionConsistency::Strong));
    schema::check(&address, &strong).unwrap();
    let mut old = found.clone();
    old.global_table_version = Some("2017.11.29".into());
    let refused = schema::check(&address, &old).unwrap_err();
    assert!(
        refused.to_string().contains("last writer wins"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_table_with_other_keys_is_refused() {
    let url = Server::Dynoxide.new_table().await;
    let address: Address = url.parse().unwrap();
    let store = options(&url).open().await.unwrap();
    let client = &store.inner.client;
    let described = client.describe_table().table_name(&store.inner.table);
    let found = described.send().await.unwrap().table.unwrap();
    let mut other = found.clone();
    other.key_schema.as_mut().unwrap().reverse();
    let refused = schema::check(&address, &other).unwrap_err();
    assert!(refused.to_string().contains("its keys"), "{refused}");
    let mut other = found;
    let indexes = other.global_secondary_indexes.as_mut().unwrap();
    let keys = indexes[0].key_schema.clone();
    indexes[1].key_schema = keys;
    let refused = schema::check(&address, &other).unwrap_err();
    assert!(refused.to_string().contains("its index"), "{refused}");
}

/// What is not supported says so.
#[tokio::test]
async fn the_outbox_is_unsupported() {
    let url = Server::Dynoxide.new_table().await;
    let store = options(&url).open().await.unwrap();
    let error = store.outbox_backlog().await.unwrap_err();
    assert!(
        matches!(error, semel_core::Error::Unsupported { .. }),
        "{error}"
    );
}
