//! Memory for simulations: a simulation's allocations lie at the same places in every run.
//!
//! A simulated machine's behaviour depends on which words share a cache line. With the process's allocator,
//! the places of words depend on everything that the process did before, and differ between machines. A
//! program whose allocator is [`SimAllocator`] gives each simulation a *heap* of its own. A heap begins at
//! the start of a page, and returns the same places for the same calls. The system's allocator still serves
//! everything else.
//!
//! A heap has a list of free blocks for each size, youngest first, and cuts new blocks off its end. A heap
//! returns to the system when its simulation has ended and none of its blocks is in use. A failed simulation
//! keeps its heap, since its threads never release their blocks.
//!
//! A simulation that gets no heap, or needs more memory than a heap has, would differ from run to run. So
//! such a simulation is refused.
//!
//! Cost outside of simulations: an allocation reads one thread-local word. A release reads one word that all
//! threads share, and one more for each heap, up to the most heaps that ever existed at the same time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Bytes of addresses of a heap.
const HEAP_BYTES: usize = 1 << 30;
/// The alignment of a heap, and the largest alignment that it serves.
const HEAP_ALIGN: usize = 4096;
/// The most heaps at a time, including those of failed simulations.
const MOST_HEAPS: usize = 1024;
/// Blocks are multiples of this.
const GRAIN: usize = 16;
/// A larger block comes from the system, which maps each of them separately, at the start of a page.
const LARGEST: usize = HEAP_BYTES / 2;
/// The largest block that is a plain multiple of [`GRAIN`]. Larger ones, and those with a larger alignment,
/// are powers of two.
const LARGEST_SMALL: usize = 1024;
const SMALL_CLASSES: usize = LARGEST_SMALL / GRAIN;
const CLASSES: usize = SMALL_CLASSES + usize::BITS as usize;

thread_local! {
    /// The heap of the simulation that runs on this thread.
    static HEAP: Cell<*mut HeapHeader> = const { Cell::new(ptr::null_mut()) };
}

/// All heaps. Only the first `LISTED` places of the list have ever been in use.
static HEAPS: [AtomicPtr<HeapHeader>; MOST_HEAPS] = [const { AtomicPtr::new(ptr::null_mut()) }; MOST_HEAPS];
static LISTED: AtomicUsize = AtomicUsize::new(0);

/// The allocator of programs that simulate.
///
/// ```
/// #[global_allocator]
/// static MEMORY: octavo_sim::SimAllocator = octavo_sim::SimAllocator;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SimAllocator;

/// The header of a heap, at its beginning.
struct HeapHeader {
    is_locked: AtomicBool,
    state: Cell<State>,
}

#[derive(Clone, Copy)]
struct State {
    /// The first free block of each class. A free block's first word points to the next.
    free: [*mut u8; CLASSES],
    /// Bytes that have been cut off the end, free blocks included.
    used: usize,
    /// Blocks in use, plus one for the simulation.
    live: usize,
    /// Whether the heap had no room for a block.
    is_short: bool,
}

/// Returns a block's class and its bytes, or `None` if the system has to serve it.
fn class_of(layout: Layout) -> Option<(usize, usize)> {
    let bytes = layout.size().max(GRAIN).checked_next_multiple_of(GRAIN)?;
    if bytes <= LARGEST_SMALL && layout.align() <= GRAIN {
        return Some((bytes / GRAIN - 1, bytes));
    }
    let bytes = bytes.max(layout.align()).checked_next_power_of_two()?;
    (layout.align() <= HEAP_ALIGN && bytes <= LARGEST)
        .then(|| (SMALL_CLASSES + bytes.trailing_zeros() as usize, bytes))
}

const fn whole() -> Layout {
    match Layout::from_size_align(HEAP_BYTES, HEAP_ALIGN) {
        Ok(layout) => layout,
        Err(_) => panic!("a heap has a layout"),
    }
}

