//! Packing and unpacking one page, and the scratch memory for both.
//!
//! Scratch is taken for one page and given back, usually on the same CPU. If no scratch is idle, new scratch
//! is made and charged to the budget. So there is as much scratch as threads have ever needed at the same
//! time. No lock is held while a page is packed.

use crossbeam_utils::CachePadded;
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use zstd::bulk::{Compressor, Decompressor};

use super::classes::MAX_PACKED_BYTES;
use crate::budget::Budget;
use crate::config::Compression;
use crate::sync::{Arc, AtomicU64, Cpus, Mutex, Ordering};
use crate::units::PAGE_BYTES;

/// The room for a page that does not shrink. LZ4 needs the whole room before it begins.
const OUT_BYTES: usize = PAGE_BYTES + PAGE_BYTES / 8;
/// The greatest level without Huffman coding of literals. Huffman tables would take a quarter to nearly half
/// of the time, and save 3 to 22 % of the size.
const ZSTD_LEVEL: i32 = -1;
/// The memory that Zstandard takes for both directions at this level and page size, rounded up.
const ZSTD_CONTEXT_BYTES: u64 = 192 << 10;
const LZ4_TABLE_BYTES: u64 = 8 << 10;

enum CompressionMethod {
    Lz4(CompressTable),
    Zstd(Compressor<'static>, Decompressor<'static>),
}

/// The scratch memory to pack or unpack a page.
pub(super) struct Scratch {
    method: CompressionMethod,
    out: [u8; OUT_BYTES],
}

impl Scratch {
    /// Packs a page. Returns `None` if the result is too large to be worth keeping.
    pub(super) fn pack(&mut self, page: &[u8]) -> Option<&[u8]> {
        let len = match &mut self.method {
            CompressionMethod::Lz4(table) => compress_into_with_table(page, &mut self.out, table).ok()?,
            CompressionMethod::Zstd(compressor, _) => {
                compressor.compress_to_buffer(page, &mut self.out[..]).ok()?
            }
        };
        (len <= MAX_PACKED_BYTES).then(|| &self.out[..len])
    }
}

/// The scratch of a CPU.
type CpuScratch = Mutex<Option<Box<Scratch>>>;

/// Scratch for all threads that pack or unpack.
pub(super) struct Codec {
    compression: Compression,
    /// The idle scratch of each CPU, at most one. Scratch that is given back on a CPU which already has idle
    /// scratch goes to `others`.
    at_home: Box<[CachePadded<CpuScratch>]>,
    others: Mutex<Vec<Box<Scratch>>>,
    made: AtomicU64,
    budget: Arc<Budget>,
    cpus: Cpus,
}

impl Codec {
    pub(super) fn new(compression: Compression, budget: Arc<Budget>, cpus: Cpus) -> Self {
        let at_home = (0..cpus.count()).map(|_| CachePadded::new(Mutex::new(None))).collect();
        Self { compression, at_home, others: Mutex::new(Vec::new()), made: AtomicU64::new(0), budget, cpus }
    }

    fn scratch_bytes(&self) -> u64 {
        let method = if self.compression == Compression::Zstd { ZSTD_CONTEXT_BYTES } else { LZ4_TABLE_BYTES };
        size_of::<Scratch>() as u64 + method
    }

    /// Takes scratch for one page. Returns `None` if compression is off, or the library cannot make a
    /// context.
    pub(super) fn take(&self) -> Option<Box<Scratch>> {
        let at_home = self.home().lock().take();
        at_home.or_else(|| self.others.lock().pop()).or_else(|| self.make())
    }

    pub(super) fn give_back(&self, scratch: Box<Scratch>) {
        let displaced = self.home().lock().replace(scratch);
        if let Some(displaced) = displaced {
            self.others.lock().push(displaced);
        }
    }

    fn home(&self) -> &CpuScratch {
        &self.at_home[self.cpus.current()]
    }

    #[cold]
    fn make(&self) -> Option<Box<Scratch>> {
        let method = match self.compression {
            Compression::Off => return None,
            Compression::Lz4 => CompressionMethod::Lz4(CompressTable::small()),
            Compression::Zstd => {
                CompressionMethod::Zstd(Compressor::new(ZSTD_LEVEL).ok()?, Decompressor::new().ok()?)
            }
        };
        // A page must be unpacked even if the budget is used up.
        self.budget.charge_over(self.scratch_bytes());
        self.made.fetch_add(1, Ordering::Relaxed);
        Some(Box::new(Scratch { method, out: [0; OUT_BYTES] }))
    }

    /// Unpacks into `page`. Returns false if the bytes do not unpack to a page, or if there is no scratch.
    pub(super) fn unpack(&self, packed: &[u8], page: &mut [u8; PAGE_BYTES]) -> bool {
        if self.compression == Compression::Lz4 {
            return decompress_into(packed, page).ok() == Some(PAGE_BYTES);
        }
        let Some(mut scratch) = self.take() else { return false };
        let unpacked = match &mut scratch.method {
            CompressionMethod::Zstd(_, decompressor) => {
                decompressor.decompress_to_buffer(packed, &mut page[..]).ok()
            }
            CompressionMethod::Lz4(_) => decompress_into(packed, page).ok(),
        };
        self.give_back(scratch);
        unpacked == Some(PAGE_BYTES)
    }
}

impl Drop for Codec {
    fn drop(&mut self) {
        self.budget.uncharge(self.made.load(Ordering::Relaxed) * self.scratch_bytes());
    }
}

const _: () = assert!(OUT_BYTES >= get_maximum_output_size(PAGE_BYTES));

#[cfg(all(test, not(loom)))]
mod tests {
    use zstd::zstd_safe::{CCtx, CParameter, DCtx};

    use super::*;
    use crate::swap::pool::tests::{Fill, page};

    #[test]
    fn zstandard_takes_no_more_than_is_charged() {
        for kind in [Fill::Repeats, Fill::Half, Fill::Random] {
            let page = page(kind, 1);
            let (mut compressor, mut decompressor) = (CCtx::create(), DCtx::create());
            compressor.set_parameter(CParameter::CompressionLevel(ZSTD_LEVEL)).unwrap();
            let (mut packed, mut back) = ([0; OUT_BYTES], [0; PAGE_BYTES]);
            let len = compressor.compress2(&mut packed[..], &page).unwrap();
            decompressor.decompress(&mut back[..], &packed[..len]).unwrap();
            assert_eq!(back[..], page);
            let bytes = (compressor.sizeof() + decompressor.sizeof()) as u64;
            assert!(bytes <= ZSTD_CONTEXT_BYTES && bytes > ZSTD_CONTEXT_BYTES / 2, "{bytes}");
        }
    }
}
