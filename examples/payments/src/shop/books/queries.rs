//! The statements, for both databases. SQLite numbers `$1`, `$2`, … in the order in which they first
//! occur, so they must first occur in order.

macro_rules! query {
    ($file:literal) => {
        include_str!(concat!("../../../queries/shop/", $file, ".sql"))
    };
}

/// Creates the tables where they do not exist.
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
pub(super) const RESERVE_REFUND: &str = query!("reserve_refund");
pub(super) const RELEASE_REFUND: &str = query!("release_refund");
pub(super) const OPEN_REFUND: &str = query!("open_refund");
pub(super) const SETTLE_REFUND: &str = query!("settle_refund");
pub(super) const ADD_LEDGER_ENTRY: &str = query!("add_ledger_entry");
pub(super) const WRITE_RECEIPT: &str = query!("write_receipt");
pub(super) const SUMMARISE: &str = query!("summarise");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_first_occur_in_order() {
        for query in [
            OPEN_PAYMENT,
            FIND_BY_REFERENCE,
            SETTLE_PAYMENT,
            FIND_PAYMENT,
            RESERVE_REFUND,
            RELEASE_REFUND,
            OPEN_REFUND,
            SETTLE_REFUND,
            ADD_LEDGER_ENTRY,
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
