//! Helpers for the program's tests.
#![allow(dead_code, reason = "each test uses some of it")]

pub mod runs;
