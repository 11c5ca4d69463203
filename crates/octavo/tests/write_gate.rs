//! Write gates: pages of a file that wait for their log.

mod common;

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use common::{MIB, PAGE};
use octavo::file::{File, FileOptions, Sharing, WriteGate};
use octavo::{Manager, RegionOptions, Space};

/// Lets a page go once the log is durable up to the number in its first word.
struct Log {
    durable: AtomicU64,
    flushes: AtomicU64,
    /// Changed during each flush, if it can be.
    busy: Option<(Weak<Space>, u64)>,
}

impl Log {
    fn new(busy: Option<(Weak<Space>, u64)>) -> Arc<Self> {
        Arc::new(Self { durable: AtomicU64::new(0), flushes: AtomicU64::new(0), busy })
    }
}

fn lsn(page: &[u8]) -> u64 {
    u64::from_le_bytes(page[..8].try_into().unwrap())
}

impl WriteGate for Log {
    fn may_write(&self, _offset: u64, page: &[u8]) -> bool {
        lsn(page) <= self.durable.load(Ordering::Relaxed)
    }

    fn make_writable(&self, _offset: u64, page: &[u8]) {
        let flush = self.flushes.fetch_add(1, Ordering::Relaxed);
        self.durable.fetch_max(lsn(page), Ordering::Relaxed);
        // Another thread that is never late: it changes the page while the log is flushed, unless it has to
        // wait for the page. It ends some time, so that the test does.
        let busy = self.busy.as_ref().filter(|_| flush < 10);
        if let Some((space, at)) = busy.and_then(|(space, at)| Some((space.upgrade()?, *at))) {
            let guard = pin!(space.exclusive_async::<u64>(at, 1));
            if let Poll::Ready(guard) = guard.poll(&mut Context::from_waker(Waker::noop())) {
                guard.unwrap()[0] += 1;
            }
        }
    }
}

fn pages() -> (tempfile::TempDir, Manager, File, Arc<Space>, u64) {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let manager = Manager::builder().budget_bytes(16 * MIB).background(false).build().unwrap();
    let file = manager.open(folder.path().join("data"), FileOptions::new().create(true)).unwrap();
    file.set_len_bytes(MIB).unwrap();
    let space = Arc::new(manager.space().unwrap());
    let at = space.map_file(&file, 0, MIB, Sharing::Shared, RegionOptions::new().guarded(true)).unwrap();
    (folder, manager, file, space, at)
}

#[test]
fn a_page_waits_for_its_log_and_the_others_go() {
    let (folder, manager, file, space, at) = pages();
    let log = Log::new(None);
    file.set_write_gate(Some(Arc::<Log>::clone(&log))).unwrap();
    log.durable.store(5, Ordering::Relaxed);
    for page in 0..10 {
        space.exclusive::<u64>(at + page * PAGE, 1).unwrap()[0] = page;
    }
    while manager.reclaim(10).unwrap() > 0 {}
    assert_eq!(file.dirty_bytes(), 4 * PAGE, "pages 6 to 9 are held back");
    assert_eq!(log.flushes.load(Ordering::Relaxed), 0, "reclaim does not wait for the log");
    file.sync().unwrap();
    assert_eq!((file.dirty_bytes(), log.flushes.load(Ordering::Relaxed)), (0, 4));
    let bytes = std::fs::read(folder.path().join("data")).unwrap();
    assert!((0..10).all(|page| lsn(&bytes[(page * PAGE) as usize..]) == page));
}

#[test]
fn a_sync_ends_though_a_page_is_changed_whenever_its_log_is_flushed() {
    let (folder, _manager, file, space, at) = pages();
    let log = Log::new(Some((Arc::downgrade(&space), at)));
    file.set_write_gate(Some(Arc::<Log>::clone(&log))).unwrap();
    space.exclusive::<u64>(at, 1).unwrap()[0] = 1;
    file.sync().unwrap();
    assert_eq!(log.flushes.load(Ordering::Relaxed), 1, "the page stays as it is until it is written");
    assert_eq!(lsn(&std::fs::read(folder.path().join("data")).unwrap()), 1);
}
