//! The tables and the JSON file.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Map, Value, json};

use crate::compare::{Group, Row, Side, THREADS};
use crate::options::Options;
use crate::stats::Summary;

/// Prints the program, the machine, the sides with their versions, and the sides that are missing.
pub fn print_header<S: ?Sized>(program: &str, unit: &str, options: &Options, sides: &[Side<S>]) {
    println!(
        "{program}: {unit}; medians of {} rounds (min..max), {} ms each",
        options.rounds, options.millis
    );
    println!("machine: {}", machine());
    println!();
    for side in sides {
        match &side.subject {
            Ok(_) => println!("  {:<28} {}", side.name, side.version.as_deref().unwrap_or("")),
            Err(missing) => println!("  {:<28} missing: {missing}", side.name),
        }
    }
    println!();
}

/// Prints one group.
pub fn print_group(group: &Group) {
    let title: Vec<String> = group.title.iter().map(|(key, value)| format!("{key} {value}")).collect();
    println!("{}", title.join(", "));
    let mut lines = vec![
        [
            "side",
            "1 thread ns",
            "(min..max)",
            "2 threads ns",
            "(min..max)",
            "2t/1t",
            "Octavo/it 1t",
            "Octavo/it 2t",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for row in &group.rows {
        let mut line = vec![row.side.to_owned()];
        for ns in &row.ns {
            match Summary::of(ns) {
                Some(s) => line.extend([figure(s.median), format!("({}..{})", figure(s.min), figure(s.max))]),
                None => line.extend(["failed".to_owned(), String::new()]),
            }
        }
        line.push(throughput(row).map_or_else(String::new, |s| format!("{:.2}", s.median)));
        for slot in 0..THREADS.len() {
            line.push(
                octavo_to(group, row, slot)
                    .map_or_else(String::new, |s| format!("{:.2} ({:.2}..{:.2})", s.median, s.min, s.max)),
            );
        }
        lines.push(line);
    }
    println!("{}", aligned(&lines));
}

/// Writes the JSON file where one is wanted, and returns how the program went.
pub fn finish<S: ?Sized>(
    program: &str,
    options: &Options,
    settings: Value,
    sides: &[Side<S>],
    groups: &[Group],
) -> ExitCode {
    let Some(path) = &options.json else { return ExitCode::SUCCESS };
    match write_json(path, program, options, settings, sides, groups) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}

fn write_json<S: ?Sized>(
    path: &Path,
    program: &str,
    options: &Options,
    settings: Value,
    sides: &[Side<S>],
    groups: &[Group],
) -> io::Result<()> {
    let sides: Vec<Value> = sides
        .iter()
        .map(|side| {
            let missing = side.subject.as_ref().err();
            json!({ "name": side.name, "version": side.version, "against": side.against, "missing": missing })
        })
        .collect();
    let document = json!({
        "program": program,
        "machine": machine(),
        "rounds": options.rounds,
        "millis": options.millis,
        "settings": settings,
        "sides": sides,
        "groups": groups.iter().map(group_json).collect::<Vec<_>>(),
    });
    std::fs::write(path, format!("{document:#}\n"))
}

fn group_json(group: &Group) -> Value {
    let mut object: Map<String, Value> =
        group.title.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    let rows = group.rows.iter().map(|row| {
        let summary = |summary: Option<Summary>| summary.map(|s| s.to_json());
        json!({
            "side": row.side,
            "ns_1_thread": summary(Summary::of(&row.ns[0])),
            "ns_2_threads": summary(Summary::of(&row.ns[1])),
            "throughput_2_threads_to_1": summary(throughput(row)),
            "against": row.against,
            "octavo_to_side_1_thread": summary(octavo_to(group, row, 0)),
            "octavo_to_side_2_threads": summary(octavo_to(group, row, 1)),
        })
    });
    object.insert("rows".to_owned(), rows.collect());
    Value::Object(object)
}

/// Returns the operations a second of two threads over those of one: 2 is perfect, 1 is no gain.
fn throughput(row: &Row) -> Option<Summary> {
    let single: Vec<f64> = row.ns[0].iter().map(|ns| ns * THREADS[1] as f64 / THREADS[0] as f64).collect();
    Summary::of_ratio(&single, &row.ns[1])
}

/// Returns Octavo's nanoseconds over the side's, in the same rounds: below 1 Octavo is faster.
fn octavo_to(group: &Group, row: &Row, slot: usize) -> Option<Summary> {
    let octavo = group.rows.iter().find(|other| Some(other.side) == row.against && other.side != row.side)?;
    Summary::of_ratio(&octavo.ns[slot], &row.ns[slot])
}

fn figure(ns: f64) -> String {
    match ns {
        ns if ns < 100.0 => format!("{ns:.1}"),
        ns => format!("{ns:.0}"),
    }
}

/// Aligns the first column left, the others right.
fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        lines.iter().filter_map(|l| l.get(column)).map(|c| c.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for line in lines {
        let mut text = String::from("  ");
        for (column, cell) in line.iter().enumerate() {
            let width = widths[column];
            text += &if column == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") };
        }
        out += text.trim_end();
        out.push('\n');
    }
    out
}

fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let model = info
        .lines()
        .find_map(|l| l.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown", |(_, m)| m);
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or("?");
    format!("{model}, {cpus} CPUs, Linux {}, load average {load}", kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group() -> Group {
        let row =
            |side, against, one: &[f64], two: &[f64]| Row { side, against, ns: [one.to_vec(), two.to_vec()] };
        let rows = vec![
            row("Octavo", None, &[10.0, 20.0], &[10.0, 20.0]),
            row("peer", Some("Octavo"), &[20.0, 40.0], &[80.0, 40.0]),
        ];
        Group { title: vec![("pattern", "ping".into())], rows }
    }

    #[test]
    fn ratios_stay_inside_a_round() {
        let group = group();
        assert_eq!(octavo_to(&group, &group.rows[1], 0).unwrap().rounds, [0.5, 0.5]);
        assert_eq!(octavo_to(&group, &group.rows[1], 1).unwrap().rounds, [0.125, 0.5]);
        assert!(octavo_to(&group, &group.rows[0], 0).is_none());
    }

    #[test]
    fn two_threads_as_fast_as_one_are_twice_the_throughput() {
        assert_eq!(throughput(&group().rows[0]).unwrap().median, 2.0);
    }

    #[test]
    fn columns_line_up() {
        let lines = [vec!["a".to_owned(), "10".to_owned()], vec!["bcd".to_owned(), "1".to_owned()]];
        assert_eq!(aligned(&lines), "  a    10\n  bcd   1\n");
    }
}
