//! A copy of Octavo's engine on the simulated face, with bugs that can be switched on.
//!
//! `mutants.toml` names them: each is a rule of the engine that is left out, or a bug that the engine once
//! had. The build copies the engine's source and puts them in. If the text of a rule has changed, the build
//! fails. So no mutant can get out of date. With all mutants off, the copy works like the engine itself.
// The copy has no tests of its own: the engine's package has them.
#![cfg(not(test))]
#![deny(unsafe_code)]
#![allow(missing_docs, reason = "they stand in the engine")]

pub mod mutant;

include!(concat!(env!("OUT_DIR"), "/engine/lib.rs"));
