//! Models of the owner's words: every interleaving of a few threads, as far as loom follows it.
//!
//! The code that runs is the agent's and the controller's own: [`meet`], [`appear`], [`Sessions`],
//! [`Mapping`], [`Life`], [`Mark`], [`Bank`], and [`SegmentFile`]'s `prepare_bank`, `publish` and
//! `stop` over words in memory. What the agent does between them (`sample_if_due`, `count_free`,
//! `session::leave`, `life::make`) is repeated here, in the agent's order.
//!
//! Each was seen to fail with the code broken. The models of sessions: no second look at the
//! epoch, or no fence before it; the epoch or the mapping read relaxed; the epoch written before its
//! parameters; the magic before the first session; a bank not emptied, or not asked whose it is; one
//! bank for all sessions; a mapping set where it must be offered; a session noted over a later
//! one; an epoch ended without looking; no `MAKING` at start-up, or read without a fence. The models of copies: `WAITING` before the cover is
//! there; no cover where a segment is being made; the tables unmapped where a thread may know
//! them; no `LEAVING`, or a copy that goes on with it; the mark read relaxed, signed after `OWN`,
//! claimed or the segment made by two; sessions not forgotten; any of the state's orderings relaxed.
//!
//! Not modelled: signal handlers that interrupt a thread, `Readers` in copies (`unwind` has
//! them), a thread that sleeps between meeting a session and counting in its bank while two more
//! begin: nobody waits for it, and its sample may end in the last one.
//!
//! [`meet`]: super::meet
//! [`appear`]: super::appear
//! [`Sessions`]: super::Sessions
//! [`Mapping`]: super::Mapping
//! [`Life`]: super::Life
//! [`Mark`]: super::Mark
//! [`Bank`]: crate::Bank
//! [`SegmentFile`]: crate::segment::SegmentFile

mod copies;
mod memory;
mod sessions;
