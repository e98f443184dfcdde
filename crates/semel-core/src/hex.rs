//! Bytes as hexadecimal digits.

use std::fmt::Write as _;

/// Two lower-case digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_byte_has_two_digits() {
        assert_eq!(super::hex(&[0, 10, 255]), "000aff");
    }
}
