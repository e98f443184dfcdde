//! The statements, for both databases: SQLite numbers `$1`, `$2`, … in the order in which they are
//! first seen, so they are first seen in order.

macro_rules! query {
    ($file:literal) => {
        include_str!(concat!("../../../queries/shop/", $file, ".sql"))
    };
}

/// The tables, each of them unless it is there.
pub(super) const CREATE: [&str; 5] = [
    query!("create_payments"),
    query!("create_payments_reference"),
    query!("create_refunds"),
    query!("create_ledger"),
    query!("create_receipts"),
];

pub(super) const OPEN_PAYMENT: &str = query!("open_payment");
pub(super) const FIND_BY_REFERENCE: &str = query!("find_by_reference");
pub(super) const SETTLE_PAYMENT: &str = query!("settle_payment");
pub(super) const FIND_PAYMENT: &str = query!("find_payment");
pub(super) const TAKE_BACK: &str = query!("take_back");
pub(super) const GIVE_BACK: &str = query!("give_back");
pub(super) const OPEN_REFUND: &str = query!("open_refund");
pub(super) const SETTLE_REFUND: &str = query!("settle_refund");
pub(super) const ENTER: &str = query!("enter");
pub(super) const WRITE_RECEIPT: &str = query!("write_receipt");
pub(super) const SUMMARISE: &str = query!("summarise");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_first_seen_in_order() {
        for query in [
            OPEN_PAYMENT,
            FIND_BY_REFERENCE,
            SETTLE_PAYMENT,
            FIND_PAYMENT,
            TAKE_BACK,
            GIVE_BACK,
            OPEN_REFUND,
            SETTLE_REFUND,
            ENTER,
            WRITE_RECEIPT,
        ] {
            let mut seen = Vec::new();
            for after in query.split('$').skip(1) {
                let number: usize = after[..1].parse().unwrap();
                if !seen.contains(&number) {
                    seen.push(number);
                }
            }
            assert!(!seen.is_empty(), "{query}");
            assert!(seen.is_sorted() && seen[0] == 1, "{query}");
        }
    }
}