impl HeapHeader {
    /// Calls `change` with the state, under the lock.
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        while self.is_locked.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        let mut state = self.state.get();
        let result = change(&mut state);
        self.state.set(state);
        self.is_locked.store(false, Ordering::Release);
        result
    }

    fn base(&self) -> *mut u8 {
        ptr::from_ref(self).cast_mut().cast()
    }

    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        let (class, bytes) = class_of(layout)?;
        self.with(|state| {
            let block = state.free[class];
            if !block.is_null() {
                // SAFETY: a free block is at least a word long and aligned for one, and its first word was
                // written when it was freed. The lock is held, so nobody else has it.
                state.free[class] = unsafe { block.cast::<*mut u8>().read() };
                state.live += 1;
                return NonNull::new(block);
            }
            let align = if class < SMALL_CLASSES { GRAIN } else { bytes.min(HEAP_ALIGN) };
            let at = state.used.next_multiple_of(align);
            if at + bytes > HEAP_BYTES {
                state.is_short = true;
                return None;
            }
            state.used = at + bytes;
            state.live += 1;
            // SAFETY: the block lies within the heap (just compared).
            NonNull::new(unsafe { self.base().add(at) })
        })
    }

    /// Takes a block back. Returns whether it was the last one in use.
    fn free(&self, block: *mut u8, layout: Layout) -> bool {
        let Some((class, _)) = class_of(layout) else { return false };
        self.with(|state| {
            // SAFETY: as in `allocate`; the owner gives the block up.
            unsafe { block.cast::<*mut u8>().write(state.free[class]) };
            state.free[class] = block;
            state.live -= 1;
            state.live == 0
        })
    }
}

/// Returns the heap that contains this address.
fn heap_of(address: *mut u8) -> Option<NonNull<HeapHeader>> {
    // Relaxed: the heap was listed before any address in it was handed out, and the caller got the address in
    // a way that orders the two.
    let listed = &HEAPS[..LISTED.load(Ordering::Relaxed)];
    let mut heaps = listed.iter().filter_map(|heap| NonNull::new(heap.load(Ordering::Relaxed)));
    heaps.find(|heap| address.addr().wrapping_sub(heap.addr().get()) < HEAP_BYTES)
}

/// Returns the heap to the system.
fn retire(heap: NonNull<HeapHeader>) {
    if let Some(slot) = HEAPS.iter().find(|slot| slot.load(Ordering::Relaxed) == heap.as_ptr()) {
        slot.store(ptr::null_mut(), Ordering::Relaxed);
    }
    // SAFETY: `Scope::enter` allocated the heap with this layout. Nothing in it is in use, so nobody has an
    // address in it.
    unsafe { System.dealloc(heap.as_ptr().cast(), whole()) };
}

/// Why a simulation has no memory of its own. Memory from elsewhere would lie at other places in each run,
/// and the runs would differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoHeap {
    /// The process has no addresses left.
    NoAddresses,
    /// Too many simulations of this process run, or have failed and kept their memory.
    TooMany,
    /// The simulation needs more memory than a heap has.
    Full,
}

impl fmt::Display for NoHeap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gibibytes = HEAP_BYTES >> 30;
        match self {
            Self::NoAddresses => write!(
                f,
                "a simulation takes {gibibytes} GiB of addresses, which this process does not get; \
                 raise `ulimit -v`, or set vm.overcommit_memory to 0 or 1"
            ),
            Self::TooMany => write!(
                f,
                "{MOST_HEAPS} simulations of this process run, or have failed and left their memory; go on in a new process"
            ),
            Self::Full => write!(f, "the simulation needs more than {gibibytes} GiB; simulate less"),
        }
    }
}

impl std::error::Error for NoHeap {}

/// Keeps a simulation's heap in use on this thread.
#[derive(Debug)]
pub(crate) struct Scope(NonNull<HeapHeader>);

