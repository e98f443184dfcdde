//! Records panics of the product. Injected panics are unwound without calling the hook, so every
//! panic that reaches the hook is a bug.

use std::cell::RefCell;
use std::panic;
use std::sync::Once;

thread_local! {
    /// The panics of the scenario that this thread runs; `None` outside of one.
    static RECORDED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Runs a scenario on this thread, and returns its panics, also those that a task or a layer
/// catches.
pub(crate) fn watch<T>(scenario: impl FnOnce() -> T) -> (T, Vec<String>) {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let recorded = RECORDED.with_borrow_mut(|recorded| match recorded {
                Some(recorded) => {
                    recorded.push(info.to_string());
                    true
                }
                None => false,
            });
            if !recorded {
                before(info);
            }
        }));
    });
    RECORDED.set(Some(Vec::new()));
    let result = scenario();
    (result, RECORDED.take().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::panic, reason = "it is what is tested")]
    fn a_panic_is_recorded_and_an_injected_one_is_not() {
        let (ended, recorded) = watch(|| {
            let injected = panic::catch_unwind(|| panic::resume_unwind(Box::new("injected")));
            injected.is_err() && panic::catch_unwind(|| panic!("a bug")).is_err()
        });
        assert!(ended);
        assert_eq!(recorded.len(), 1);
        assert!(recorded[0].contains("a bug"), "{recorded:?}");
        assert_eq!(watch(|| ()).1, Vec::<String>::new());
    }
}
