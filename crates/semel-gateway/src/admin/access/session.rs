//! Sessions: who logged in, for how long, and the secret that their forms carry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::Timestamp;

use super::secret::{Hash, Secret, hash};
use super::{Role, Session};

/// Sessions at a time. People are few; a script that logs in for every request is not to fill
/// the memory.
pub(super) const MAX_SESSIONS: usize = 1000;

/// Without a request for so long, a session is over: a screen left alone is anybody's.
pub(super) const MAX_IDLE: Duration = Duration::from_mins(30);

/// A session is over after a working day, used or not.
pub(super) const MAX_AGE: Duration = Duration::from_hours(12);

/// Everybody who is logged in. Kept in memory: a restart, which is how a token is changed, ends
/// them all.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<Hash, Entry>>);

struct Entry {
    known: Known,
    seen: Timestamp,
}

/// What is known of whoever presents the cookie.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) role: Role,
    pub(super) name: Option<Arc<str>>,
    pub(super) csrf: Arc<str>,
    pub(super) session: Session,
}

impl Entry {
    fn is_over(&self, now: Timestamp) -> bool {
        now >= self.known.session.until || now >= self.seen.saturating_add(MAX_IDLE)
    }
}

impl Sessions {
    /// Begins one; the secret is what the cookie carries. It is never one that a request chose.
    pub(super) fn begin(
        &self,
        id: &Secret,
        csrf: &Secret,
        role: Role,
        name: Option<&str>,
        now: Timestamp,
    ) {
        let mut sessions = self.lock();
        if sessions.len() >= MAX_SESSIONS {
            sessions.retain(|_, entry| !entry.is_over(now));
        }
        while sessions.len() >= MAX_SESSIONS {
            let longest_idle = sessions.iter().min_by_key(|(_, entry)| entry.seen);
            let Some(id) = longest_idle.map(|(id, _)| *id) else {
                break;
            };
            sessions.remove(&id);
        }
        let session = Session {
            until: now.saturating_add(MAX_AGE),
        };
        let known = Known {
            role,
            name: name.map(Arc::from),
            csrf: csrf.text().into(),
            session,
        };
        sessions.insert(hash(id.text()), Entry { known, seen: now });
    }

    /// Whose session it is; `seen` if it was somebody at a keyboard. By hash, so that the time a
    /// look takes tells nothing of another's.
    pub(super) fn find(&self, id: &str, now: Timestamp, seen: bool) -> Option<Known> {
        let id = hash(id);
        let mut sessions = self.lock();
        let entry = sessions.get_mut(&id)?;
        if entry.is_over(now) {
            sessions.remove(&id);
            return None;
        }
        if seen {
            entry.seen = entry.seen.max(now);
        }
        Some(entry.known.clone())
    }

    pub(super) fn end(&self, id: &str) {
        self.lock().remove(&hash(id));
    }

    /// Nothing is left half done under the lock, so what a panic left is whole.
    fn lock(&self) -> MutexGuard<'_, HashMap<Hash, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
    fn the_longest_idle_goes_when_there_are_too_many() {
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
    fn those_that_are_over_make_room_first() {
        let sessions = Sessions::default();
        for _ in 0..MAX_SESSIONS {
            begin(&sessions, at(0));
        }
        begin(&sessions, at(MAX_IDLE.as_secs()));
        assert_eq!(sessions.lock().len(), 1);
    }

    #[test]
    fn neither_use_nor_a_clock_that_goes_back_makes_it_last_for_ever() {
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
        assert!(
            sessions.find(id.text(), at(0), true).is_none(),
            "it was removed"
        );
    }
}
