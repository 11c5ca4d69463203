//! Sizes that are small under the model checker, which explores every order of steps. Only this file says
//! which sizes are small, and how small they are.
//!
//! A build with `--cfg loom` uses the small sizes. Other code reads sizes from here, and need not know
//! whether it runs in a model. A size that is the same in models stands in the file that uses it.

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
    /// The most spaces that a manager can have at the same time.
    MAX_SPACES: usize = 1 << 20, small 2;
    /// The number of table nodes that are charged and made present together.
    GROW_TABLE_NODES: usize = 16, small 2;
    /// The number of locks over free table nodes. A CPU's number selects the lock.
    TABLE_NODE_SHARDS: usize = 64, small 1;
    /// The number of regions in a list's first chunk. Each further chunk has twice as many.
    FIRST_REGIONS: usize = 16, small 2;
    /// The number of locks of a table of wakers.
    WAKER_BUCKETS: usize = 64, small 2;
    /// The most frames that are isolated together: the frames of a few transfers.
    ISOLATED: usize = 512, small 4;
    /// The most leaves that a translation is asked about together: 1 MiB of pages.
    TRANSLATED: usize = 256, small 2;
    /// A translation can be asked about this many leaves without heap memory: enough for a fault with a few
    /// neighbours.
    FEW_TRANSLATED: usize = 16, small 2;
    /// A read of at most this many pages comes from a program that does not read in order. For a program that
    /// reads in order, readahead reads more. A model counts no such reads.
    FEW_PAGES: u32 = 1, small 0;
    /// The most pages that one transfer writes: 1 MiB.
    WRITE_BATCH: usize = 256, small 4;
    /// The number of locks over frames with several owners.
    OWNER_LOCKS: usize = 64, small 1;
    /// The number of slots of a swap cluster: 2 MiB of pages.
    CLUSTER_SLOTS: usize = 512, small 2;
    /// The number of locks over the swap clusters of an area.
    CLUSTER_LOCKS: usize = 256, small 4;
    /// log2 of a good run: so many consecutive slots that a device writes them at nearly full speed (256
    /// KiB).
    GOOD_RUN_CLASS: usize = 6, small 0;
    /// The number of locks of the swap cache.
    SWAP_CACHE_LOCKS: usize = 256, small 4;
    /// log2 of the words of a mapping's node.
    MAPPING_NODE_BITS: u32 = 6, small 1;
    /// Levels of a mapping that reach every index.
    MAPPING_LEVELS: usize = u64::BITS.div_ceil(MAPPING_NODE_BITS) as usize, small 3;
    /// The number of nodes of a mapping that are charged together.
    GROW_MAPPING_NODES: usize = 64, small 1;
    /// log2 of the pages of a segment of a file: 64 MiB.
    SEGMENT_BITS: u32 = 14, small 1;
    /// Parts of the table of segments, each made when it is needed.
    SEGMENT_ROOMS: usize = 256, small 1;
    /// Segments in a part of that table. All segments together have every index of a stored page.
    SEGMENTS_PER_ROOM: usize = 512, small 2;
    /// log2 of the frames of a span of the compressed pool. A model has no pool.
    SPAN_ORDER: u8 = 3, small 0;
    /// The number of spaces that the pool can weigh separately. If there are more spaces, several have the
    /// same weights.
    WEIGHED_SPACES: usize = 64, small 1;
    /// How often a check tries before a contradiction counts, since other threads may disturb a check. In a
    /// model, no thread does.
    LOOKS: u32 = 200, small 1;
}
