//! The global allocator of a program whose large objects may lie in windows.
//!
//! ```
//! use octavo_window::{WindowAlloc, Windows};
//!
//! #[global_allocator]
//! static ALLOCATOR: WindowAlloc = WindowAlloc::new();
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # if Windows::is_allowed() {
//! let manager = octavo::Manager::builder().budget_bytes(64 << 20).build()?;
//! let windows = Windows::new(&manager)?;
//! let numbers: Vec<u64> = windows.large_objects(|| (0..16 << 20).collect()); // 128 MiB
//! assert_eq!(numbers[12_345_678], 12_345_678);
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! This allocator is for collections that take no allocator of their own, such as the standard library's. All
//! objects come from the allocator below, until a thread asks for windows by [`Windows::large_objects`].
//!
//! **The place of an object.**
//!
//! | an object of at least [`LEAST_BYTES`], aligned to at most 2 MiB | lies |
//! |---|---|
//! | made in a scope of `large_objects`, by the thread of the scope | in a window of its own |
//! | grown in such a scope, if it lay outside windows before | in a window |
//! | in a window, resized anywhere | in the same windows, and in the same window while it fits |
//! | any other; smaller objects, and an object that shrinks below that size | in the allocator below |
//!
//! A scope belongs to one thread. Threads that are started inside the scope do not belong to it, nor do the
//! threads of a pool.
//!
//! **Invariants.**
//!
//! - *The engine never waits for itself.* Its own threads are in no scope. A thread that calls the engine
//!   gets memory from below until the call returns (`Inside`). Each call from this allocator to the engine is
//!   marked in the same way.
//! - *A free finds its allocator by the address* (`blocks.rs`). So any thread may free, at any time, in a
//!   scope or not.
//! - *A block keeps its windows alive*, with their thread and their manager. The last free ends windows whose
//!   owner dropped them before.
//! - *Nothing unwinds from here.* A panic of the engine ends the process.
//!
//! **Out of memory.** If the kernel has no addresses, or the budget has no room for the table, the allocator
//! returns null. So `try_reserve` returns an error, and other growth ends the process. Falling back to the
//! allocator below would break the budget that the program has asked for.
//!
//! **Fork.** A forked child has no windows. It gets memory from below, even in a scope. Freeing one of the
//! parent's blocks does nothing there. Touching one is a fault that ends the child, as with any window.
//!
//! **Locking.** The allocator has no lock. The windows have one for their blocks, and the engine has its own.
//! No lock is held while a thread touches a window's memory.
//!
//! **Cost.** An object below [`LEAST_BYTES`] costs one more comparison than in the allocator below. A large
//! object outside windows costs loads of three thread-local and global words. An object in a window costs
//! some system calls, as an array in a window does. Growth beyond its last page costs a copy, which brings in
//! bytes that are out.
//!
//! **What it does not do.** It cannot know which memory the threads that serve faults will use. Keep these
//! objects out of the scope: a device of your own, and a library's process-wide data that these threads
//! share, such as a log. If such a thread touches a window, it waits for itself.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::{self, NonNull};

use octavo_platform::Inside;

use crate::allocator::blocks;
use crate::allocator::{LEAST_BYTES, is_large};
use crate::windows::{ALIGN, Windows};

thread_local! {
    /// The windows that this thread's large objects come from. It needs no memory and no destructor, so it
    /// lives as long as the thread.
    static LENDER: Cell<*const Windows> = const { Cell::new(ptr::null()) };
}

/// An allocator that puts large objects in windows if a thread has asked for it, and all others in `A`.
///
/// Make it the global allocator, and call [`Windows::large_objects`].
#[derive(Debug, Default)]
pub struct WindowAlloc<A = System> {
    below: A,
}

impl WindowAlloc {
    /// Makes the allocator, above the system's.
    pub const fn new() -> Self {
        Self::over(System)
    }
}

impl<A> WindowAlloc<A> {
    /// Makes the allocator, above another one.
    pub const fn over(below: A) -> Self {
        Self { below }
    }
}

impl Windows {
    /// Calls `act`, and puts the large objects that this thread makes meanwhile in these windows. The
    /// program's global allocator must be a [`WindowAlloc`]. The objects may live longer, and may move to
    /// other threads.
    ///
    /// Of nested scopes, the innermost counts. Do not make a device of your own for the engine here: its
    /// memory must not lie in a window.
    pub fn large_objects<T>(&self, act: impl FnOnce() -> T) -> T {
        struct Before(*const Windows);
        impl Drop for Before {
            fn drop(&mut self) {
                LENDER.set(self.0);
            }
        }
        Inside::ask();
        let _before = Before(LENDER.replace(self));
        act()
    }
}

