//! The tables and the JSON file.

use std::process::ExitCode;

use octavo_measure::statistics::{Spread, ratios};
use octavo_measure::table::TextTable;
use serde_json::{Map, Value, json};

use crate::peers::compare::{Side, SideGroup, SideRow, THREADS};
use crate::peers::options::Options;

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
pub fn print_group(group: &SideGroup) {
    let title: Vec<String> = group.title.iter().map(|(key, value)| format!("{key} {value}")).collect();
    println!("{}", title.join(", "));
    let mut table = TextTable::new(&[
        "side",
        "1 thread ns",
        "(min..max)",
        "2 threads ns",
        "(min..max)",
        "2t/1t",
        "Octavo/it 1t",
        "Octavo/it 2t",
    ]);
    let ratio = |Spread { median, min, max }: Spread| format!("{median:.2} ({min:.2}..{max:.2})");
    for row in &group.rows {
        let mut line = vec![row.side.to_owned()];
        for ns in &row.ns {
            match spread(ns) {
                Some(s) => line.extend([figure(s.median), format!("({}..{})", figure(s.min), figure(s.max))]),
                None => line.extend(["failed".to_owned(), String::new()]),
            }
        }
        line.push(spread(&throughput(row)).map_or_else(String::new, |s| format!("{:.2}", s.median)));
        for slot in 0..THREADS.len() {
            line.push(spread(&octavo_to(group, row, slot)).map_or_else(String::new, ratio));
        }
        table.row(line);
    }
    for line in table.to_string().lines() {
        println!("  {}", line.trim_end());
    }
    println!();
}

/// Writes the JSON file if one is wanted, and returns the program's exit code.
pub fn finish<S: ?Sized>(
    program: &str,
    options: &Options,
    settings: Value,
    sides: &[Side<S>],
    groups: &[SideGroup],
) -> ExitCode {
    let side = |side: &Side<S>| {
        let missing = side.subject.as_ref().err();
        json!({ "name": side.name, "version": side.version, "against": side.against, "missing": missing })
    };
    let document = json!({
        "program": program,
        "machine": machine(),
        "rounds": options.rounds,
        "millis": options.millis,
        "settings": settings,
        "sides": sides.iter().map(side).collect::<Vec<_>>(),
        "groups": groups.iter().map(group_json).collect::<Vec<_>>(),
    });
    write_document(options, &document)
}

/// Writes a document if a JSON file is wanted.
pub fn write_document(options: &Options, document: &Value) -> ExitCode {
    let Some(path) = &options.json else { return ExitCode::SUCCESS };
    match std::fs::write(path, format!("{document:#}\n")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}

fn group_json(group: &SideGroup) -> Value {
    let mut object: Map<String, Value> =
        group.title.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    let rows = group.rows.iter().map(|row| {
        json!({
            "side": row.side,
            "ns_1_thread": rounds_json(&row.ns[0]),
            "ns_2_threads": rounds_json(&row.ns[1]),
            "throughput_2_threads_to_1": rounds_json(&throughput(row)),
            "against": row.against,
            "octavo_to_side_1_thread": rounds_json(&octavo_to(group, row, 0)),
            "octavo_to_side_2_threads": rounds_json(&octavo_to(group, row, 1)),
        })
    });
    object.insert("rows".to_owned(), rows.collect());
    Value::Object(object)
}

/// Returns the figures of the rounds, in their order, with their spread. Null if there are none.
pub fn rounds_json(rounds: &[f64]) -> Value {
    let of =
        |Spread { median, min, max }| json!({ "median": median, "min": min, "max": max, "rounds": rounds });
    spread(rounds).map_or(Value::Null, of)
}

fn spread(rounds: &[f64]) -> Option<Spread> {
    Spread::of(rounds.iter().copied())
}

/// Returns the operations a second of two threads divided by those of one: 2 is perfect, 1 is no gain.
fn throughput(row: &SideRow) -> Vec<f64> {
    let single: Vec<f64> = row.ns[0].iter().map(|ns| ns * THREADS[1] as f64 / THREADS[0] as f64).collect();
    ratios(&single, &row.ns[1])
}

/// Returns Octavo's nanoseconds divided by the side's, round by round. If the ratio is below 1, Octavo is
/// faster. Empty for Octavo itself.
fn octavo_to(group: &SideGroup, row: &SideRow, slot: usize) -> Vec<f64> {
    let octavo = group.rows.iter().find(|other| Some(other.side) == row.against && other.side != row.side);
    octavo.map_or_else(Vec::new, |octavo| ratios(&octavo.ns[slot], &row.ns[slot]))
}

fn figure(ns: f64) -> String {
    match ns {
        ns if ns < 100.0 => format!("{ns:.1}"),
        ns => format!("{ns:.0}"),
    }
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

    fn group() -> SideGroup {
        let row = |side, against, one: &[f64], two: &[f64]| SideRow {
            side,
            against,
            ns: [one.to_vec(), two.to_vec()],
        };
        let rows = vec![
            row("Octavo", None, &[10.0, 20.0], &[10.0, 20.0]),
            row("peer", Some("Octavo"), &[20.0, 40.0], &[80.0, 40.0]),
        ];
        SideGroup { title: vec![("pattern", "ping".into())], rows }
    }

    #[test]
    fn ratios_stay_inside_a_round() {
        let group = group();
        assert_eq!(octavo_to(&group, &group.rows[1], 0), [0.5, 0.5]);
        assert_eq!(octavo_to(&group, &group.rows[1], 1), [0.125, 0.5]);
        assert!(octavo_to(&group, &group.rows[0], 0).is_empty());
    }

    #[test]
    fn two_threads_as_fast_as_one_are_twice_the_throughput() {
        assert_eq!(throughput(&group().rows[0]), [2.0, 2.0]);
    }
}
