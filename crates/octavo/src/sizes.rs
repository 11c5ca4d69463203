//! Sizes that are small under the model checker, which explores every order of steps. Only this file says
//! which sizes, and how small.
//!
//! A build with `--cfg loom` uses the small sizes. Code reads a size from here, and need not know whether a
//! model runs it. A size that never changes stands where it is used.

/// Whether the sizes are small.
const SMALL: bool = cfg!(loom);

macro_rules! sizes {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $usual:expr, small $small:expr;)*) => {
        $($(#[$doc])* pub(crate) const $name: $type = if SMALL { $small } else { $usual };)*
    };
}

sizes! {
    /// log2 of the frames of a chunk, of the entries of a table node, and of the pages of a huge leaf.
    MAX_ORDER: u8 = 9, small 1;
    /// The most spaces that a manager can have at once.
    MAX_SPACES: usize = 1 << 20, small 2;
    /// Table nodes charged and made present at once.
    GROW_TABLE_NODES: usize = 16, small 2;
    /// Locks of free table nodes, by CPU.
    TABLE_NODE_SHARDS: usize = 64, small 1;
    /// Regions in a list's first chunk. Each further chunk doubles.
    FIRST_REGIONS: usize = 16, small 2;
    /// Locks of a table of wakers.
    WAKER_BUCKETS: usize = 64, small 2;
    /// The most frames that are isolated together: as many as a few transfers write.
    ISOLATED: usize = 512, small 4;
    /// The most leaves that a translation is asked about together: 1 MiB of pages.
    TRANSLATED: usize = 256, small 2;
    /// Leaves in such a question that take no heap memory: enough for a fault with a few neighbours.
    FEW_TRANSLATED: usize = 16, small 2;
    /// A read of at most so many pages comes from a program that does not read in order: readahead reads
    /// more. A model counts no such reads.
    FEW_PAGES: u32 = 1, small 0;
    /// The most pages that one transfer writes: 1 MiB.
    WRITE_BATCH: usize = 256, small 4;
    /// Locks of frames with several owners.
    OWNER_LOCKS: usize = 64, small 1;
    /// Slots of a swap cluster: 2 MiB of pages.
    CLUSTER_SLOTS: usize = 512, small 2;
    /// Locks of the swap clusters of an area.
    CLUSTER_LOCKS: usize = 256, small 4;
    /// log2 of a run of slots that is long enough for a device to be near its speed: 256 KiB.
    GOOD_RUN_CLASS: usize = 6, small 0;
    /// Locks of the swap cache.
    SWAP_CACHE_LOCKS: usize = 256, small 4;
    /// log2 of the words of a mapping's node.
    MAPPING_NODE_BITS: u32 = 6, small 1;
    /// Levels of a mapping that reach every index.
    MAPPING_LEVELS: usize = u64::BITS.div_ceil(MAPPING_NODE_BITS) as usize, small 3;
    /// Nodes of a mapping charged at once.
    GROW_MAPPING_NODES: usize = 64, small 1;
    /// log2 of the pages of a segment of a file: 64 MiB.
    SEGMENT_BITS: u32 = 14, small 1;
    /// Parts of the table of segments, each made when it is needed.
    SEGMENT_ROOMS: usize = 256, small 1;
    /// Segments in a part of that table. All segments together have every index of a stored page.
    SEGMENTS_PER_ROOM: usize = 512, small 2;
    /// log2 of the frames of a span of the compressed pool. A model has no pool.
    SPAN_ORDER: u8 = 3, small 0;
    /// Spaces that the pool weighs one by one. With more spaces, several share their weights.
    WEIGHED_SPACES: usize = 64, small 1;
    /// How often a check looks before a contradiction counts, since other threads may disturb it. In a
    /// model, none does.
    LOOKS: u32 = 200, small 1;
}
