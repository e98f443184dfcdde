//! The names of an operation: the one that users see, and the one in its records.

/// The name of an operation. A renamed operation keeps its first name in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationName<'a> {
    /// In metrics, logs and the console.
    pub shown: &'a str,
    /// In the identity of records.
    pub stored: &'a str,
}

impl<'a> OperationName<'a> {
    /// The name of a route, from its settings and its pattern. `None` where every path is its own
    /// operation.
    pub fn new(operation: Option<&'a str>, was: Option<&'a str>, pattern: &'a str) -> Option<Self> {
        let by_path = (!pattern.contains('{')).then_some(pattern);
        let shown = operation.or(by_path)?;
        Some(Self {
            shown,
            stored: was.unwrap_or(shown),
        })
    }

    /// Why a route with this name cannot be beside one with `other`. Two operations under one stored
    /// name would take each other's records for their own; one operation under two could not be
    /// searched or reconciled by its name.
    pub fn conflict(self, other: Self) -> Option<String> {
        let Self { shown, stored } = self;
        if (shown == other.shown) == (stored == other.stored) {
            return None;
        }
        Some(if stored == other.stored {
            format!("operation {:?} uses the name {stored:?} too", other.shown)
        } else {
            format!(
                "the records of operation {shown:?} would have two names, {stored:?} and {:?}",
                other.stored
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name<'a>(shown: &'a str, was: Option<&'a str>) -> OperationName<'a> {
        OperationName::new(Some(shown), was, "POST /payments").unwrap()
    }

    #[test]
    fn route_without_a_name_is_named_by_its_path_unless_it_has_parameters() {
        let by_path = OperationName::new(None, None, "POST /payments").unwrap();
        assert_eq!(
            (by_path.shown, by_path.stored),
            ("POST /payments", "POST /payments")
        );
        assert_eq!(OperationName::new(None, None, "POST /payments/{id}"), None);
    }

    #[test]
    fn one_stored_name_belongs_to_one_operation() {
        let by_path = OperationName::new(None, None, "POST /payments").unwrap();
        for (first, second, conflicts) in [
            (name("pay", None), name("pay", None), false),
            (
                name("pay", Some("charge")),
                name("pay", Some("charge")),
                false,
            ),
            (name("pay", None), name("refund", None), false),
            // Two operations may swap their names.
            (
                name("pay", Some("refund")),
                name("refund", Some("pay")),
                false,
            ),
            (name("pay", Some("charge")), name("charge", None), true),
            (
                name("pay", Some("charge")),
                name("debit", Some("charge")),
                true,
            ),
            (name("pay", Some("POST /payments")), by_path, true),
            (name("pay", Some("charge")), name("pay", None), true),
        ] {
            assert_eq!(
                first.conflict(second).is_some(),
                conflicts,
                "{first:?} {second:?}"
            );
            assert_eq!(
                second.conflict(first).is_some(),
                conflicts,
                "{first:?} {second:?}"
            );
        }
    }
}
