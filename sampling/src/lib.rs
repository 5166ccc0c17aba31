//! Arithmetic of sampling: which allocations are sampled, how many objects each sample stands for,
//! and how densely a session may sample.
//!
//! # Guarantees
//! - Sums are unbiased: the probability of a sample is known before it is drawn, and its weight is
//!   the inverse.
//! - No allocation, no system call, no lock, no panic; all state is the caller's. The agent calls
//!   this inside `malloc`.
//!
//! # Callers must
//! - keep one [`Gaps`], [`Weights`] and [`Sites`](thinning::Sites) for each thread;
//! - forget cached weights whenever the interval changes.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `gaps` | gaps between samples, and weights |
//! | `thinning` | which due samples are taken |
//! | `governor` | the interval that keeps to a share of the CPU time |

#![no_std]

#[cfg(test)]
extern crate std;

mod gaps;
pub mod governor;
pub mod thinning;

pub use gaps::{Gaps, Weights, weight};
