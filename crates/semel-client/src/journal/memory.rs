//! The journal in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use semel_core::Timestamp;

use super::{
    Backend, Bounds, Entry, Error, Finish, NewIntent, Open, PRUNED_AT_ONCE, StoredResponse,
};
use crate::BoxFuture;
use crate::attempts::Note;
use crate::request::Request;
use crate::stored_headers::from_pairs;

#[derive(Default)]
pub(super) struct Memory(Mutex<State>);

#[derive(Default)]
struct State {
    next: u64,
    intents: HashMap<String, Stored>,
    open: BTreeMap<u64, String>,
    finished: BTreeMap<(Timestamp, u64), String>,
}

struct Stored {
    nth: u64,
    /// Whether another process may have sent it: it found the intent open.
    is_shared: bool,
    created_at: Timestamp,
    finished_at: Option<Timestamp>,
    method: String,
    url: String,
    entry: Entry,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn intend(&mut self, new: NewIntent, bounds: Bounds) -> Result<Entry, Error> {
        if let Some(known) = self.intents.get_mut(&new.intent) {
            if known.entry.fingerprint != new.fingerprint {
                return Err(Error::Conflict);
            }
            known.is_shared = true;
            return Ok(known.entry.clone());
        }
        if self.open.len() >= bounds.max_open as usize {
            return Err(Error::Full(bounds.max_open));
        }
        let entry = Entry {
            intent: new.intent.clone(),
            key: new.key.to_string(),
            key_form: Some(new.key_form),
            fingerprint: new.fingerprint,
            expires_at: new.created_at.saturating_add(new.lifetime),
            is_sent: false,
            note: Note::default(),
            response: None,
            request: Some(Request {
                headers: from_pairs(&new.headers).unwrap_or_default(),
                ..new.request.clone()
            }),
        };
        let nth = self.next;
        self.next += 1;
        self.open.insert(nth, new.intent.clone());
        let stored = Stored {
            nth,
            is_shared: false,
            created_at: new.created_at,
            finished_at: None,
            method: new.request.method.to_string(),
            url: new.request.url.to_string(),
            entry: Entry {
                is_sent: true,
                ..entry.clone()
            },
        };
        self.intents.insert(new.intent, stored);
        Ok(entry)
    }

    fn note(&mut self, intent: &str, key: &str, note: Note) {
        let Some(known) = self.intents.get_mut(intent) else {
            return;
        };
        if known.entry.key != key || known.entry.response.is_some() {
            return;
        }
        if let Some(expires_at) = note.expires_at {
            known.entry.expires_at = known.entry.expires_at.min(expires_at);
        }
        known.entry.note.is_unknown |= note.is_unknown;
        if note.operation_id.is_some() {
            known.entry.note.operation_id = note.operation_id;
        }
    }

    fn finish(&mut self, finish: Finish, bounds: Bounds) -> Option<StoredResponse> {
        self.prune(finish.now.saturating_sub(bounds.retention));
        let known = self.intents.get_mut(&finish.intent);
        let Some(known) = known.filter(|known| known.entry.key == finish.key) else {
            return Some(finish.response);
        };
        if let Some(first) = &known.entry.response {
            return Some(first.clone());
        }
        if finish.unless_shared && known.is_shared {
            return None;
        }
        known.entry.response = Some(finish.response.clone());
        known.entry.request = None;
        known.finished_at = Some(finish.now);
        let nth = known.nth;
        self.open.remove(&nth);
        self.finished.insert((finish.now, nth), finish.intent);
        Some(finish.response)
    }

    fn prune(&mut self, before: Timestamp) {
        for _ in 0..PRUNED_AT_ONCE {
            let Some(oldest) = self.finished.first_entry() else {
                return;
            };
            if oldest.key().0 > before {
                return;
            }
            let intent = oldest.remove();
            self.intents.remove(&intent);
        }
    }

    fn list(&self, after: Option<&str>, limit: u32) -> Vec<Open> {
        let from = after
            .and_then(|intent| self.intents.get(intent))
            .map_or(0, |known| known.nth + 1);
        self.open
            .range(from..)
            .take(limit as usize)
            .filter_map(|(_, intent)| self.intents.get(intent))
            .map(|known| Open {
                intent: known.entry.intent.clone(),
                key: known.entry.key.clone(),
                method: known.method.clone(),
                url: known.url.clone(),
                created_at: known.created_at,
                expires_at: known.entry.expires_at,
                is_unknown: known.entry.note.is_unknown,
                operation_id: known.entry.note.operation_id.clone(),
            })
            .collect()
    }

    fn forget(&mut self, intent: &str) -> bool {
        let Some(known) = self.intents.remove(intent) else {
            return false;
        };
        self.open.remove(&known.nth);
        if let Some(finished_at) = known.finished_at {
            self.finished.remove(&(finished_at, known.nth));
        }
        true
    }
}

impl Backend for Memory {
    fn intend(&self, new: NewIntent, bounds: Bounds) -> BoxFuture<'_, Result<Entry, Error>> {
        Box::pin(async move { self.lock().intend(new, bounds) })
    }

    fn find(&self, intent: String) -> BoxFuture<'_, Result<Option<Entry>, Error>> {
        Box::pin(async move {
            let state = self.lock();
            Ok(state.intents.get(&intent).map(|known| known.entry.clone()))
        })
    }

    fn start(
        &self,
        intent: String,
        _: String,
        _: String,
    ) -> BoxFuture<'_, Result<Option<Entry>, Error>> {
        Box::pin(async move {
            let mut state = self.lock();
            Ok(state.intents.get_mut(&intent).map(|known| {
                known.is_shared = true;
                known.entry.clone()
            }))
        })
    }

    fn note(&self, intent: String, key: String, note: Note) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.lock().note(&intent, &key, note);
            Ok(())
        })
    }

    fn finish(
        &self,
        finish: Finish,
        bounds: Bounds,
    ) -> BoxFuture<'_, Result<Option<StoredResponse>, Error>> {
        Box::pin(async move { Ok(self.lock().finish(finish, bounds)) })
    }

    fn list(&self, after: Option<String>, limit: u32) -> BoxFuture<'_, Result<Vec<Open>, Error>> {
        Box::pin(async move { Ok(self.lock().list(after.as_deref(), limit)) })
    }

    fn forget(&self, intent: String) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move { Ok(self.lock().forget(&intent)) })
    }
}
