//! Models of threads that ring while a driver goes to sleep. Loom reports a deadlock if a ring is lost.

use ::loom::sync::Notify;
use ::loom::sync::atomic::AtomicU32;
use ::loom::thread;

use super::*;

struct BellModel {
    attention: Attention,
    /// The modelled file descriptor of the bell.
    woken: Notify,
    work: [AtomicU32; 2],
}

impl BellModel {
    fn ring(&self, who: usize) {
        self.work[who].store(1, Ordering::Relaxed);
        if self.attention.call() {
            self.woken.notify();
        }
    }

    fn drive(&self) {
        loop {
            self.attention.look();
            if self.work.iter().all(|work| work.load(Ordering::Relaxed) == 1) {
                return;
            }
            if self.attention.doze() {
                self.woken.wait();
            }
        }
    }
}

#[test]
fn loom_bell_no_ring_is_lost() {
    ::loom::model(|| {
        let world = Arc::new(BellModel {
            attention: Attention::new(),
            woken: Notify::new(),
            work: std::array::from_fn(|_| AtomicU32::new(0)),
        });
        let ringers = [0, 1].map(|who| {
            let world = Arc::clone(&world);
            thread::spawn(move || world.ring(who))
        });
        world.drive();
        for ringer in ringers {
            ringer.join().unwrap();
        }
    });
}
