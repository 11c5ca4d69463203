//! What the measuring programs share: rounds, figures, threads, random numbers, tables.
//!
//! | module | what |
//! |---|---|
//! | [`rounds`] | sides that take turns, each round beginning one side further on |
//! | [`statistics`] | medians with the least and the greatest; means, deviations and intervals |
//! | [`workers`] | threads that start together, each on a CPU of its own, and are timed |
//! | [`random`] | random numbers that are the same on every run |
//! | [`table`] | tables for people: aligned columns, and Markdown |
//! | [`control_group`] | memory control groups |
//! | [`direct`] | input and output past the page cache |

pub mod control_group;
pub mod direct;
pub mod random;
pub mod rounds;
pub mod statistics;
pub mod table;
pub mod workers;
