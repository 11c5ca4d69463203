//! Calls to the devices of all stores at once.
//!
//! A call about one page goes to the page's store. A thread that waits for room, or for no particular page,
//! calls these, because it cannot know which store will answer first.
//!
//! Locking: none is held when a device is called.

use crate::engine::Engine;
use crate::io::Waited;
use crate::store::PageStore;

impl Engine {
    /// The stores whose devices may have transfers.
    fn stores(&self) -> impl Iterator<Item = &dyn PageStore> {
        let stores = [&self.swap as &dyn PageStore, &*self.page_cache];
        stores.into_iter().filter(|store| store.has_devices())
    }

    /// Starts the transfers that devices have only collected so far.
    pub(crate) fn flush_devices(&self) {
        self.stores().for_each(PageStore::flush);
    }

    /// Completes the transfers that have ended.
    pub(crate) fn poll_devices(&self) {
        self.stores().for_each(PageStore::poll);
    }

    /// Has devices complete transfers by themselves, for a waiter that cannot poll for completions.
    pub(crate) fn serve_devices(&self) {
        self.stores().for_each(PageStore::serve);
    }

    /// Waits for any transfer, as [`Device::wait`](crate::io::Device::wait) does.
    pub(crate) fn wait_in_devices(&self, still_waiting: &dyn Fn() -> bool) -> Waited {
        let mut stores = self.stores();
        match (stores.next(), stores.next()) {
            (Some(only), None) => only.wait_for_any(still_waiting),
            _ => {
                // The thread can wait in only one store, so all devices complete transfers by themselves.
                self.serve_devices();
                Waited::Sleep
            }
        }
    }
}