impl Scope {
    /// Gives a heap to the simulation that begins. Has no effect if the program uses another allocator.
    pub(crate) fn enter() -> Result<Self, NoHeap> {
        // SAFETY: the layout's size is not 0. The system gives the memory as it is touched.
        let heap =
            NonNull::new(unsafe { System.alloc(whole()) }.cast::<HeapHeader>()).ok_or(NoHeap::NoAddresses)?;
        let used = size_of::<HeapHeader>().next_multiple_of(HEAP_ALIGN);
        let state = Cell::new(State { free: [ptr::null_mut(); CLASSES], used, live: 1, is_short: false });
        // SAFETY: the memory is new, large enough, and aligned to a page.
        unsafe { heap.write(HeapHeader { is_locked: AtomicBool::new(false), state }) };
        let take = |slot: &AtomicPtr<HeapHeader>| {
            slot.compare_exchange(ptr::null_mut(), heap.as_ptr(), Ordering::Relaxed, Ordering::Relaxed)
        };
        let Some(place) = HEAPS.iter().position(|slot| take(slot).is_ok()) else {
            // SAFETY: allocated above, and known to nobody else.
            unsafe { System.dealloc(heap.as_ptr().cast(), whole()) };
            return Err(NoHeap::TooMany);
        };
        LISTED.fetch_max(place + 1, Ordering::Relaxed);
        HEAP.set(heap.as_ptr());
        Ok(Self(heap))
    }

    /// Fails if the heap has had no room for an allocation of the simulation.
    pub(crate) fn sufficed(&self) -> Result<(), NoHeap> {
        // SAFETY: as in `drop`.
        let is_short = unsafe { self.0.as_ref() }.with(|state| state.is_short);
        if is_short { Err(NoHeap::Full) } else { Ok(()) }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        HEAP.set(ptr::null_mut());
        // SAFETY: the heap lives at least until its count falls to 0, and this value holds one of the count.
        let is_last = unsafe { self.0.as_ref() }.with(|state| {
            state.live -= 1;
            state.live == 0
        });
        if is_last {
            retire(self.0);
        }
    }
}

