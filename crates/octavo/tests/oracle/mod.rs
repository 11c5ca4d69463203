//! Models of the contents of a space, and runs that compare a space with them.
//!
//! | file | the model | the run |
//! |---|---|---|
//! | [`pages`] | every byte and every permission, exactly | |
//! | [`exact`] | `pages` | one thread; both agree after each step |
//! | [`lanes`] | the words of one thread | several threads, each with words of its own in shared pages |
//! | [`simulation`] | both | over the test device, each run a function of its seed |
//!
//! The soak command of `octavo-bench` includes this folder too.
#![allow(dead_code, reason = "each test uses some of it")]

pub mod exact;
pub mod lanes;
pub mod pages;
pub mod simulation;
