//! Writeback: dirty pages of files go to their devices, and pages of files that become shorter go away.
//!
//! | file | what it does |
//! |---|---|
//! | `mod` | the use of a file, whose last end writes and drops the file's pages |
//! | `flush` | writes pages before anybody has to wait for them, and slows down who dirties too many |
//! | `run` | one write of neighbouring pages under way |
//! | `sync` | writes the dirty pages of a range |
//! | `truncate` | changes the length of a file, and drops its pages |
//!
//! Reclaim writes dirty pages by itself (`reclaim/evict.rs`), with the same tags. These functions write pages
//! that stay in memory.
//!
//! Locking: a file's `resizing` over a whole change of length. No lock is held while a thread waits for a
//! device, except that one, and `opening` while a file is closed.

mod flush;
mod run;
mod sync;
mod truncate;

pub(crate) use flush::{Flusher, balance, balance_after};
pub(crate) use sync::{sync_pages, write_back};
pub(crate) use truncate::{after_direct_write, before_direct, extend, punch, set_len};

use crate::engine::Engine;
use crate::page_cache::{Droppable, Inode, Why};
use crate::sync::Shared;

/// One use of an open file. With the last one, the file's pages are written and dropped.
pub(crate) struct FileUse {
    engine: Shared<Engine>,
    inode: Shared<Inode>,
}

impl FileUse {
    /// Takes over a use that [`PageCache::open`](crate::page_cache::PageCache::open) has counted.
    pub(crate) fn counted(engine: &Shared<Engine>, inode: Shared<Inode>) -> Self {
        Self { engine: Shared::clone(engine), inode }
    }

    pub(crate) fn inode(&self) -> &Shared<Inode> {
        &self.inode
    }
}

impl Clone for FileUse {
    fn clone(&self) -> Self {
        self.engine.page_cache.use_again(&self.inode);
        Self { engine: Shared::clone(&self.engine), inode: Shared::clone(&self.inode) }
    }
}

impl Drop for FileUse {
    fn drop(&mut self) {
        // A forked child owns none of the pages.
        let Ok(_inside) = self.engine.enter() else { return };
        let (engine, inode) = (&*self.engine, &self.inode);
        engine.page_cache.close(inode, || {
            // Whoever wants to know of errors calls sync() first.
            write_back(engine, inode, 0..u64::MAX, Why::Close);
            let len_bytes = inode.len_bytes();
            inode.set_len_bytes(0);
            truncate::drop_pages(engine, inode, 0..u64::MAX, Droppable::All);
            // No write is under way any more.
            let _resizing = inode.resizing.lock();
            let _ = truncate::cut_backing(inode, len_bytes);
        });
    }
}
