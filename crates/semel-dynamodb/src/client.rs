//! The SDK's client, without its retries.

use std::sync::Arc;
use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_credential_types::Credentials;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_dynamodb::config::{
    ConfigBag, Intercept, Region, RuntimeComponents, SharedInterceptor,
};
use aws_sdk_dynamodb::error::BoxError;

use crate::address::Address;
use crate::call::SENT;
use crate::skew::Skew;

/// How long one try may take. DynamoDB answers within tens of milliseconds, or not at all.
const TRY_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) async fn connect(
    address: &Address,
    credentials: Option<Credentials>,
    interceptors: impl IntoIterator<Item = SharedInterceptor>,
) -> Client {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .operation_attempt_timeout(TRY_TIMEOUT)
        .build();
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts);
    if let Some(region) = &address.region {
        loader = loader.region(Region::new(region.to_string()));
    }
    if let Some(endpoint) = &address.endpoint {
        loader = loader.endpoint_url(&**endpoint);
    }
    if let Some(credentials) = credentials {
        loader = loader.credentials_provider(credentials);
    }
    let mut config = aws_sdk_dynamodb::config::Builder::from(&loader.load().await);
    for interceptor in interceptors {
        config.push_interceptor(interceptor);
    }
    Client::from_conf(config.build())
}

/// Has the clock compared with that of DynamoDB at every answer.
pub(crate) fn read_date(skew: &Arc<Skew>) -> SharedInterceptor {
    SharedInterceptor::new(ReadDate(Arc::clone(skew)))
}

/// Compares the `Date` of every answer with this machine's clock.
#[derive(Debug)]
struct ReadDate(Arc<Skew>);

impl Intercept for ReadDate {
    fn name(&self) -> &'static str {
        "ReadDate"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let now = self.0.now();
        // Requests at start are not sent by `Limit`: without their time, they were sent now.
        let sent = SENT.try_with(|sent| *sent).unwrap_or(now);
        if let Some(date) = context.response().headers().get("date") {
            self.0.note(date, sent, now);
        }
        Ok(())
    }
}
