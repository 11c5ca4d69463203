//! The error of an access for which no room could be made. It says what uses the budget, and what to do.
//!
//! The parts add up to the budget: each part takes from what the earlier ones left. A page that several
//! spaces show counts once, since the parts come from what is charged and not from the spaces' own figures.

use crate::budget::Reading;
use crate::error::{Error, ErrorKind};
use crate::units::{PAGE_BYTES, PAGE_SHIFT, bytes_for_people};

use super::{Engine, Figure};

/// How the budget is divided, in bytes. The sum of all fields but the last is the budget and `excess`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    outside: u64,
    page_tables: u64,
    /// Records of frames and regions, maps of swap, buffers: all tables but page tables.
    records: u64,
    compressed: u64,
    free_frames: u64,
    /// The rest of what is charged: pages of spaces and files, blocks and bounce buffers.
    pages: u64,
    unused: u64,
    /// The memory in use above the budget.
    excess: u64,
}

impl Parts {
    /// Divides what a reading says. The other figures were read at about the same moment.
    fn new(reading: Reading, page_tables: u64, compressed: u64, free_frames: u64) -> Self {
        // What is charged twice and is there once takes room once.
        let in_use = reading.used_bytes.saturating_sub(reading.shared_bytes);
        let mut left = in_use;
        let mut part = |bytes: u64| {
            let part = bytes.min(left);
            left -= part;
            part
        };
        let (outside, tables) = (part(reading.outside_bytes), part(reading.tables_bytes));
        let page_tables = page_tables.min(tables);
        let (compressed, free_frames) = (part(compressed), part(free_frames));
        Self {
            outside,
            page_tables,
            records: tables - page_tables,
            compressed,
            free_frames,
            pages: left,
            unused: reading.limit_bytes.saturating_sub(in_use),
            excess: in_use.saturating_sub(reading.limit_bytes),
        }
    }

    /// Writes the parts, each as `name: size; `. Parts of no bytes are left out. `largest` follows the pages.
    fn text(&self, largest: &str) -> String {
        let said = |name: &str, bytes: u64, more: &str| match bytes {
            0 => String::new(),
            bytes => format!("{name}: {}{more}; ", bytes_for_people(bytes)),
        };
        let largest =
            if largest.is_empty() { String::new() } else { format!(", the largest spaces: {largest}") };
        [
            said("pages and buffers", self.pages, &largest),
            said("page tables", self.page_tables, ""),
            said("records of pages and regions", self.records, ""),
            said("compressed pages", self.compressed, ""),
            said("free frames", self.free_frames, ""),
            said("outside of Octavo", self.outside, ""),
            said("unused, kept for tables or too little", self.unused, ""),
            match self.excess {
                0 => String::new(),
                bytes => format!("together {} more than the budget; ", bytes_for_people(bytes)),
            },
        ]
        .concat()
    }
}

impl Engine {
    /// Makes the error for an access for which no room could be made.
    #[cold]
    pub(crate) fn out_of_memory(&self) -> Error {
        let reading = self.budget.reading();
        let tables = (self.table.nodes.in_use() * PAGE_BYTES) as u64;
        let pool = self.swap.pool().map_or(0, |pool| pool.stats().used_bytes);
        let parts = Parts::new(reading, tables, pool, self.frames.free_frames() << PAGE_SHIFT);
        let immovable = self.immovable_bytes();
        let remedy = if tables > reading.limit_bytes / 2 {
            // Each page that is out needs an entry, and more if it is isolated.
            "page tables take most of it, as they grow with what is out: unmap ranges or drop a space, or raise the budget to a hundredth of your data or more"
        } else if immovable > reading.limit_bytes / 2 {
            "memory that cannot be moved takes most of it: have the program lock less, or raise the budget"
        } else if self.swap.is_available() {
            "drop pins, unmap ranges or drop a space, or raise the budget"
        } else {
            "configure a swap file, unmap ranges or drop a space, or raise the budget"
        };
        let immovable = match immovable {
            0 => String::new(),
            bytes => format!("{} of all that cannot be moved, as locked memory; ", bytes_for_people(bytes)),
        };
        Error::new(
            ErrorKind::OutOfMemory,
            format!(
                "the budget of {} is used up and nothing more can be moved out; {}{immovable}{remedy}",
                bytes_for_people(reading.limit_bytes),
                parts.text(&self.largest_spaces()),
            ),
        )
    }

    /// Names the spaces that show the most pages, at most three. A page that two spaces show is in both
    /// figures.
    fn largest_spaces(&self) -> String {
        let spaces: Vec<_> =
            self.spaces.lock().iter().map(|(id, record)| (*id, record.name.clone())).collect();
        let mut sizes: Vec<_> = spaces
            .into_iter()
            .map(|(id, name)| (self.space_use.get(id, Figure::Resident) << PAGE_SHIFT, name))
            .filter(|(bytes, _)| *bytes > 0)
            .collect();
        sizes.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let named =
            sizes.iter().take(3).map(|(bytes, name)| format!("{name} ({})", bytes_for_people(*bytes)));
        named.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn sum(parts: &Parts) -> u64 {
        let Parts { outside, page_tables, records, compressed, free_frames, pages, unused, excess: _ } =
            parts;
        outside + page_tables + records + compressed + free_frames + pages + unused
    }

    /// Whatever the figures say, as each of them may change between two readings.
    #[test]
    fn the_parts_add_up_to_the_budget() {
        let some = [0, 1, 3 * MIB, 16 * MIB, 40 * MIB];
        for used_bytes in some {
            for (tables_bytes, page_tables) in [(0, 0), (MIB, MIB / 2), (MIB, 2 * MIB), (20 * MIB, 0)] {
                for (outside_bytes, shared_bytes) in some.iter().flat_map(|&a| some.map(|b| (a, b))) {
                    for (compressed, free_frames) in [(0, 0), (MIB, 0), (9 * MIB, 9 * MIB)] {
                        let limit_bytes = 16 * MIB;
                        let reading =
                            Reading { limit_bytes, used_bytes, tables_bytes, outside_bytes, shared_bytes };
                        let parts = Parts::new(reading, page_tables, compressed, free_frames);
                        assert_eq!(sum(&parts), limit_bytes + parts.excess, "{reading:?}: {parts:?}");
                        assert!(parts.excess == 0 || parts.unused == 0, "{parts:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_text_names_the_parts_that_there_are() {
        let reading = Reading {
            limit_bytes: 16 * MIB,
            used_bytes: 21 * MIB,
            tables_bytes: 2 * MIB,
            outside_bytes: 0,
            shared_bytes: 6 * MIB,
        };
        let parts = Parts::new(reading, MIB, 0, 0);
        assert_eq!(
            parts.text("a (13 MiB), b (6 MiB)"),
            "pages and buffers: 13 MiB, the largest spaces: a (13 MiB), b (6 MiB); page tables: 1 MiB; \
             records of pages and regions: 1 MiB; unused, kept for tables or too little: 1 MiB; "
        );
        let over = Parts::new(Reading { outside_bytes: 18 * MIB, shared_bytes: 0, ..reading }, 0, 0, 0);
        assert_eq!(
            over.text(""),
            "pages and buffers: 1 MiB; records of pages and regions: 2 MiB; outside of Octavo: 18 MiB; \
             together 5 MiB more than the budget; "
        );
    }
}
