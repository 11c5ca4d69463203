//! Windows of this process: arrays and boxes that may be larger than memory.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # if octavo_window::Windows::is_allowed() {
//! let manager = octavo::Manager::builder().budget_bytes(64 << 20).build()?;
//! let windows = octavo_window::Windows::new(&manager)?;
//! let mut numbers = windows.vec::<u64>(16 << 20)?; // 128 MiB
//! numbers.iter_mut().zip(1..).for_each(|(number, n)| *number = n);
//! assert_eq!(numbers.iter().rev().take(2).copied().collect::<Vec<_>>(), [16 << 20, (16 << 20) - 1]);
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! An access to a page in memory costs the same as in any array. An access to any other page is a fault,
//! which a thread of the windows serves.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use octavo::translation::TranslatedSpace;
use octavo::{
    Advice, Error, ErrorKind, Manager, PAGE_BYTES, RegionOptions, Space, SpaceStats, bytes_for_people,
};
use octavo_platform::userfaultfd::{Features, Userfaultfd};
use octavo_platform::{Backing, ForkCanary, Inside, Reservation};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use zerocopy::{FromBytes, IntoBytes};

use crate::bell::Bell;
use crate::driver::Driver;
use crate::driver::listener::{Listener, Served};
use crate::own::Own;
use crate::window::Window;

/// Windows are aligned to the kernel's huge pages.
pub(crate) const ALIGN: usize = 2 << 20;

/// Makes arrays in this process whose pages can be evicted, under a manager's budget. A clone refers to
/// the same windows. All windows share one space, and one thread that serves their faults.
#[derive(Clone)]
pub struct Windows(Arc<Serving>);

pub(crate) struct Serving {
    space: TranslatedSpace,
    window: Arc<Window<Own>>,
    bell: Arc<Bell>,
    driver: Option<JoinHandle<io::Result<()>>>,
    /// A forked child has neither the windows nor the driver.
    canary: ForkCanary,
    /// Windows that are lent as blocks, by address.
    lent: Mutex<HashMap<usize, Reservation>>,
}

impl Windows {
    /// Returns whether this process may make windows on this machine.
    pub fn is_allowed() -> bool {
        Userfaultfd::of_this_process(Features::WRITE_PROTECT | Features::MOVE).is_ok()
    }

    /// Makes the windows of a manager, and starts the thread that serves them.
    ///
    /// # Errors
    /// `Unsupported` if the kernel does not allow userfaultfd, or is older than Linux 6.8 and cannot move
    /// pages. Userfaultfd is allowed to root, to a process with CAP_SYS_PTRACE, to a user who may open
    /// `/dev/userfaultfd`, and to everyone if `vm.unprivileged_userfaultfd` is 1. `System` if no descriptors
    /// or threads are left. `ForkedChild` if the manager belongs to the parent of this process.
    pub fn new(manager: &Manager) -> octavo::Result<Self> {
        let _inside = Inside::enter();
        let system = |error: io::Error| refused("windows cannot be made", &error);
        let canary = ForkCanary::new().map_err(system)?;
        let window = Arc::new(Window::new(Own::new().map_err(|error| not_allowed(&error))?));
        let translation: Arc<dyn octavo::translation::Translation> = window.clone();
        let space = manager.translated_space("windows", translation)?;
        let bell = Bell::new().map_err(system)?;
        let (served_space, served, heard) = (space.clone(), Arc::clone(&window), Arc::clone(&bell));
        let thread = std::thread::Builder::new().name("octavo-windows".into());
        let driver = thread.spawn(move || {
            let events = served.reach().faults().as_fd();
            Driver::new(&served_space, &served, events, heard, EndsProcess).run()
        });
        let driver = driver.map_err(system)?;
        let (driver, lent) = (Some(driver), Mutex::default());
        Ok(Self(Arc::new(Serving { space, window, bell, driver, canary, lent })))
    }

    /// Makes an array of `len` elements whose bytes are all zero. It takes no memory until it is touched.
    ///
    /// # Errors
    /// `System` if no addresses are left. `OutOfMemory` if the budget has no room for the table.
    /// `InvalidRange` if the elements are aligned to more than 2 MiB, or together have 2^63 bytes or more.
    pub fn vec<T: FromBytes + IntoBytes>(&self, len: usize) -> octavo::Result<WindowVec<T>> {
        let too_long =
            || Error::new(ErrorKind::InvalidRange, "an array has fewer than 2^63 bytes; make a shorter one");
        let bytes = len
            .checked_mul(size_of::<T>())
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(too_long)?;
        if align_of::<T>() > ALIGN {
            let message = "windows are aligned to 2 MiB; take elements that need no more";
            return Err(Error::new(ErrorKind::InvalidRange, message));
        }
        let range = MappedRange::new(&self.0, bytes)?;
        Ok(WindowVec { start: range.start().cast(), len, _range: range })
    }

    /// Like [`Windows::vec`], as a boxed array.
    ///
    /// # Errors
    /// The errors of [`Windows::vec`].
    pub fn boxed<T: FromBytes + IntoBytes>(&self, len: usize) -> octavo::Result<WindowBox<[T]>> {
        self.vec(len).map(WindowBox)
    }

