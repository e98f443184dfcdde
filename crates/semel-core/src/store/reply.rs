//! Replies of a store, one variant for each type of result.

use std::fmt;

use super::{AttemptEnded, Error, Page, Result, Summary, UnfinishedCounts, Verb};
use crate::contract::{Published, RecordsInUse};
use crate::history::Entry;
use crate::inbox::{Parked, Receipt};
use crate::outbox::{Backlog, DeadEvent, Waiting};
use crate::statistics::{Activity, Misuse, RecordCounts, RecordScan};
use crate::transition::{Decision, Held, Resolution};
use crate::{Fence, Record};

/// A result that a [`Reply`] carries.
pub(super) trait Answer: Sized {
    /// Takes the result out of a reply. The error is the [kind](Reply::kind) of another reply.
    fn from_reply(reply: Reply) -> std::result::Result<Self, &'static str>;
}

macro_rules! replies {
    ($($(#[doc = $doc:literal])* $kind:ident($answer:ty);)*) => {
        /// What a store answers to a [`Request`](super::Request). It is made of the result:
        /// `Reply::from(held)`.
        pub enum Reply {
            $($(#[doc = $doc])* $kind($answer),)*
            /// One record, boxed to keep replies on the request path small.
            Record(Option<Box<Record>>),
            /// It is done, and there is nothing to return.
            Done,
        }

        impl Reply {
            /// The name of the kind of reply, for error messages.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Self::$kind(_) => stringify!($kind),)*
                    Self::Record(_) => "Record",
                    Self::Done => "Done",
                }
            }
        }

        $(
            impl From<$answer> for Reply {
                fn from(answer: $answer) -> Self {
                    Self::$kind(answer)
                }
            }

            impl Answer for $answer {
                #[allow(clippy::wildcard_enum_match_arm, reason = "any other kind is wrong")]
                fn from_reply(reply: Reply) -> std::result::Result<Self, &'static str> {
                    match reply {
                        Reply::$kind(answer) => Ok(answer),
                        other => Err(other.kind()),
                    }
                }
            }
        )*
    };
}

replies! {
    /// To `reserve`.
    Decision(Decision);
    /// To the writes of an attempt.
    Held(Held);
    /// To `watch`.
    Watch(Option<AttemptEnded>);
    /// To `sweep`.
    Fences(Vec<Fence>);
    /// To `claim_abandoned` and `claim_due`.
    Records(Vec<Record>);
    /// To `resolve` and `dead_letter`.
    Resolution(Resolution);
    /// A number of records, bodies, messages or lines.
    Count(usize);
    /// Whether the call applied.
    Applied(bool);
    /// To `history`.
    History(Vec<Entry>);
    /// To `count_unfinished`.
    Unfinished(Vec<UnfinishedCounts>);
    /// To `list`.
    Page(Page);
    /// To `find_key`.
    Summaries(Vec<Summary>);
    /// To `contracts`.
    Contracts(Published);
    /// To `count_records`.
    InUse(RecordsInUse);
    /// To `receive_message`.
    Receipt(Receipt);
    /// To `claim_parked`.
    Parked(Vec<Parked>);
    /// To `claim_events`.
    Events(Vec<Waiting>);
    /// To `dead_events`.
    DeadEvents(Vec<DeadEvent>);
    /// To `outbox_backlog`.
    Backlog(Backlog);
    /// To `activity`.
    Activity(Vec<Activity>);
    /// To `misuses`.
    Misuses(Vec<Misuse>);
    /// To `scan_records`.
    Scan(RecordScan);
    /// To `record_counts`.
    RecordCounts(Option<RecordCounts>);
}

impl Reply {
    /// The result that `verb` returns.
    pub(super) fn into_answer<A: Answer>(self, verb: Verb) -> Result<A> {
        A::from_reply(self).map_err(|reply| Error::WrongReply { verb, reply })
    }
}

impl From<Option<Record>> for Reply {
    fn from(record: Option<Record>) -> Self {
        Self::Record(record.map(Box::new))
    }
}

impl Answer for Option<Record> {
    #[allow(clippy::wildcard_enum_match_arm, reason = "any other kind is wrong")]
    fn from_reply(reply: Reply) -> std::result::Result<Self, &'static str> {
        match reply {
            Reply::Record(record) => Ok(record.map(|record| *record)),
            other => Err(other.kind()),
        }
    }
}

impl From<()> for Reply {
    fn from((): ()) -> Self {
        Self::Done
    }
}

impl Answer for () {
    #[allow(clippy::wildcard_enum_match_arm, reason = "any other kind is wrong")]
    fn from_reply(reply: Reply) -> std::result::Result<Self, &'static str> {
        match reply {
            Reply::Done => Ok(()),
            other => Err(other.kind()),
        }
    }
}

/// Shows the kind only: results hold what clients sent and were sent.
impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(self.kind()).finish_non_exhaustive()
    }
}
