//! What the engine asks of the devices of all stores at once.
//!
//! A question about one page goes to the page's store. A thread that waits for room, or for no page in
//! particular, asks here: which of the stores will answer first is not known.
//!
//! Locking: none is held when a device is called.

use crate::engine::Engine;
use crate::io::Waited;
use crate::store::PageStore;

impl Engine {
    /// The stores whose devices may have transfers.
    fn stores(&self) -> impl Iterator<Item = &dyn PageStore> {
        let stores = [
            &self.swap as &dyn PageStore,
            #[cfg(all(test, not(loom)))]
            &self.double,
        ];
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

    /// Has devices complete transfers by themselves: somebody waits for one, and cannot pull completions.
    pub(crate) fn serve_devices(&self) {
        self.stores().for_each(PageStore::serve);
    }

    /// For a thread that waits for transfers, whichever. As [`Device::wait`](crate::io::Device::wait).
    pub(crate) fn wait_in_devices(&self, still_waiting: &dyn Fn() -> bool) -> Waited {
        let mut stores = self.stores();
        match (stores.next(), stores.next()) {
            (Some(only), None) => only.wait_for_any(still_waiting),
            _ => {
                // The thread can wait in one store only. So all see to their completions themselves.
                self.serve_devices();
                Waited::Sleep
            }
        }
    }
}
