//! The cases of the outbox, run on a harness that can publish.

use std::future::Future;
use std::sync::Arc;

use super::{Outgoing, Publisher};
use crate::conformance::{self, Case, Failure};

/// Runs one case on a fresh store: what [`outbox_suite!`](crate::outbox_suite) makes a test of.
pub fn check<H, F, C>(harness: H, case: C)
where
    H: Publisher,
    F: Future<Output = ()> + Send,
    C: FnOnce(Outgoing<H>) -> F,
{
    conformance::run(async move {
        case(Outgoing::fresh(Arc::new(harness)).await).await;
    });
}

/// Runs every case and returns the failures. A panic is a failure, and so is a timeout.
///
/// # Cancellation
/// Dropping this future aborts the cases that run.
pub async fn failures<H: Publisher>(harness: H) -> Vec<Failure> {
    conformance::all_failures(harness, cases()).await
}

/// Every case there is.
pub fn cases<H: Publisher>() -> Vec<Case<H>> {
    macro_rules! collect {
        (() $($case:ident,)*) => {
            vec![$(Case {
                name: concat!("outbox::", stringify!($case)),
                run: Box::new(|harness: Arc<H>| Box::pin(async move {
                    super::$case(Outgoing::fresh(harness).await).await;
                })),
            },)*]
        };
    }
    crate::__outbox_cases!([collect]())
}

impl<H: Publisher> Outgoing<H> {
    async fn fresh(harness: Arc<H>) -> Self {
        let fixture = harness.fresh().await.at(harness.scale());
        Self { fixture, harness }
    }
}

/// Makes a test of every case of the outbox, in a module of that name.
///
/// Give it an expression that makes the [`Publisher`], as for
/// [`conformance_suite!`](crate::conformance_suite).
#[macro_export]
macro_rules! outbox_suite {
    ($harness:expr $(,)?) => {
        $crate::__outbox_cases!([$crate::__outbox_tests]($harness));
    };
}

/// Not part of the API: what [`outbox_suite!`] makes of the list.
#[doc(hidden)]
#[macro_export]
macro_rules! __outbox_tests {
    (($harness:expr) $($case:ident,)*) => {
        $crate::__outbox_module!{ [$harness] $($case,)* }
    };
}

/// Not part of the API: hands the harness into the module.
#[doc(hidden)]
#[macro_export]
macro_rules! __outbox_module {
    ([$harness:expr] $($case:ident,)*) => {
        mod outbox {
            #[allow(unused_imports, reason = "the harness may be written with a path")]
            use super::*;
            $(
                #[test]
                fn $case() {
                    $crate::conformance::outbox::check(
                        $harness,
                        $crate::conformance::outbox::$case,
                    );
                }
            )*
        }
    };
}
