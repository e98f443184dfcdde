//! From one list to the next, on one store.

use semel_core::Memory;
use semel_core::contract::Contracts;
use tokio::time::timeout;

use super::super::tests::{SECRET, regions};
use super::*;

/// A process with a list of this version; `None`: without a list.
fn process(store: &Memory, version: Option<u32>) -> (Option<Arc<Regions>>, Layer<Memory>) {
    let list = version.map(|version| Arc::new(regions("eu", &["eu", "us"], version, &[SECRET])));
    let layer = Layer::new(store.clone()).tenant(|_| Some("acme".to_owned()));
    let layer = match &list {
        Some(list) => layer.homes(Arc::clone(list) as _),
        None => layer,
    };
    (list, layer)
}

async fn start(store: &Memory, version: Option<u32>) -> Result<Duration, Error> {
    let (list, layer) = process(store, version);
    let began = Instant::now();
    adopt(list.as_deref(), &layer).await?;
    Ok(began.elapsed())
}

async fn contracts(store: &Memory) -> Contracts {
    store.contracts().await.unwrap().contracts
}

async fn state(store: &Memory) -> (u32, AgreementState) {
    let agreement = contracts(store).await.regions.unwrap();
    (agreement.version, agreement.state)
}

async fn confirm(store: &Memory) {
    let confirmed = change(store, |contracts| {
        contracts.regions.as_mut().unwrap().state = AgreementState::Confirmed;
        Ok(())
    });
    confirmed.await.unwrap();
}

async fn answers(store: &Memory, version: u32) -> bool {
    let list = process(store, Some(version)).0.unwrap();
    answer(&list, store).await == StatusCode::NO_CONTENT
}

#[tokio::test(start_paused = true)]
async fn the_first_list_of_a_new_store_counts_at_once() {
    let store = Memory::default();
    assert_eq!(start(&store, Some(7)).await.unwrap(), Duration::ZERO);
    assert_eq!(state(&store).await, (7, AgreementState::Unconfirmed));
    confirm(&store).await;
    // Another process, or the same after a restart.
    assert_eq!(start(&store, Some(7)).await.unwrap(), Duration::ZERO);
    assert_eq!(state(&store).await, (7, AgreementState::Confirmed));
}

/// Every process waits that starts before one has waited, or the first could be passed over.
#[tokio::test(start_paused = true)]
async fn another_list_is_confirmed_to_others_only_after_a_whole_wait() {
    let store = Memory::default();
    start(&store, Some(7)).await.unwrap();
    confirm(&store).await;
    // The first process with the new list is killed while it waits.
    let killed = timeout(TAKE_OVER / 2, start(&store, Some(8))).await;
    assert!(killed.is_err());
    assert_eq!(state(&store).await, (8, AgreementState::Replacing));
    assert!(!answers(&store, 8).await && !answers(&store, 7).await);
    assert_eq!(start(&store, Some(8)).await.unwrap(), TAKE_OVER);
    assert_eq!(state(&store).await, (8, AgreementState::Unconfirmed));
    assert!(answers(&store, 8).await && !answers(&store, 7).await);
}

#[tokio::test(start_paused = true)]
async fn a_list_after_none_waits_as_well() {
    let store = Memory::default();
    start(&store, None).await.unwrap();
    assert_eq!(start(&store, Some(1)).await.unwrap(), TAKE_OVER);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_is_overtaken_while_it_waits_does_not_start() {
    let store = Memory::default();
    start(&store, Some(7)).await.unwrap();
    let later = async {
        // sleeps because the paused clock then moves by itself.
        sleep(Duration::from_secs(1)).await;
        start(&store, Some(9)).await
    };
    let (overtaken, later) = tokio::join!(start(&store, Some(8)), later);
    assert!(overtaken.unwrap_err().to_string().contains("version 9"));
    later.unwrap();
    assert_eq!(state(&store).await, (9, AgreementState::Unconfirmed));
}

/// Otherwise earlier confirmations would count again.
#[tokio::test(start_paused = true)]
async fn an_earlier_list_never_comes_back() {
    let store = Memory::default();
    start(&store, Some(8)).await.unwrap();
    confirm(&store).await;
    let changed = regions("eu", &["ap", "eu", "us"], 8, &[SECRET]);
    for refused in [&changed, &*process(&store, Some(7)).0.unwrap()] {
        let problem = check(Some(refused), &contracts(&store).await);
        assert!(
            problem
                .unwrap_err()
                .to_string()
                .contains("higher `version`")
        );
    }
    let problem = start(&store, Some(7)).await.unwrap_err().to_string();
    assert!(problem.contains("use version 8"), "{problem}");
    assert_eq!(state(&store).await, (8, AgreementState::Confirmed));
}

#[tokio::test(start_paused = true)]
async fn a_process_without_a_list_does_not_start_until_the_store_has_left_the_regions() {
    let store = Memory::default();
    start(&store, Some(7)).await.unwrap();
    let problem = start(&store, None).await.unwrap_err().to_string();
    assert!(problem.contains("semel contract accept"), "{problem}");
    let (_, layer) = process(&store, None);
    layer.accept_contracts("ada", "all stopped").await.unwrap();
    leave(&store).await.unwrap();
    start(&store, None).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_running_process_stops_where_its_list_is_gone_or_replaced() {
    let store = Memory::default();
    start(&store, Some(7)).await.unwrap();
    confirm(&store).await;
    let (list, _layer) = process(&store, Some(7));
    let list = list.unwrap();
    let peers = Peers::new(&list, &[]).unwrap();
    let standing = async || look(&list, &peers, &store).await.unwrap();
    assert!(matches!(standing().await, Standing::Confirmed(_)));
    leave(&store).await.unwrap();
    assert_eq!(standing().await, Standing::Superseded);
    let replaced = timeout(TAKE_OVER / 2, start(&store, Some(8))).await;
    assert!(replaced.is_err());
    assert_eq!(standing().await, Standing::Superseded);
}
