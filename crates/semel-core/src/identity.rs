//! Who asked for what, under which key.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::Key;

/// Longest tenant name, in bytes. A tenant is an account id or a hash of a credential.
pub const MAX_TENANT_BYTES: usize = 255;

/// Longest operation name, in bytes. An unnamed route is called by its method and exact
/// path, and servers commonly accept request lines of 8 KiB.
pub const MAX_OPERATION_BYTES: usize = 8 * 1024;

/// What identifies an operation: the tenant, the logical command, and the client's key.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    tenant: Box<str>,
    operation: Box<str>,
    key: Key,
    scope: KeyScope,
}

/// How far a key reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeyScope {
    /// One key names one operation of one tenant; on another endpoint it is another key.
    #[default]
    Operation,
    /// One key names one request of one tenant, whatever the endpoint. The operation is
    /// part of the fingerprint, so reuse on another endpoint is caught as misuse.
    Tenant,
}

impl KeyScope {
    /// The word that is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Operation => "operation",
            Self::Tenant => "tenant",
        }
    }

    /// The scope of a stored word.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Operation, Self::Tenant]
            .into_iter()
            .find(|scope| scope.as_str() == word)
    }
}

/// Sixteen bytes that stand for an [`Identity`] in an index.
///
/// Short enough to keep the index small, and *not* trusted: a store keeps the full
/// identity beside it and compares that in every row it reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdentityHash(pub [u8; 16]);

/// Why an identity was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tenant must have a name, even where there is only one.
    #[error("the tenant is empty; name the one tenant if there is only one")]
    EmptyTenant,
    /// See [`MAX_TENANT_BYTES`].
    #[error("the tenant is {0} bytes long; at most {MAX_TENANT_BYTES} are kept, so hash it first")]
    LongTenant(usize),
    /// PostgreSQL cannot store it.
    #[error("the tenant contains a NUL character, which cannot be stored")]
    NulInTenant,
    /// An operation must have a name.
    #[error("the operation is empty; name the command, for example create_payment")]
    EmptyOperation,
    /// See [`MAX_OPERATION_BYTES`].
    #[error("the operation is {0} bytes long; at most {MAX_OPERATION_BYTES} are kept")]
    LongOperation(usize),
}

impl Identity {
    /// An identity in the default scope.
    ///
    /// # Errors
    /// Refuses an empty or overlong tenant or operation: a name cut short would be another
    /// operation's name.
    pub fn new(
        tenant: impl Into<Box<str>>,
        operation: impl Into<Box<str>>,
        key: Key,
    ) -> Result<Self, Error> {
        let (tenant, operation) = (tenant.into(), operation.into());
        match (tenant.len(), operation.len()) {
            (0, _) => Err(Error::EmptyTenant),
            (length, _) if length > MAX_TENANT_BYTES => Err(Error::LongTenant(length)),
            _ if tenant.contains('\0') => Err(Error::NulInTenant),
            (_, 0) => Err(Error::EmptyOperation),
            (_, length) if length > MAX_OPERATION_BYTES => Err(Error::LongOperation(length)),
            (_, _) => Ok(Self {
                tenant,
                operation,
                key,
                scope: KeyScope::default(),
            }),
        }
    }

    /// The same identity in `scope`.
    pub fn scoped(self, scope: KeyScope) -> Self {
        Self { scope, ..self }
    }

    /// Who is calling, as the server knows it.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// The logical command.
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// What the client sent.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// How far the key reaches.
    pub fn scope(&self) -> KeyScope {
        self.scope
    }

    /// Whether two identities name the same record: by all three parts, or by tenant and
    /// key where the key belongs to the tenant.
    pub fn names_same_record(&self, other: &Self) -> bool {
        self.scope == other.scope
            && self.tenant == other.tenant
            && self.key == other.key
            && match self.scope {
                KeyScope::Operation => self.operation == other.operation,
                KeyScope::Tenant => true,
            }
    }

    /// The index entry of this identity.
    pub fn hash(&self) -> IdentityHash {
        let (scope, operation) = match self.scope {
            KeyScope::Operation => (0u8, &*self.operation),
            KeyScope::Tenant => (1u8, ""),
        };
        let mut hasher = Sha256::new();
        hasher.update([scope]);
        for part in [&*self.tenant, operation, self.key.as_str()] {
            // Framed, or ("ab", "c") and ("a", "bc") would meet.
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
        let digest = hasher.finalize();
        let mut short = [0; 16];
        short.copy_from_slice(&digest[..16]);
        IdentityHash(short)
    }
}

/// Keys stay out of logs, so the key shows as its short hash.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{:?}", self.tenant, self.operation, self.key)
    }
}

impl fmt::Debug for IdentityHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(tenant: &str, operation: &str, key: &str) -> Identity {
        Identity::new(tenant, operation, Key::new(key).unwrap()).unwrap()
    }

    #[test]
    fn every_part_and_the_scope_change_the_hash() {
        let base = identity("t", "op", "k");
        let others = [
            identity("T", "op", "k"),
            identity("t", "Op", "k"),
            identity("t", "op", "K"),
            identity("to", "p", "k"),
            identity("t", "opk", "k"),
            base.clone().scoped(KeyScope::Tenant),
        ];
        for other in others {
            assert_ne!(base.hash(), other.hash(), "{other:?}");
            assert!(!base.names_same_record(&other), "{other:?}");
        }
    }

    #[test]
    fn a_tenant_scoped_key_is_one_record_on_every_endpoint() {
        let [a, b] = ["pay", "refund"].map(|op| identity("t", op, "k").scoped(KeyScope::Tenant));
        assert_eq!(a.hash(), b.hash());
        assert!(a.names_same_record(&b));
        assert_ne!(
            a.hash(),
            identity("u", "pay", "k").scoped(KeyScope::Tenant).hash()
        );
    }

    #[test]
    fn names_are_bounded_and_not_empty() {
        let key = || Key::new("k").unwrap();
        assert_eq!(Identity::new("", "op", key()), Err(Error::EmptyTenant));
        assert_eq!(Identity::new("t", "", key()), Err(Error::EmptyOperation));
        assert_eq!(Identity::new("t\0t", "op", key()), Err(Error::NulInTenant));
        let tenant = "t".repeat(MAX_TENANT_BYTES + 1);
        assert_eq!(
            Identity::new(tenant.as_str(), "op", key()),
            Err(Error::LongTenant(256))
        );
        assert!(Identity::new(&tenant[1..], "op", key()).is_ok());
        let operation = "o".repeat(MAX_OPERATION_BYTES + 1);
        assert_eq!(
            Identity::new("t", operation, key()),
            Err(Error::LongOperation(8193))
        );
    }

    #[test]
    fn the_key_does_not_show_in_debug_output() {
        assert!(!format!("{:?}", identity("t", "op", "secret-key")).contains("secret"));
    }
}
