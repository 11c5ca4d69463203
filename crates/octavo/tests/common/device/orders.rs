//! Orders to the test device: to fail, to delay, to hold back, to panic. Each direction has its own.

use std::time::Duration;

use octavo::io::Direction;

use super::queue::DeviceQueue;

/// The orders for one direction, and their effects.
#[derive(Debug, Default)]
pub(super) struct Orders {
    begun: u64,
    failed: u64,
    /// Every `fail_every`-th transfer fails. 0 means that no transfer fails.
    fail_every: u64,
    errno: i32,
    /// Every `panic_every`-th transfer panics. 0 means that no transfer panics.
    panic_every: u64,
    delay: Duration,
    holding: bool,
}

/// The orders for one transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransferOrders {
    /// The error with which the transfer ends.
    pub(super) errno: Option<i32>,
    pub(super) delay: Duration,
    /// Whether the device keeps the transfer until `let_go`.
    pub(super) hold: bool,
}

impl Orders {
    /// Returns the orders for a new transfer.
    pub(super) fn begin(&mut self) -> TransferOrders {
        self.begun += 1;
        let is_due = |every: u64| every > 0 && self.begun.is_multiple_of(every);
        assert!(!is_due(self.panic_every), "the test device was told to panic");
        let errno = is_due(self.fail_every).then_some(self.errno);
        self.failed += u64::from(errno.is_some());
        TransferOrders { errno, delay: self.delay, hold: self.holding }
    }
}

/// The reads of a device, or its writes. An order applies from the next transfer on.
#[derive(Clone, Copy)]
pub struct DeviceSide<'d> {
    pub(super) queue: &'d DeviceQueue,
    pub(super) direction: Direction,
}

impl DeviceSide<'_> {
    /// Fails every `n`th transfer. 1 means all transfers, and 0 means none.
    pub fn fail_every(&self, n: u64, errno: i32) {
        self.with(|orders| (orders.fail_every, orders.errno) = (n, errno));
    }

    /// Panics in every `n`th `submit`. 1 means all calls, and 0 means none.
    pub fn panic_every(&self, n: u64) {
        self.with(|orders| orders.panic_every = n);
    }

    /// Delays each transfer by this time.
    pub fn delay(&self, delay: Duration) {
        self.with(|orders| orders.delay = delay);
    }

    /// Stays silent: the device keeps each transfer until [`DeviceSide::let_go`].
    pub fn hold(&self) {
        self.with(|orders| orders.holding = true);
    }

    /// Lets later transfers pass. The device still keeps the transfers that it has.
    pub fn hold_no_more(&self) {
        self.with(|orders| orders.holding = false);
    }

    /// Answers the kept transfers, in this thread if the device has no other, and lets later transfers pass.
    pub fn let_go(&self) {
        self.hold_no_more();
        self.queue.let_go(self.direction);
    }

    /// Waits until the device keeps `n` transfers. Returns `false` after a minute.
    pub fn wait_held(&self, n: usize) -> bool {
        self.queue.wait_held(self.direction, n, Duration::from_secs(60))
    }

    /// Returns the number of transfers that the device keeps now.
    pub fn held(&self) -> usize {
        self.queue.kept(self.direction)
    }

    /// Returns the number of transfers submitted so far.
    pub fn begun(&self) -> u64 {
        self.with(|orders| orders.begun)
    }

    /// Returns the number of transfers that failed by order.
    pub fn failed(&self) -> u64 {
        self.with(|orders| orders.failed)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Orders) -> T) -> T {
        self.queue.with_orders(self.direction, act)
    }
}
