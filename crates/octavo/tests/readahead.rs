//! The number of pages that readahead reads for whole programs, compared with the number that the programs
//! need. The devices here take no time.

mod common;

use common::{MIB, PAGE, Random};
use octavo::{Advice, Compression, Counter, Manager, ManagerBuilder, RegionOptions, Space, SwapArea};

/// Makes a builder whose device ends each transfer at once, so only the accesses decide which pages are read.
fn exact() -> ManagerBuilder {
    Manager::builder()
        .budget_bytes(32 * MIB)
        .background(false)
        .compression(Compression::Off)
        .swap_area(SwapArea::ram(512 * MIB))
}

/// A graph in compressed sparse rows. Most vertices have few neighbours, and a few have thousands.
struct Graph {
    /// The start of each vertex's neighbours in `edges`, and the end of the last vertex's neighbours.
    offsets: Vec<u32>,
    edges: Vec<u32>,
}

impl Graph {
    fn random(vertices: u32, random: &mut Random) -> Self {
        let (mut offsets, mut edges) = (vec![0], Vec::new());
        for _ in 0..vertices {
            let neighbours = 2 << random.next().trailing_zeros().min(11);
            edges.extend((0..neighbours).map(|_| random.below(u64::from(vertices)) as u32));
            offsets.push(edges.len() as u32);
        }
        Self { offsets, edges }
    }
}

/// An array in a region of its own. Each element begins with a number.
struct Array<'a> {
    space: &'a Space,
    at: u64,
    element_bytes: u64,
}

impl<'a> Array<'a> {
    fn new(space: &'a Space, element_bytes: u64, numbers: impl ExactSizeIterator<Item = u64>) -> Self {
        let bytes = (numbers.len() as u64 * element_bytes).next_multiple_of(PAGE);
        let array = Self { space, at: space.map(bytes, RegionOptions::default()).unwrap(), element_bytes };
        numbers.enumerate().for_each(|(index, number)| array.set(index as u64, number));
        array
    }

    fn get(&self, index: u64) -> u64 {
        self.space.load(self.at + index * self.element_bytes).unwrap()
    }

    fn set(&self, index: u64, number: u64) {
        self.space.store(self.at + index * self.element_bytes, number).unwrap();
    }
}

/// Searches the graph breadth first from vertex 0. Returns how many vertices it reached, and how many pages
/// were read.
fn search(graph: &Graph, builder: ManagerBuilder) -> (u64, u64) {
    let manager = builder.build().unwrap();
    let space = manager.space().unwrap();
    let offsets = Array::new(&space, 8, graph.offsets.iter().map(|&at| u64::from(at)));
    let edges = Array::new(&space, 64, graph.edges.iter().map(|&vertex| u64::from(vertex)));
    let parents = Array::new(&space, 8, graph.offsets.iter().map(|_| u64::MAX));
    let before = manager.counters();
    let (mut reached, mut front) = (1, vec![0]);
    parents.set(0, 0);
    while !front.is_empty() {
        let mut next = Vec::new();
        for vertex in front {
            for edge in offsets.get(vertex)..offsets.get(vertex + 1) {
                let neighbour = edges.get(edge);
                if parents.get(neighbour) == u64::MAX {
                    parents.set(neighbour, vertex);
                    next.push(neighbour);
                }
            }
        }
        reached += next.len() as u64;
        front = next;
    }
    (reached, manager.counters().since(&before).get(Counter::SwapIn))
}

#[test]
fn a_breadth_first_search_reads_little_more_than_it_needs() {
    let graph = Graph::random(200_000, &mut Random::new(11));
    let (reached, needed) = search(&graph, exact().readahead_bytes(0));
    let (same, read) = search(&graph, exact());
    assert_eq!(reached, same);
    println!("{read} pages read where {needed} are needed");
    assert!(needed > 100_000, "{needed} pages: the graph hardly went out");
    assert!(read * 10 <= needed * 12);
}

#[test]
fn a_reader_in_order_waits_for_the_first_pages_only() {
    const PAGES: u64 = 4096;
    let ways: [(&str, u64, Vec<u64>); 5] = [
        ("forwards", 1, (0..PAGES).collect()),
        ("backwards", 1, (0..PAGES).rev().collect()),
        ("every third", 1, (0..PAGES).step_by(3).collect()),
        ("eight at once", 8, (0..512).flat_map(|page| (0..8).map(move |task| task * 512 + page)).collect()),
        (
            "sixteen at once",
            16,
            (0..256).flat_map(|page| (0..16).map(move |task| task * 256 + page)).collect(),
        ),
    ];
    for (way, readers, pages) in ways {
        let manager = exact().build().unwrap();
        let space = manager.space().unwrap();
        let at = space.map(PAGES * PAGE, RegionOptions::default()).unwrap();
        (0..PAGES).for_each(|page| space.store(at + page * PAGE, page).unwrap());
        for round in 0..3 {
            space.advise(at, PAGES * PAGE, Advice::PageOut).unwrap();
            let before = manager.counters();
            for &page in &pages {
                assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), page);
            }
            let done = manager.counters().since(&before);
            let (read, waits) = (done.get(Counter::SwapIn), done.get(Counter::MajorFault));
            println!("{way}, round {round}: {read} pages read, {waits} waits");
            assert!(waits <= 3 * readers, "{way}, round {round}: {waits} faults waited for the device");
            assert!(read <= pages.len() as u64, "{way}, round {round}: {read} pages read of {}", pages.len());
        }
    }
}

#[test]
fn a_reader_of_more_than_memory_hardly_waits() {
    const PAGES: u64 = 16 * 1024;
    let manager = exact().budget_bytes(16 * MIB).build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(PAGES * PAGE, RegionOptions::default()).unwrap();
    (0..PAGES).for_each(|page| space.store(at + page * PAGE, page).unwrap());
    for round in 0..3 {
        let before = manager.counters();
        (0..PAGES).for_each(|page| assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), page));
        let done = manager.counters().since(&before);
        let (read, waits) = (done.get(Counter::SwapIn), done.get(Counter::MajorFault));
        println!("round {round}: {read} pages read, {waits} waits");
        // Readahead takes only free frames. A fault that finds no free frame makes room for many pages.
        assert!(waits < PAGES / 8, "round {round}: {waits} faults waited for the device");
        assert!(read <= PAGES + PAGES / 50, "round {round}: {read} pages read of {PAGES}");
    }
    manager.validate();
}
