//! Finds the function at a place in the engine's source, and sums a report by function.

use std::collections::BTreeMap;

use octavo_sim::Report;

/// File below the engine's source, line of the head, and name, sorted by file and line.
const FUNCTIONS: &[(&str, u32, &str)] = include!(concat!(env!("OUT_DIR"), "/functions.rs"));

/// The folder of the engine's source, which precedes a file's path.
const ENGINE: &str = "octavo/src/";

/// Returns the function at a place, as in `frame/zero_page::get_live`, or `None` outside of the engine.
pub fn function_at(file: &str, line: u32) -> Option<String> {
    let (_, file) = file.split_once(ENGINE)?;
    let next = FUNCTIONS.partition_point(|(other, first, _)| (*other, *first) <= (file, line));
    let (found, _, name) = FUNCTIONS[..next].last().filter(|(other, ..)| *other == file)?;
    Some(format!("{}::{name}", found.trim_end_matches(".rs").trim_end_matches("/mod")))
}

/// Returns the time of operations on shared words, by function, in nanoseconds.
pub fn by_function(report: &Report) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for place in &report.places {
        let name = function_at(place.file, place.line).unwrap_or_else(|| "outside of the engine".into());
        *sums.entry(name).or_default() += place.time;
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_is_found_where_it_begins() {
        assert!(FUNCTIONS.is_sorted(), "places are looked up in it by halves");
        for (file, line, name) in FUNCTIONS {
            let found = function_at(&format!("octavo/src/{file}"), *line);
            assert!(
                found.as_ref().is_some_and(|found| found.ends_with(&format!("::{name}"))),
                "{file}:{line}"
            );
        }
    }

    #[test]
    fn places_of_the_engine_have_functions() {
        let (file, line, name) = FUNCTIONS
            .iter()
            .find(|(file, _, name)| *file == "frame/zero_page.rs" && *name == "get_live")
            .unwrap();
        let path = format!("crates/simulated/../octavo/src/{file}");
        let expected = Some(format!("frame/zero_page::{name}"));
        assert_eq!(function_at(&path, line + 2), expected);
        assert_eq!(function_at(&path, *line), expected);
        assert_ne!(function_at(&path, line - 1), expected);
        assert_eq!(function_at(&path, 1), None);
        assert_eq!(function_at("crates/lab/src/lib.rs", 5), None);
    }
}