// SAFETY: the system's allocator serves what this thread's heap does not, and keeps the contract. A block of
// a heap lies within the heap, is at least as large and as aligned as asked (`class_of`), and has one owner:
// it was either cut off the end, which only grows, or taken off a list under the heap's lock. A block returns
// to the heap that contains its address. A heap returns to the system when none of its blocks is in use and
// its simulation has ended; then no thread allocates from it.
unsafe impl GlobalAlloc for SimAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has no heap.
        if let Some(heap) = NonNull::new(HEAP.try_with(Cell::get).unwrap_or(ptr::null_mut())) {
            // SAFETY: a thread's heap lives as long as its simulation.
            if let Some(block) = unsafe { heap.as_ref() }.allocate(layout) {
                return block.as_ptr();
            }
        }
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match heap_of(block) {
            Some(heap) => {
                // SAFETY: a heap with a block in use lives.
                if unsafe { heap.as_ref() }.free(block, layout) {
                    retire(heap);
                }
            }
            // SAFETY: the block came from the system, with the caller's layout.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match HEAP.try_with(Cell::get) {
            Ok(heap) if !heap.is_null() => {
                // SAFETY: the caller's layout.
                let block = unsafe { self.alloc(layout) };
                if !block.is_null() {
                    // SAFETY: the block is at least that long, and has no other owner.
                    unsafe { block.write_bytes(0, layout.size()) };
                }
                block
            }
            // SAFETY: the caller's layout. The system knows which of its memory is zero.
            _ => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let is_in_heap = !HEAP.try_with(Cell::get).unwrap_or(ptr::null_mut()).is_null();
        if !is_in_heap && heap_of(block).is_none() {
            // SAFETY: the block came from the system, with the caller's layout, and stays there.
            return unsafe { System.realloc(block, layout, size) };
        }
        // SAFETY: the caller keeps the contract for sizes.
        let grown = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: the size is not 0, by the caller.
        let new = unsafe { self.alloc(grown) };
        if !new.is_null() {
            // SAFETY: both blocks are at least that long, and do not overlap. The caller gives up the old
            // one.
            unsafe {
                ptr::copy_nonoverlapping(block, new, layout.size().min(size));
                self.dealloc(block, layout);
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static MEMORY: SimAllocator = SimAllocator;

    fn offsets(sizes: &[usize]) -> Vec<usize> {
        let _scope = Scope::enter().unwrap();
        let base = HEAP.get().addr();
        assert_ne!(base, 0);
        let mut boxes: Vec<Vec<u8>> = Vec::new();
        let mut offsets = Vec::new();
        for size in sizes {
            boxes.push(vec![7; *size]);
            offsets.push(boxes[boxes.len() - 1].as_ptr().addr() - base);
            if size % 3 == 0 {
                boxes.swap_remove(boxes.len() / 2);
            }
        }
        assert!(boxes.iter().all(|bytes| bytes.iter().all(|byte| *byte == 7)));
        offsets
    }

    #[test]
    fn the_same_calls_get_the_same_places_whatever_came_before() {
        let sizes: Vec<usize> = (1..2000).map(|number| number * 37 % 5000 + 1).collect();
        let first = offsets(&sizes);
        let _before: Vec<Vec<u8>> = (1..100).map(|size| vec![1; size * 10]).collect();
        assert_eq!(first, offsets(&sizes));
    }

    #[test]
    fn blocks_are_apart_aligned_and_reused() {
        let _scope = Scope::enter().unwrap();
        let mut taken: Vec<(usize, usize)> = Vec::new();
        let mut blocks = Vec::new();
        for (size, align) in
            [(1, 1), (24, 8), (64, 64), (100, 128), (5000, 16), (1024, 16), (1025, 4096), (3, 2)]
        {
            let layout = Layout::from_size_align(size, align).unwrap();
            // SAFETY: the layout's size is not 0.
            let block = unsafe { MEMORY.alloc(layout) };
            assert!(block.addr().is_multiple_of(align));
            assert!(taken.iter().all(|(at, len)| block.addr() + size <= *at || at + len <= block.addr()));
            taken.push((block.addr(), size));
            blocks.push((block, layout));
        }
        // SAFETY: allocated above, with this layout.
        blocks.iter().for_each(|(block, layout)| unsafe { MEMORY.dealloc(*block, *layout) });
        let (last, layout) = blocks[2];
        // SAFETY: the layout's size is not 0.
        let again = unsafe { MEMORY.alloc(layout) };
        assert_eq!(again, last);
        // SAFETY: allocated just now.
        unsafe { MEMORY.dealloc(again, layout) };
    }

    #[test]
    fn a_heap_stays_until_the_last_block_is_given_back_by_whatever_thread() {
        let scope = Scope::enter().unwrap();
        let heap = NonNull::new(HEAP.get()).unwrap();
        let left = vec![5_u64; 100];
        drop(scope);
        assert_eq!(heap_of(left.as_ptr().cast_mut().cast()), Some(heap));
        std::thread::spawn(move || {
            assert!(left.iter().all(|word| *word == 5));
            let address = left.as_ptr().cast_mut().cast();
            drop(left);
            // The heap of another test may lie at this address by now, so the answer is not checked.
            let _ = heap_of(address);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_block_above_half_a_heap_comes_from_the_system() {
        let scope = Scope::enter().unwrap();
        let large = vec![0_u8; LARGEST + 1];
        assert_eq!(heap_of(large.as_ptr().cast_mut()), None);
        assert_eq!(scope.sufficed(), Ok(()));
    }

    #[test]
    fn a_heap_that_is_full_says_so() {
        let scope = Scope::enter().unwrap();
        // The blocks are never touched, so they take no memory.
        let _blocks: [Vec<u8>; 3] = std::array::from_fn(|_| Vec::with_capacity(LARGEST));
        assert_eq!(scope.sufficed(), Err(NoHeap::Full));
    }

    #[test]
    fn blocks_grow_and_shrink_across_the_ends_of_simulations() {
        let mut outside = vec![1_u8; 100];
        let scope = Scope::enter().unwrap();
        outside.resize(1000, 2);
        let mut inside = vec![3_u64; 10];
        inside.extend([4; 1000]);
        drop(scope);
        inside.extend([5; 1000]);
        inside.truncate(1500);
        inside.shrink_to_fit();
        assert!(outside[..100].iter().all(|byte| *byte == 1) && outside[100..].iter().all(|byte| *byte == 2));
        let expected = [3; 10].into_iter().chain([4; 1000]).chain([5; 490]);
        assert!(inside.into_iter().eq(expected));
    }
}
