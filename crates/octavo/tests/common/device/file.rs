//! The test device as the backing of a file: it has a length too, and a sync that fails by order.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use octavo::io::{Device, FileBacking, Submitted, Transfer, Urgency, Waited};

use super::{EIO, TestDevice};

/// The backing. Clones are handles to the same one.
#[derive(Clone)]
pub struct TestFile {
    pub device: TestDevice,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    len_bytes: AtomicU64,
    syncs: AtomicU64,
    fails_syncs: AtomicBool,
}

impl TestFile {
    /// A file without bytes.
    pub fn new(device: TestDevice) -> Self {
        Self { device, state: Arc::default() }
    }

    pub fn boxed(&self) -> Box<dyn FileBacking> {
        Box::new(self.clone())
    }

    pub fn fail_syncs(&self, fails: bool) {
        self.state.fails_syncs.store(fails, Ordering::Relaxed);
    }

    /// Syncs that succeeded.
    pub fn syncs(&self) -> u64 {
        self.state.syncs.load(Ordering::Relaxed)
    }
}

impl Device for TestFile {
    fn capacity_pages(&self) -> u32 {
        self.device.capacity_pages()
    }

    fn submit(&self, transfer: Transfer, urgency: Urgency) -> Submitted {
        self.device.submit(transfer, urgency)
    }

    fn flush(&self) {
        self.device.flush();
    }

    fn poll(&self) {
        self.device.poll();
    }

    fn wait(&self, queue: u32, still_waiting: &dyn Fn() -> bool) -> Waited {
        self.device.wait(queue, still_waiting)
    }

    fn serve(&self) {
        self.device.serve();
    }

    fn describe(&self) -> String {
        self.device.describe()
    }
}

impl FileBacking for TestFile {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.state.len_bytes.load(Ordering::Relaxed))
    }

    fn set_len_bytes(&self, bytes: u64) -> io::Result<()> {
        self.state.len_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn punch(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&self) -> io::Result<()> {
        if self.state.fails_syncs.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        self.state.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
