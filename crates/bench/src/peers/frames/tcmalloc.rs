//! tcmalloc (gperftools), loaded at run time so that it does not become the program's allocator.
//!
//! The bench measures its `memalign` and `free` through function pointers, otherwise like the other general
//! allocators.

use std::ffi::{CStr, c_char, c_int, c_void};

use libloading::Library;

use super::{FrameBench, PAGE_SHIFT, PageBlocks, PeerBlock};
use crate::peers::compare::Side;

pub(super) const NAME: &str = "tcmalloc (gperftools)";

/// The library's names: as installed for running, then as installed for linking.
const LIBRARIES: [&str; 4] =
    ["libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libtcmalloc_minimal.so", "libtcmalloc.so"];

pub(super) fn side(_arena_bytes: usize) -> Side<dyn FrameBench> {
    let loaded = Tcmalloc::load();
    let version = loaded.as_ref().ok().and_then(Tcmalloc::version);
    super::side(NAME, version, loaded)
}

struct Tcmalloc {
    memalign: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
    version: Option<unsafe extern "C" fn(*mut c_int, *mut c_int, *mut *const c_char) -> *const c_char>,
}

impl Tcmalloc {
    fn load() -> Result<Self, String> {
        // SAFETY: loading runs the library's constructors, which set up its own state. Its symbols stay local
        // to the handle.
        let library = LIBRARIES.iter().find_map(|name| unsafe { Library::new(*name) }.ok());
        let library = library.ok_or("install libtcmalloc-minimal4 (Debian, Ubuntu) or gperftools")?;
        // Thread-exit hooks tear down its threads' caches, so the library can never be unloaded.
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: these are the C library's own signatures.
        let symbols = unsafe { (library.get(b"memalign"), library.get(b"free"), library.get(b"tc_version")) };
        match symbols {
            (Ok(memalign), Ok(free), version) => {
                Ok(Self { memalign: *memalign, free: *free, version: version.ok().map(|version| *version) })
            }
            _ => Err("the library found has no memalign and free".to_owned()),
        }
    }

    fn version(&self) -> Option<String> {
        // SAFETY: the call allows null pointers for the parts that are not wanted. It returns a static
        // string.
        let text = unsafe {
            let text = self.version?(std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
            CStr::from_ptr(text)
        };
        Some(text.to_string_lossy().into_owned())
    }
}

impl PageBlocks for Tcmalloc {
    const BYTES_PER_STEP: usize = 1;

    #[inline]
    fn alloc(&self, order: u32) -> Option<PeerBlock> {
        let bytes = 1 << (PAGE_SHIFT + order);
        // SAFETY: the alignment is a power of two.
        let address = unsafe { (self.memalign)(bytes, bytes) };
        (!address.is_null()).then(|| PeerBlock(address.expose_provenance()))
    }

    #[inline]
    unsafe fn free(&self, block: PeerBlock, _order: u32) {
        // SAFETY: by the caller's promise `memalign` returned this address.
        unsafe { (self.free)(std::ptr::with_exposed_provenance_mut(block.0)) };
    }
}
