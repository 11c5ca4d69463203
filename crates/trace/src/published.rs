//! Policies as published. Unlike the engine, they see each hit at once. Each function returns the misses of
//! accesses to `pages`, in order, with `frames` frames.

use std::collections::{BTreeMap, HashMap, VecDeque};

/// Least recently used.
pub fn lru_misses(pages: &[u32], frames: u32) -> u64 {
    let (mut by_time, mut last_use, mut misses) = (BTreeMap::new(), HashMap::new(), 0);
    for (time, page) in pages.iter().enumerate() {
        match last_use.insert(*page, time) {
            Some(before) => drop(by_time.remove(&before)),
            None => {
                misses += 1;
                if last_use.len() > frames as usize {
                    let (_, oldest) = by_time.pop_first().expect("memory is full");
                    last_use.remove(&oldest);
                }
            }
        }
        by_time.insert(time, *page);
    }
    misses
}

/// SIEVE, one page at a time. A fault leaves no mark.
pub fn sieve_misses(pages: &[u32], frames: u32) -> u64 {
    // The queue is ordered by insertion. The hand moves up over the pages that are still in it.
    let (mut queue, mut inserted, mut hand, mut misses) = (BTreeMap::new(), HashMap::new(), 0_u64, 0);
    for page in pages {
        if let Some(at) = inserted.get(page) {
            queue.insert(*at, (*page, true));
            continue;
        }
        misses += 1;
        while queue.len() >= frames as usize {
            let next = queue.range(hand..).next().map(|(at, (page, visited))| (*at, *page, *visited));
            match next {
                None => hand = 0,
                Some((at, page, true)) => {
                    queue.insert(at, (page, false));
                    hand = at + 1;
                }
                Some((at, page, false)) => {
                    queue.remove(&at);
                    inserted.remove(&page);
                    hand = at + 1;
                }
            }
        }
        queue.insert(misses, (*page, false));
        inserted.insert(*page, misses);
    }
    misses
}

/// S3-FIFO with the published parameters: a tenth for the small queue, two bits of frequency, and as many
/// ghosts as the main queue has pages.
pub fn s3_fifo_misses(pages: &[u32], frames: u32) -> u64 {
    let small_share = (frames / 10) as usize;
    let (mut small, mut main) = (VecDeque::new(), VecDeque::new());
    // The ghosts, by the number of their eviction, and the latest ghost of each page.
    let (mut ghosts, mut ghost_at) = (VecDeque::new(), HashMap::new());
    let (mut frequency, mut evictions, mut misses) = (HashMap::<u32, u8>::new(), 0_u64, 0);
    for page in pages {
        if let Some(hits) = frequency.get_mut(page) {
            *hits = (*hits + 1).min(3);
            continue;
        }
        misses += 1;
        while small.len() + main.len() >= frames as usize {
            if small.len() >= small_share
                && let Some(oldest) = small.pop_front()
            {
                if frequency[&oldest] > 1 {
                    frequency.insert(oldest, 0);
                    main.push_back(oldest);
                    continue;
                }
                frequency.remove(&oldest);
                evictions += 1;
                ghosts.push_back((oldest, evictions));
                ghost_at.insert(oldest, evictions);
                if ghosts.len() > frames as usize - small_share
                    && let Some((ghost, at)) = ghosts.pop_front()
                    && ghost_at.get(&ghost) == Some(&at)
                {
                    ghost_at.remove(&ghost);
                }
            } else if let Some(oldest) = main.pop_front() {
                match frequency[&oldest] {
                    0 => drop(frequency.remove(&oldest)),
                    hits => {
                        frequency.insert(oldest, hits - 1);
                        main.push_back(oldest);
                    }
                }
            }
        }
        if ghost_at.remove(page).is_some() { &mut main } else { &mut small }.push_back(*page);
        frequency.insert(*page, 0);
    }
    misses
}
