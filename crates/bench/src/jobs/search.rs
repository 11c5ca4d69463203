//! A breadth-first search of a graph in compressed rows: one array says where each vertex's edges begin, and
//! another holds all edges. For each level, the search goes through the vertices in order and follows the
//! edges of those that were reached last. Most edges lead to near vertices, and one in eight anywhere.

use std::error::Error;
use std::sync::Arc;

use octavo::{Space, SpaceVec};
use octavo_measure::random;

use super::{ArrayPattern, JobResult, Slices, timed};

const EDGES: usize = 14;
const NEAR: u64 = 4096;
/// The distance of a vertex that is not reached yet.
const FAR: u64 = u64::MAX;

/// Returns the number of vertices. Each has a first edge and a distance, besides its edges.
fn vertices(bytes: usize) -> usize {
    bytes / (8 * (EDGES + 2))
}

fn edge(number: u64, vertices: u64) -> u64 {
    let (from, drawn) = (number / EDGES as u64, random::word(number));
    if drawn.is_multiple_of(8) { (drawn >> 8) % vertices } else { (from + (drawn >> 8) % NEAR) % vertices }
}

fn fold(sum: u64, distance: u64) -> u64 {
    sum.wrapping_add(random::word(distance))
}

/// Searches slices.
///
/// # Errors
/// Fails if the kernel does.
pub fn over_slices(bytes: usize, memory: &Slices) -> Result<JobResult, Box<dyn Error>> {
    let vertices = vertices(bytes);
    let mut first = memory.array(vertices + 1, ArrayPattern::InOrder)?;
    let mut edges = memory.array(vertices * EDGES, ArrayPattern::InOrder)?;
    let mut distances = memory.array(vertices, ArrayPattern::AtRandom)?;
    first.iter_mut().zip(0..).for_each(|(first, vertex)| *first = vertex * EDGES as u64);
    edges.iter_mut().zip(0..).for_each(|(to, number)| *to = edge(number, vertices as u64));
    distances.fill(FAR);
    timed(|| {
        distances[0] = 0;
        let mut level = 0;
        let mut has_reached = true;
        while std::mem::take(&mut has_reached) {
            for vertex in 0..vertices {
                if distances[vertex] != level {
                    continue;
                }
                for to in &edges[first[vertex] as usize..first[vertex + 1] as usize] {
                    let distance = &mut distances[*to as usize];
                    if *distance == FAR {
                        *distance = level + 1;
                        has_reached = true;
                    }
                }
            }
            level += 1;
        }
        Ok(distances.iter().copied().fold(0, fold))
    })
}

/// Searches over guards. The distances are held: one guard for each 2 MiB. Edges are lent in runs.
///
/// # Errors
/// Fails if the space does.
pub fn over_guards(bytes: usize, space: &Arc<Space>) -> Result<JobResult, Box<dyn Error>> {
    let vertices = vertices(bytes);
    let mut first = SpaceVec::new(space);
    first.extend((0..=vertices as u64).map(|vertex| vertex * EDGES as u64))?;
    let mut edges = SpaceVec::new(space);
    edges.extend((0..(vertices * EDGES) as u64).map(|number| edge(number, vertices as u64)))?;
    let mut distances = SpaceVec::new(space);
    distances.resize(vertices, FAR)?;
    timed(|| {
        let mut held = distances.pieces_mut().collect::<Result<Vec<_>, _>>()?;
        let per_piece = held[0].len();
        held[0][0] = 0;
        let mut level = 0;
        let mut has_reached = true;
        while std::mem::take(&mut has_reached) {
            let mut firsts = first.iter();
            let mut begin = firsts.next().expect("there is a vertex")?;
            let mut runs = edges.cursor();
            for vertex in 0..vertices {
                let end = firsts.next().expect("each vertex has an end")?;
                let mut rest = std::mem::replace(&mut begin, end) as usize..end as usize;
                if held[vertex / per_piece][vertex % per_piece] != level {
                    continue;
                }
                while rest.start < rest.end {
                    let run = runs.at(rest.clone())?;
                    for to in run {
                        let distance = &mut held[*to as usize / per_piece][*to as usize % per_piece];
                        if *distance == FAR {
                            *distance = level + 1;
                            has_reached = true;
                        }
                    }
                    rest.start += run.len();
                }
            }
            level += 1;
        }
        Ok(held.iter().flat_map(|piece| piece.iter()).copied().fold(0, fold))
    })
}
