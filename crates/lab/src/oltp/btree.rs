//! B-trees on guarded pages of a file: those of the engine's example `btree`.

#[path = "../../../octavo/examples/btree/tree.rs"]
#[expect(dead_code, reason = "the bank removes nothing, and looks nothing up without changing it")]
mod tree;

pub use tree::{Leaf, Node, PageFile, Tree};
