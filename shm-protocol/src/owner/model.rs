//! Models of the owner's state words: every interleaving of a few threads that loom explores.
//!
//! The models run the agent's and the controller's own code: [`enter`], [`publish`], [`Sessions`],
//! [`Mapping`], [`SegmentState`], [`Mark`], [`Bank`], and [`SegmentFile`]'s `prepare_bank`,
//! `publish` and `stop` over words in memory. What the agent does between them (`sample_if_due`,
//! `count_free`, `session::leave`, `life::make`) is repeated here, in the agent's order. Each model
//! was seen to fail when the code was broken in any of the following ways. Sessions: epoch not read
//! a second time, or no fence before that; the epoch or the mapping read relaxed; the epoch written
//! before its parameters; the magic before the first session; a bank not cleared, or its session
//! not checked; one bank for all sessions; a mapping set where it must be offered; a session
//! recorded over a later one; an epoch ended without checking it; no `MAKING` at start-up, or read
//! without a fence. Copies: `WAITING` before the cover is in place; no cover while a segment is
//! being made; the tables unmapped while a thread may know them; no `LEAVING`, or a copy that
//! continues during it; the mark read relaxed, signed after `OWN`, or claimed by two threads; the
//! segment made by two; sessions not forgotten; any of the state's orderings relaxed.
//!
//! Not modelled: signal handlers that interrupt a thread; `Readers` in copies (`unwind` has its own
//! models); a thread that sleeps between entering a session and counting in its bank while two more
//! sessions begin: nothing waits for it, and its sample may be counted in the last one.
//!
//! [`enter`]: super::enter
//! [`publish`]: super::publish
//! [`Sessions`]: super::Sessions
//! [`Mapping`]: super::Mapping
//! [`SegmentState`]: super::SegmentState
//! [`Mark`]: super::Mark
//! [`Bank`]: crate::Bank
//! [`SegmentFile`]: crate::segment::SegmentFile

mod copies;
mod memory;
mod peak;
mod sessions;
