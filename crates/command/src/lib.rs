//! What the command lines of Octavo's programs share: sizes and other choices, the places that text goes to,
//! and the reasons why a program stops.

pub mod choices;
pub mod failure;
pub mod output;

/// The programs that the README and the guide show compile.
#[cfg(doctest)]
mod shown {
    #[doc = include_str!("../../../README.md")]
    struct Readme;

    #[doc = include_str!("../../../docs/library.md")]
    struct Library;
}
