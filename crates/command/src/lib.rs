//! Parts that the command lines of Octavo's programs share: sizes and other choices, output, result files,
//! and the reasons why a program stops.

pub mod choices;
pub mod failure;
pub mod output;
pub mod result_file;

/// Checks that the programs in the README and in the guide compile.
#[cfg(doctest)]
mod shown {
    #[doc = include_str!("../../../README.md")]
    struct Readme;

    #[doc = include_str!("../../../docs/library.md")]
    struct Library;
}