/// Returns the windows for a large object of this thread.
fn lender() -> Option<Windows> {
    if Inside::is_here() {
        return None;
    }
    // SAFETY: the pointer is null, or `large_objects` on this thread borrows the windows until it has
    // restored the earlier pointer.
    let windows = unsafe { LENDER.get().as_ref() }?;
    windows.are_here().then(|| windows.clone())
}

/// Calls `act` inside the engine. Aborts on a panic, since an allocator must not unwind.
fn in_the_engine<T>(act: impl FnOnce() -> T) -> T {
    struct Unwinds;
    impl Drop for Unwinds {
        fn drop(&mut self) {
            std::process::abort();
        }
    }
    let _inside = Inside::enter();
    let unwinds = Unwinds;
    let value = act();
    std::mem::forget(unwinds);
    value
}

/// Makes a block in a window. Returns null if that fails.
#[cold]
fn lend(windows: Windows, bytes: usize) -> *mut u8 {
    in_the_engine(|| {
        let Ok(block) = windows.lend(bytes) else { return ptr::null_mut() };
        let block = block.cast::<u8>();
        match blocks::note(block, windows) {
            Ok(()) => block.as_ptr(),
            Err(windows) => {
                windows.take_back(block);
                ptr::null_mut()
            }
        }
    })
}

/// Frees a block if it lies in a window. Returns whether it does.
///
/// # Safety
/// The caller owns the block.
#[cold]
unsafe fn take_back(block: NonNull<u8>) -> bool {
    // SAFETY: the caller owns the block, and it is freed no earlier than below.
    let Some(windows) = (unsafe { blocks::windows_of(block) }) else { return false };
    if windows.are_here() {
        in_the_engine(|| {
            // The block counted as this clone of the windows. If it is the last clone, the windows end here.
            if let Some(windows) = blocks::forget(block) {
                windows.take_back(block);
            }
        });
    }
    true
}

impl<A: GlobalAlloc> WindowAlloc<A> {
    /// Resizes an object that is large, or becomes large.
    ///
    /// # Safety
    /// The conditions of [`GlobalAlloc::realloc`].
    #[cold]
    unsafe fn realloc_large(&self, block: NonNull<u8>, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller owns the block, and it is freed no earlier than at the end of this function.
        let windows = unsafe { blocks::windows_of(block) };
        let stays_large = bytes >= LEAST_BYTES;
        let new = match &windows {
            Some(windows) if stays_large && windows.are_here() && !Inside::is_here() => {
                if in_the_engine(|| windows.resize(block, layout.size(), bytes)) {
                    return block.as_ptr();
                }
                lend(Windows::clone(windows), bytes)
            }
            Some(_) => {
                // SAFETY: the caller promises a size above zero that fits the alignment.
                unsafe { self.alloc(Layout::from_size_align_unchecked(bytes, layout.align())) }
            }
            None => match lender() {
                Some(windows) if stays_large && bytes > layout.size() && layout.align() <= ALIGN => {
                    lend(windows, bytes)
                }
                // SAFETY: the block is from the allocator below, with this layout, and the caller promises a
                // valid size.
                _ => return unsafe { self.below.realloc(block.as_ptr(), layout, bytes) },
            },
        };
        if !new.is_null() {
            // SAFETY: both blocks have at least this many bytes, and are distinct. The caller gives up the
            // old one.
            unsafe {
                ptr::copy_nonoverlapping(block.as_ptr(), new, layout.size().min(bytes));
                self.dealloc(block.as_ptr(), layout);
            }
        }
        new
    }
}

// SAFETY: a block is a window that nobody else has, or is from the allocator below. A window is as long as
// requested, aligned to 2 MiB, and lives until the block is freed: the block counts as a clone of its
// windows. Its bytes stay the same while pages go out and come back. A free goes to the allocator that the
// block came from, according to the table of blocks. No call unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for WindowAlloc<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(layout)
            && let Some(windows) = lender()
        {
            return lend(windows, layout.size());
        }
        // SAFETY: the caller's promise.
        unsafe { self.below.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(layout)
            && let Some(windows) = lender()
        {
            // A fresh window is zero.
            return lend(windows, layout.size());
        }
        // SAFETY: the caller's promise.
        unsafe { self.below.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_large(layout)
            && let Some(block) = NonNull::new(block)
            // SAFETY: the caller gives up the block, which it owns.
            && unsafe { take_back(block) }
        {
            return;
        }
        // SAFETY: the caller's promise, and the block lies in no window.
        unsafe { self.below.dealloc(block, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if layout.size().max(bytes) >= LEAST_BYTES
            && let Some(block) = NonNull::new(block)
        {
            // SAFETY: the caller's promise.
            return unsafe { self.realloc_large(block, layout, bytes) };
        }
        // SAFETY: the caller's promise, and no block of this size lies in a window.
        unsafe { self.below.realloc(block, layout, bytes) }
    }
}
