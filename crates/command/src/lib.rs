//! What the command lines of Octavo's programs share: sizes and other choices, the places that text goes to, and the reasons why a
//! program stops.

pub mod choices;
pub mod failure;
pub mod output;
