//! LLFree, from a shared library that the environment names.
//!
//! LLFree is published as source and not as a package, so nothing here builds it. A library over any build of
//! it can take part in the comparison. It exports the following with C linkage, and `OCTAVO_PEER_LLFREE`
//! holds its path:
//!
//! ```c
//! // An allocator of `frames` free 4 KiB frames with reservations for `cores` cores; null on failure.
//! void *octavo_peer_llfree_init(uint64_t frames, uint32_t cores);
//! // First frame of a block of 2^order frames, allocated on `core`; UINT64_MAX where there is none.
//! uint64_t octavo_peer_llfree_alloc(void *allocator, uint32_t core, uint32_t order);
//! // 0 when the block was freed.
//! int32_t octavo_peer_llfree_free(void *allocator, uint32_t core, uint64_t frame, uint32_t order);
//! // Optional: a static string that says what was built.
//! const char *octavo_peer_llfree_version(void);
//! ```
//!
//! The bench measures these calls through function pointers. The argument `core` is the worker's number. A
//! kernel would get the number of the core at no cost, too. LLFree keeps its metadata outside the frames and
//! touches none of their memory.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;

use libloading::Library;
use octavo_measure::workers;

use super::{FrameBench, PAGE_SHIFT, PageBlocks, PeerBlock};
use crate::peers::compare::{Side, THREADS};

pub(super) const NAME: &str = "LLFree";

/// The environment variable that holds the library's path.
const VARIABLE: &str = "OCTAVO_PEER_LLFREE";

pub(super) fn side(arena_bytes: usize) -> Side<dyn FrameBench> {
    match LlFree::load(arena_bytes) {
        Ok((peer, version)) => super::side(NAME, version, Ok(peer)),
        Err(missing) => super::side::<LlFree>(NAME, None, Err(missing)),
    }
}

struct LlFree {
    allocator: NonNull<c_void>,
    alloc: unsafe extern "C" fn(*mut c_void, u32, u32) -> u64,
    free: unsafe extern "C" fn(*mut c_void, u32, u64, u32) -> i32,
}

// SAFETY: LLFree is made to be called from any number of cores at once.
unsafe impl Sync for LlFree {}

impl LlFree {
    fn load(arena_bytes: usize) -> Result<(Self, Option<String>), String> {
        let path = std::env::var_os(VARIABLE).ok_or_else(|| {
            format!("set {VARIABLE} to a library with the calls that frames/llfree.rs documents")
        })?;
        // SAFETY: the person who set the variable vouches for the library.
        let library = unsafe { Library::new(&path) }.map_err(|error| format!("{VARIABLE}: {error}"))?;
        let library: &'static Library = Box::leak(Box::new(library));
        let absent = |error: libloading::Error| format!("{VARIABLE}: {error}");
        // SAFETY: the signatures are the signatures of the documented interface.
        unsafe {
            let init =
                library.get::<unsafe extern "C" fn(u64, u32) -> *mut c_void>(b"octavo_peer_llfree_init");
            let version =
                library.get::<unsafe extern "C" fn() -> *const c_char>(b"octavo_peer_llfree_version");
            let alloc = *library.get(b"octavo_peer_llfree_alloc").map_err(absent)?;
            let free = *library.get(b"octavo_peer_llfree_free").map_err(absent)?;
            let frames = (arena_bytes >> PAGE_SHIFT) as u64;
            let allocator = init.map_err(absent)?(frames, THREADS[THREADS.len() - 1] as u32);
            let allocator = NonNull::new(allocator).ok_or("octavo_peer_llfree_init failed")?;
            let version =
                version.ok().map(|version| CStr::from_ptr(version()).to_string_lossy().into_owned());
            Ok((Self { allocator, alloc, free }, version))
        }
    }
}

impl PageBlocks for LlFree {
    const BYTES_PER_STEP: usize = 1 << PAGE_SHIFT;

    #[inline]
    fn alloc(&self, order: u32) -> Option<PeerBlock> {
        // SAFETY: the allocator is initialised and never freed, and there are fewer workers than its cores.
        let frame = unsafe { (self.alloc)(self.allocator.as_ptr(), workers::index(), order) };
        (frame != u64::MAX).then_some(PeerBlock(frame as usize))
    }

    #[inline]
    unsafe fn free(&self, block: PeerBlock, order: u32) {
        // SAFETY: as above. By the caller's promise the block is allocated with this order.
        let answer = unsafe { (self.free)(self.allocator.as_ptr(), workers::index(), block.0 as u64, order) };
        assert_eq!(answer, 0, "LLFree refused to free a block that it had handed out");
    }
}
