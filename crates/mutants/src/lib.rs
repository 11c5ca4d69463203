//! Octavo's engine on the simulated face, once more, with bugs that can be switched on.
//!
//! `mutants.toml` names them: each is a rule of the engine that is left out, or a bug that the engine once
//! had. The build copies the engine's source and puts them in. A rule whose text has changed is an error of
//! the build, so no mutant rots. With all of them off the engine is the engine.
// Its tests are the engine's, which has them.
#![cfg(not(test))]
#![deny(unsafe_code)]
#![allow(missing_docs, reason = "they stand in the engine")]

pub mod mutant;

include!(concat!(env!("OUT_DIR"), "/engine/lib.rs"));
