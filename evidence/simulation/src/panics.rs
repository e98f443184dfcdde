//! Panics of the product. The simulation's own are unwound without the hook being called, so
//! whatever reaches it was not put in.

use std::cell::RefCell;
use std::panic;
use std::sync::Once;

thread_local! {
    /// What was heard in the world that this thread runs; `None` outside of one.
    static HEARD: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Runs a world on this thread, and tells what panicked in it. Where somebody caught that, a task
/// or a layer, nothing else would tell.
pub(crate) fn watch<T>(live: impl FnOnce() -> T) -> (T, Vec<String>) {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let heard = HEARD.with_borrow_mut(|heard| match heard {
                Some(heard) => {
                    heard.push(info.to_string());
                    true
                }
                None => false,
            });
            if !heard {
                before(info);
            }
        }));
    });
    HEARD.set(Some(Vec::new()));
    let lived = live();
    (lived, HEARD.take().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::panic, reason = "it is what is tested")]
    fn a_panic_is_heard_and_one_that_was_put_in_is_not() {
        let (ended, heard) = watch(|| {
            let put_in = panic::catch_unwind(|| panic::resume_unwind(Box::new("put in")));
            put_in.is_err() && panic::catch_unwind(|| panic!("a bug")).is_err()
        });
        assert!(ended);
        assert_eq!(heard.len(), 1);
        assert!(heard[0].contains("a bug"), "{heard:?}");
        assert_eq!(watch(|| ()).1, Vec::<String>::new());
    }
}
