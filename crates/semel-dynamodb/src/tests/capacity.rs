//! What operations cost, as the server counts the units of this store's own requests.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::config::interceptors::{
    AfterDeserializationInterceptorContextRef, BeforeSerializationInterceptorContextMut,
};
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents, SharedInterceptor};
use aws_sdk_dynamodb::error::BoxError;
use aws_sdk_dynamodb::operation::get_item::{GetItemInput, GetItemOutput};
use aws_sdk_dynamodb::operation::put_item::{PutItemInput, PutItemOutput};
use aws_sdk_dynamodb::types::{ConsumedCapacity, ReturnConsumedCapacity};
use semel_core::transition::{Completion, Decision};
use semel_core::{Resource, Store as _};

use super::faults::request;
use super::server::{Server, options};

/// The units of the requests since they were last taken.
#[derive(Clone, Debug, Default)]
struct Meter {
    /// Requests, and those of them whose units are known.
    requests: Arc<AtomicUsize>,
    metered: Arc<Mutex<Vec<f64>>>,
}

impl Meter {
    /// The units of all requests since the last call, each of which must have been metered.
    fn take(&self) -> String {
        let metered = std::mem::take(&mut *self.metered.lock().unwrap());
        let requests = self.requests.swap(0, Ordering::SeqCst);
        assert_eq!(requests, metered.len(), "a request was not metered");
        format!("{:.1}", metered.into_iter().sum::<f64>())
    }

    fn add(&self, consumed: Option<&ConsumedCapacity>) {
        let units = consumed.and_then(ConsumedCapacity::capacity_units);
        self.metered.lock().unwrap().extend(units);
    }
}

impl Intercept for Meter {
    fn name(&self) -> &'static str {
        "Meter"
    }

    fn modify_before_serialization(
        &self,
        context: &mut BeforeSerializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let input = context.input_mut();
        if let Some(put) = input.downcast_mut::<PutItemInput>() {
            put.return_consumed_capacity = Some(ReturnConsumedCapacity::Total);
        } else if let Some(read) = input.downcast_mut::<GetItemInput>() {
            read.return_consumed_capacity = Some(ReturnConsumedCapacity::Total);
            let key = read.key.as_ref().and_then(|key| key.get("p"));
            // The number of erasures is read in the background.
            if key
                .and_then(|key| key.as_s().ok())
                .is_some_and(|key| key.starts_with('#'))
            {
                return Ok(());
            }
        }
        self.requests.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let Ok(output) = context.output_or_error() else {
            return Ok(());
        };
        if let Some(put) = output.downcast_ref::<PutItemOutput>() {
            self.add(put.consumed_capacity());
        } else if let Some(read) = output.downcast_ref::<GetItemOutput>() {
            // That of the erasures is not of a record.
            if read.item().is_some_and(|item| item.contains_key("st")) {
                self.add(read.consumed_capacity());
            }
        }
        Ok(())
    }
}

#[tokio::test]
async fn capacity_units_are_as_documented() {
    let url = Server::ExtendDb.new_table().await;
    let meter = Meter::default();
    let mut options = options(&url);
    options.interceptor = Some(SharedInterceptor::new(meter.clone()));
    let store = options.open().await.unwrap();
    // The checks of the table.
    meter.requests.store(0, Ordering::SeqCst);
    for (name, resource, documented) in [("plain", false, "3.0"), ("resource", true, "4.0")] {
        let Decision::Execute(grant) = store.reserve(request(name)).await.unwrap() else {
            panic!("the first request executes");
        };
        let reserved = meter.take();
        let mut completion = Completion::new(201, vec![], vec![b'x'; 300]);
        completion.resource = resource.then(|| Resource {
            kind: "payment".into(),
            id: "pay_789".into(),
        });
        store.complete(grant.fence, completion).await.unwrap();
        let completed = meter.take();
        println!("{name}: {reserved} write units to reserve, {completed} to complete");
        assert_eq!((&*reserved, &*completed), ("3.0", documented), "{name}");

        // This process has met the key, so it reads it first.
        let again = store.reserve(request(name)).await.unwrap();
        assert!(matches!(again, Decision::Replay(_)), "{again:?}");
        let read = meter.take();
        println!("{name}: {read} read units to replay");
        assert_eq!(read, "1.0");
    }
}
