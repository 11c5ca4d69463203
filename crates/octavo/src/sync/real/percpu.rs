//! The storage of per-CPU stacks and cells. The assembly of restartable sequences accesses it as well.

use octavo_platform::rseq::{self, StackArea};

use crate::sync::percpu::{Pop, Push};

pub(crate) use octavo_platform::rseq::CellArea;

pub(crate) fn sections_work() -> bool {
    rseq::Rseq::probe().is_some()
}

pub(crate) type Storage = StackArea;

#[inline(always)]
pub(crate) fn pop_in_section(storage: &Storage, class: usize) -> Pop {
    match storage.pop_here(class) {
        rseq::Pop::Value(value) => Pop::Value(value),
        rseq::Pop::Empty => Pop::Empty,
        rseq::Pop::Busy => Pop::Busy,
    }
}

#[inline(always)]
pub(crate) fn push_in_section(storage: &Storage, class: usize, value: u32) -> Push {
    match storage.push_here(class, value) {
        rseq::Push::Done => Push::Done,
        rseq::Push::Full => Push::Full,
        rseq::Push::Busy => Push::Busy,
    }
}