    /// Returns whether the windows belong to this process, not to the parent that forked it.
    pub(crate) fn are_here(&self) -> bool {
        self.0.canary.is_original_process()
    }

    /// Makes a window of at least `bytes` bytes, for an allocator. Fails in a forked child.
    pub(crate) fn lend(&self, bytes: usize) -> octavo::Result<NonNull<[u8]>> {
        if !self.are_here() {
            return Err(Error::new(
                ErrorKind::ForkedChild,
                "a forked child has no windows; make some with a manager of its own",
            ));
        }
        let _inside = Inside::enter();
        let memory = self.0.open(bytes)?;
        let block = NonNull::slice_from_raw_parts(memory.base(), memory.len());
        self.0.lent.lock().expect("nobody panics here").insert(block.addr().get(), memory);
        Ok(block)
    }

    /// Resizes a block in a window from `old_bytes` to `bytes`. Returns false if the window is too short.
    /// Frees whole pages that are no longer needed. Only the owner of the block may call this.
    pub(crate) fn resize(&self, block: NonNull<u8>, old_bytes: usize, bytes: usize) -> bool {
        if !self.are_here() {
            return false;
        }
        let _inside = Inside::enter();
        let longest = {
            let lent = self.0.lent.lock().expect("nobody panics here");
            lent.get(&block.addr().get()).map_or(0, Reservation::len)
        };
        if bytes > longest {
            return false;
        }
        let pages = |bytes: usize| bytes.next_multiple_of(PAGE_BYTES);
        if let Some(excess @ 1..) = pages(old_bytes).checked_sub(pages(bytes)) {
            let start = block.addr().get() + pages(bytes);
            // Pages that cannot be freed cost memory until the window ends.
            let _ = self.0.space.advise(start as u64, excess as u64, Advice::Free);
        }
        true
    }

    /// Turns the windows into a raw pointer. They then live until [`Windows::from_raw`].
    pub(crate) fn into_raw(self) -> *mut Serving {
        Arc::into_raw(self.0).cast_mut()
    }

    /// Turns a raw pointer back into windows.
    ///
    /// # Safety
    /// The pointer is from [`Windows::into_raw`], and this is its only use, unless the returned value is
    /// never dropped.
    pub(crate) unsafe fn from_raw(raw: *mut Serving) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { Arc::from_raw(raw) })
    }

    /// Ends a window that was lent. Does nothing in a forked child, which has no windows: the parent's lock
    /// may be held for ever there.
    pub(crate) fn take_back(&self, block: NonNull<u8>) {
        if !self.are_here() {
            return;
        }
        let _inside = Inside::enter();
        let memory = self.0.lent.lock().expect("nobody panics here").remove(&block.addr().get());
        if let Some(memory) = memory {
            self.0.close(memory);
        }
    }

    /// Returns the space behind the windows. Its addresses are those of this process: handles and pins
    /// access the same bytes.
    ///
    /// # Safety
    /// Calls on the space affect the arrays, too. While an array is borrowed, nothing may be stored to it.
    /// While it lives, no part of it may be unmapped, freed, forgotten or protected.
    pub unsafe fn space(&self) -> &Space {
        &self.0.space
    }

    /// Returns the memory and swap that the windows use.
    ///
    /// # Errors
    /// The errors of [`Space::stats`].
    pub fn stats(&self) -> octavo::Result<SpaceStats> {
        self.0.space.stats()
    }
}

impl fmt::Debug for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Windows").field(&self.0.space).finish()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if !self.canary.is_original_process() {
            // A forked child has no such thread to wait for.
            std::mem::forget(self.driver.take());
            return;
        }
        let _inside = Inside::enter();
        self.bell.end();
        if let Some(driver) = self.driver.take() {
            // A panic in the driver has been printed.
            let _ = driver.join();
        }
    }
}

/// Ends the process if a page cannot be had: the thread that needs the page cannot continue, and no error can
/// reach it.
struct EndsProcess;

impl Listener for EndsProcess {
    fn forked(&mut self, _: std::os::fd::OwnedFd) {}

    fn unknown(&mut self, _: u64) -> bool {
        false
    }

    fn changed(&mut self, _: u64, _: u64) {}

    fn is_mapped(&self, _: u64, _: u64) -> bool {
        false
    }

    fn unmapped(&mut self, _: u64, _: u64) {}

    fn moved(&mut self, _: u64, _: u64, _: u64) {}

    fn failed(&mut self, address: u64, error: Error) -> bool {
        eprintln!("octavo: the page at {address:#x} of a window cannot be had, so the process ends: {error}");
        std::process::abort();
    }

    fn lost(&mut self, error: Error) {
        eprintln!("octavo: the windows cannot be served any more, so the process ends: {error}");
        std::process::abort();
    }

    fn counted(&mut self, _: Served) {}
}

