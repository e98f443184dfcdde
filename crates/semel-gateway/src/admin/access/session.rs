//! Login sessions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::Timestamp;

use super::secret::{Hash, Secret, hash};
use super::{Role, Session};

/// The maximum number of sessions of one role. A script that logs in for every request must not
/// fill the memory, and one of a viewer must not end the sessions of operators.
pub(super) const MAX_SESSIONS: usize = 1000;

/// The idle timeout: an unattended screen is open to anyone.
pub(super) const MAX_IDLE: Duration = Duration::from_mins(30);

/// The absolute timeout: a working day.
pub(super) const MAX_AGE: Duration = Duration::from_hours(12);

/// All sessions. In memory only: a restart, which is how a token is changed, ends them.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<Hash, Entry>>);

struct Entry {
    info: SessionInfo,
    seen: Timestamp,
}

/// Without their content: the CSRF tokens are secret.
impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sessions")
    }
}

/// What a session cookie stands for.
#[derive(Clone)]
pub(super) struct SessionInfo {
    pub(super) role: Role,
    pub(super) name: Option<Arc<str>>,
    pub(super) csrf: Arc<str>,
    pub(super) session: Session,
}

impl Entry {
    fn has_ended(&self, now: Timestamp) -> bool {
        now >= self.info.session.until || now >= self.seen.saturating_add(MAX_IDLE)
    }
}

impl Sessions {
    /// Starts a session under a new random id, which the cookie carries.
    pub(super) fn begin(
        &self,
        id: &Secret,
        csrf: &Secret,
        role: Role,
        name: Option<&str>,
        now: Timestamp,
    ) {
        let mut sessions = self.lock();
        if count(&sessions, role) >= MAX_SESSIONS {
            sessions.retain(|_, entry| !entry.has_ended(now));
        }
        while count(&sessions, role) >= MAX_SESSIONS {
            let same_role = sessions.iter().filter(|(_, entry)| entry.info.role == role);
            let longest_idle = same_role.min_by_key(|(_, entry)| entry.seen);
            let Some(id) = longest_idle.map(|(id, _)| *id) else {
                break;
            };
            sessions.remove(&id);
        }
        let session = Session {
            until: now.saturating_add(MAX_AGE),
        };
        let info = SessionInfo {
            role,
            name: name.map(Arc::from),
            csrf: csrf.text().into(),
            session,
        };
        sessions.insert(hash(id.text()), Entry { info, seen: now });
    }

    /// Finds a session by the hash of its id, so that timing reveals nothing about other ids. `seen`
    /// renews the idle timeout.
    pub(super) fn find(&self, id: &str, now: Timestamp, seen: bool) -> Option<SessionInfo> {
        let id = hash(id);
        let mut sessions = self.lock();
        let entry = sessions.get_mut(&id)?;
        if entry.has_ended(now) {
            sessions.remove(&id);
            return None;
        }
        if seen {
            entry.seen = entry.seen.max(now);
        }
        Some(entry.info.clone())
    }

    /// Whether a session has not ended. This does not renew its idle timeout.
    pub(super) fn is_live(&self, id: &Hash, now: Timestamp) -> bool {
        self.lock()
            .get(id)
            .is_some_and(|entry| !entry.has_ended(now))
    }

    pub(super) fn end(&self, id: &str) {
        self.lock().remove(&hash(id));
    }

    /// Ignores poisoning: no update under the lock can be left half done.
    fn lock(&self) -> MutexGuard<'_, HashMap<Hash, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn count(sessions: &HashMap<Hash, Entry>, role: Role) -> usize {
    let entries = sessions.values();
    entries.filter(|entry| entry.info.role == role).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(0).saturating_add(Duration::from_secs(seconds))
    }

    fn begin(sessions: &Sessions, now: Timestamp) -> Secret {
        let (id, csrf) = (Secret::random().unwrap(), Secret::random().unwrap());
        sessions.begin(&id, &csrf, Role::Viewer, None, now);
        id
    }

    #[test]
    fn the_longest_idle_session_is_evicted_at_the_limit() {
        let sessions = Sessions::default();
        let first = begin(&sessions, at(0));
        let second = begin(&sessions, at(1));
        for _ in 2..MAX_SESSIONS {
            begin(&sessions, at(2));
        }
        assert!(sessions.find(first.text(), at(3), true).is_some());
        let last = begin(&sessions, at(4));
        assert_eq!(sessions.lock().len(), MAX_SESSIONS);
        assert!(sessions.find(second.text(), at(4), true).is_none());
        assert!(sessions.find(first.text(), at(4), true).is_some());
        assert!(sessions.find(last.text(), at(4), true).is_some());
    }

    #[test]
    fn sessions_of_viewers_do_not_evict_those_of_operators() {
        let sessions = Sessions::default();
        let (operator, csrf) = (Secret::random().unwrap(), Secret::random().unwrap());
        sessions.begin(&operator, &csrf, Role::Operator, None, at(0));
        for _ in 0..2 * MAX_SESSIONS {
            begin(&sessions, at(1));
        }
        assert!(sessions.find(operator.text(), at(2), true).is_some());
    }

    #[test]
    fn ended_sessions_are_evicted_first() {
        let sessions = Sessions::default();
        for _ in 0..MAX_SESSIONS {
            begin(&sessions, at(0));
        }
        begin(&sessions, at(MAX_IDLE.as_secs()));
        assert_eq!(sessions.lock().len(), 1);
    }

    #[test]
    fn neither_use_nor_a_clock_that_goes_back_extends_the_absolute_timeout() {
        let sessions = Sessions::default();
        let id = begin(&sessions, at(0));
        let mut now = 0;
        while now < MAX_AGE.as_secs() {
            assert!(sessions.find(id.text(), at(now), true).is_some(), "{now}");
            now += MAX_IDLE.as_secs() - 1;
        }
        assert!(
            sessions
                .find(id.text(), at(MAX_AGE.as_secs()), true)
                .is_none()
        );
        assert!(sessions.find(id.text(), at(0), true).is_none(), "removed");
    }
}