/// Makes the error that says why this process has no userfaultfd.
fn not_allowed(error: &io::Error) -> Error {
    if matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM)) {
        return refused("windows cannot be made", error);
    }
    let message = format!(
        "windows are not allowed here: {error}; run as root, with CAP_SYS_PTRACE or with the right to /dev/userfaultfd, or set \
         vm.unprivileged_userfaultfd to 1, on Linux 6.8 or later"
    );
    Error::new(ErrorKind::Unsupported, message)
}

/// Makes the error that says what the kernel has refused. It names the limit that may be the reason, with its
/// value.
fn refused(what: &str, error: &io::Error) -> Error {
    let limit_of = |resource| getrlimit(resource).current;
    let reason = match Errno::from_io_error(error) {
        Some(Errno::MFILE) => limit_of(Resource::Nofile)
            .map(|most| format!("this process may have {most} open files (RLIMIT_NOFILE, `ulimit -n`)")),
        Some(Errno::NOMEM) => limit_of(Resource::As).map(|most| {
            format!("this process may have {} of addresses (RLIMIT_AS, `ulimit -v`)", bytes_for_people(most))
        }),
        Some(Errno::AGAIN) => limit_of(Resource::Nproc).map(|most| {
            format!("this user may have {most} processes (RLIMIT_NPROC, `ulimit -u`), threads included")
        }),
        _ => None,
    };
    let remedy = match reason {
        Some(reason) => format!("{reason}: raise that limit"),
        None => "raise the limits of this process on addresses, descriptors and threads (`ulimit -a`)".into(),
    };
    Error::new(ErrorKind::System, format!("{what}: {error}; {remedy}"))
}

/// Addresses of a window, mapped in its space while this lives.
struct MappedRange {
    memory: Option<Reservation>,
    serving: Arc<Serving>,
}

impl MappedRange {
    fn new(serving: &Arc<Serving>, bytes: usize) -> octavo::Result<Self> {
        Ok(Self { memory: Some(serving.open(bytes)?), serving: Arc::clone(serving) })
    }

    fn start(&self) -> NonNull<u8> {
        self.memory.as_ref().expect("it goes with the range").base()
    }
}

impl Drop for MappedRange {
    fn drop(&mut self) {
        self.memory.take().into_iter().for_each(|memory| self.serving.close(memory));
    }
}

impl Serving {
    /// Reserves addresses, maps them in the space, and watches them.
    fn open(&self, bytes: usize) -> octavo::Result<Reservation> {
        let _inside = Inside::enter();
        let system = |error: io::Error| refused(&format!("a window of {bytes} bytes cannot be had"), &error);
        let memory = Reservation::new(bytes, ALIGN).map_err(system)?;
        memory.advise_backing(0..memory.len(), Backing::BasePages);
        // A forked child must not have the window: it would read zeros for pages that are out.
        memory.exclude_from_fork().map_err(system)?;
        let (start, len) = (memory.base().as_ptr() as u64, memory.len() as u64);
        self.space.map_at(start, len, RegionOptions::default())?;
        // SAFETY: the range is the reservation just made. Its users wait for its pages, which the driver
        // serves.
        match unsafe { self.window.reach().watch(start, len) } {
            Ok(()) => Ok(memory),
            Err(error) => {
                self.close(memory);
                Err(system(error))
            }
        }
    }

    fn close(&self, memory: Reservation) {
        let _inside = Inside::enter();
        let (start, len) = (memory.base().as_ptr() as u64, memory.len() as u64);
        // The pages are no longer in use, so there is no need to remove them one by one. They go with the
        // reservation.
        if let Err(error) = self.space.forget_mapping(start, len) {
            // Pinned pages keep the range. Its addresses must not be reused.
            eprintln!("octavo: a window at {start:#x} stays mapped: {error}");
            std::mem::forget(memory);
        }
    }
}

/// An array of plain data in a window, from [`Windows::vec`]. It dereferences to a slice.
pub struct WindowVec<T> {
    start: NonNull<T>,
    len: usize,
    _range: MappedRange,
}

// SAFETY: the array owns its elements, as a Vec does.
unsafe impl<T: Send> Send for WindowVec<T> {}
// SAFETY: shared access gives out shared references only, as a Vec does.
unsafe impl<T: Sync> Sync for WindowVec<T> {}

impl<T: FromBytes + IntoBytes> Deref for WindowVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the range has room for `len` elements, is aligned to 2 MiB and lives as long as `self`. Any
        // bytes are a T. Pages go out and come back with their bytes, in one step each, as under kernel swap.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: FromBytes + IntoBytes> DerefMut for WindowVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T> fmt::Debug for WindowVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WindowVec")
            .field("start", &self.start)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// A boxed array in a window, from [`Windows::boxed`].
#[derive(Debug)]
pub struct WindowBox<T: ?Sized + Boxed>(T::Vec);

/// Names the types that a [`WindowBox`] may hold: arrays of plain data.
pub trait Boxed {
    /// The array behind the box.
    type Vec: Deref<Target = Self> + DerefMut + fmt::Debug;
}

impl<T: FromBytes + IntoBytes> Boxed for [T] {
    type Vec = WindowVec<T>;
}

impl<T: ?Sized + Boxed> Deref for WindowBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized + Boxed> DerefMut for WindowBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
