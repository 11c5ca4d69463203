//! Explains a run from its figures: how its time was spent, and what would help most.

use std::collections::BTreeSet;

use octavo::bytes_for_people;
use octavo_platform::usage;

use crate::messages::as_option;
use crate::report::rungs::{Files, KernelPaging};
use crate::report::summary::Summary;

/// A run that waited for less than this part of its time needs no help.
const LITTLE: f64 = 0.1;
/// A run that waits for more than this part of its time is slow.
const SLOW: f64 = 0.5;
/// A shorter run is explained only on request.
const LEAST_SECONDS: f64 = 10.0;
/// Shorter waits are not reported.
const LEAST_WAITED: f64 = 0.1;
/// A device whose median read takes longer is slow.
const SLOW_READ_NS: u64 = 2_000_000;
/// The most reasons that are reported.
const MOST_REASONS: usize = 3;
/// The most programs that are named with a reason.
const MOST_NAMES: usize = 5;

/// Room that a run keeps free below its limit: an eighth of it, within these bounds.
const LEAST_MARGIN: u64 = 16 << 20;
/// See `LEAST_MARGIN`.
const MOST_MARGIN: u64 = 256 << 20;

/// Returns the limit at which a tree with this much memory fits, so that none of it is paged.
pub(crate) fn limit_for(tree_bytes: u64) -> u64 {
    tree_bytes + (tree_bytes / 7).clamp(LEAST_MARGIN, MOST_MARGIN)
}

impl Summary {
    /// Describes in some lines how the time of the run was spent, what could not be managed and why, and what
    /// would help most. If the run was stopped, `stopped` is the reason, which already says what would help.
    #[must_use]
    pub fn explain(&self, stopped: Option<&str>) -> String {
        let mut lines = vec![self.cpu_line()];
        match (&self.files, &self.kernel) {
            (Some(files), _) => self.add_files(files, &mut lines),
            (_, Some(kernel)) => add_kernel(kernel, &mut lines),
            _ => self.add_pool(&mut lines),
        }
        // The reason of the end names a process that was not managed, if that ended the run.
        let is_told = |why: &str| stopped.is_some_and(|stopped| stopped.contains(why));
        let mut reasons: Vec<_> = self.refused.iter().filter(|(why, _)| !is_told(why)).collect();
        reasons.sort_by_key(|(_, processes)| std::cmp::Reverse(**processes));
        for (why, processes) in reasons.into_iter().take(MOST_REASONS) {
            let names = self.names_of(why);
            lines.push(match processes {
                1 => format!("a process{names} was not managed: {why}"),
                _ => format!("{processes} processes{names} were not managed: {why}"),
            });
        }
        if stopped.is_none() {
            lines.extend(self.what_would_help().map(|help| format!("what would help most: {help}")));
        } else if self.managed_bytes > 0 {
            let [managed, swapped, mapped] =
                [self.managed_bytes, self.swapped_bytes, self.mapped_bytes].map(bytes_for_people);
            let is_full =
                self.areas.iter().any(|area| area.used_bytes + area.used_bytes / 16 >= area.capacity_bytes);
            let advice = if is_full { ", and that much room for swap is enough for that" } else { "" };
            lines.push(format!(
                "when it was stopped, Octavo managed {managed} of its memory, and {swapped} of that were in swap. It had asked for {mapped} in all{advice}"
            ));
        }
        lines.iter().map(|line| format!("octavo: {line}")).collect::<Vec<_>>().join("\n")
    }

    /// Returns some names of programs that were not managed for a reason, in parentheses after a space.
    fn names_of(&self, why: &str) -> String {
        let programs: BTreeSet<_> = self.refused_programs.get(why).into_iter().flatten().collect();
        let mut names: Vec<_> = programs.iter().take(MOST_NAMES).map(|name| name.as_str()).collect();
        if programs.len() > MOST_NAMES {
            names.push("others");
        }
        if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) }
    }

    fn cpu_line(&self) -> String {
        let background = if self.files.is_none() && self.kernel.is_none() {
            format!(
                ", of which {:.1} s went on packing and writing pages in the background",
                self.background_cpu_seconds
            )
        } else {
            String::new()
        };
        format!(
            "it ran for {:.1} s. The CPUs worked {:.1} s for the program and {:.1} s for the runner{background}",
            self.seconds, self.program_cpu_seconds, self.own_cpu_seconds
        )
    }

    /// Adds what the pool rung has measured.
    fn add_pool(&self, lines: &mut Vec<String>) {
        let waits = &self.waits;
        if self.waited() > LEAST_WAITED {
            lines.push(format!(
                "its threads and processes together waited {:.1} s, where waits at the same time add up: {:.1} s for swap devices, \
                 {:.1} s for pages to be unpacked, {:.1} s for free memory within the limit, {:.1} s while Octavo paused processes",
                self.waited(),
                waits.device_seconds,
                waits.unpacking_seconds,
                waits.room_seconds,
                waits.stood_seconds
            ));
        }
        if self.faults.changing_seconds > LEAST_WAITED {
            lines.push(format!(
                "it changed its mappings {} times, which took the runner {:.1} s; no pages came meanwhile",
                self.faults.changes, self.faults.changing_seconds
            ));
        }
    }

    /// Adds what the file rung has measured.
    fn add_files(&self, files: &Files, lines: &mut Vec<String>) {
        if self.swapped_out_bytes > 0 {
            lines.push(format!(
                "{} went out, {} were written to files, and {} faults waited for a disk",
                bytes_for_people(self.swapped_out_bytes),
                bytes_for_people(self.written_bytes),
                files.disk_faults
            ));
        }
        if self.waits.stood_seconds > LEAST_WAITED {
            lines.push(format!(
                "Octavo paused its processes for {:.1} s, where pauses at the same time add up",
                self.waits.stood_seconds
            ));
        }
        lines.push(
            "how long its threads waited for pages, and how much memory would be enough, were not measured. --rung pool measures both"
                .into(),
        );
    }

    /// Returns whether the run did little but wait for most of its time, so that it is explained without a
    /// request. The waits of threads add up. So a program with many threads may have long waits and still
    /// work all the time.
    #[must_use]
    pub fn is_slow(&self) -> bool {
        let part = SLOW * self.seconds;
        self.seconds >= LEAST_SECONDS && self.waited() > part && self.program_cpu_seconds < part
    }

    /// Returns the waits of the program as far as they were measured, in seconds. The waits of its threads
    /// and processes add up.
    pub(crate) fn waited(&self) -> f64 {
        let waits = &self.waits;
        let kernel = self.kernel.and_then(|kernel| kernel.waited_seconds).unwrap_or(0.0);
        waits.device_seconds + waits.unpacking_seconds + waits.room_seconds + waits.stood_seconds + kernel
    }

    /// Returns the one thing to change first, if the figures show it.
    fn what_would_help(&self) -> Option<String> {
        let limit = self.budget_bytes;
        let unpaged = self.unpaged_bytes;
        if !self.refused.is_empty() && unpaged > limit / 2 {
            return Some(format!(
                "to have all processes managed (see above). Up to {} could not be paged",
                bytes_for_people(unpaged)
            ));
        }
        if unpaged > limit / 2 {
            return Some(format!(
                "--memory {}, as {} cannot be paged",
                as_option(limit + unpaged),
                bytes_for_people(unpaged)
            ));
        }
        match (&self.files, &self.kernel) {
            (Some(_), _) => self.what_would_help_files(),
            (_, Some(kernel)) => self.what_would_help_kernel(kernel),
            _ => Some(self.what_would_help_pool()),
        }
    }

    fn what_would_help_files(&self) -> Option<String> {
        let stood = self.waits.stood_seconds;
        if self.swapped_out_bytes == 0 && stood < LITTLE * self.seconds {
            return Some("nothing. None of its memory went out".into());
        }
        (stood > SLOW * self.seconds).then(|| {
            format!(
                "a faster place for --swap, or more --memory: it stood still for {stood:.1} s of {:.1} s while {} were written",
                self.seconds,
                bytes_for_people(self.written_bytes)
            )
        })
    }

    fn what_would_help_kernel(&self, kernel: &KernelPaging) -> Option<String> {
        let swap_bytes = kernel.swap_peak_bytes?;
        if swap_bytes == 0 {
            return Some("nothing. None of its memory was seen in swap".into());
        }
        if let Some(waited) = kernel.waited_seconds
            && waited < LITTLE * self.seconds
        {
            return Some(self.hardly_waited());
        }
        if kernel.came_back_bytes == Some(0) {
            return Some("nothing that its figures show. No page came back from swap".into());
        }
        Some(format!(
            "--memory {}: up to {} of its memory were in swap",
            as_option(self.budget_bytes + swap_bytes),
            bytes_for_people(swap_bytes)
        ))
    }

    fn what_would_help_pool(&self) -> String {
        let limit = self.budget_bytes;
        if self.waited() < LITTLE * self.seconds {
            return self.hardly_waited();
        }
        let waits = &self.waits;
        if let Some((place, half_ns)) = &self.slowest
            && *half_ns > SLOW_READ_NS
            && waits.device_seconds > self.waited() / 2.0
        {
            let milliseconds = *half_ns as f64 / 1e6;
            return format!(
                "a faster place for --swap than {place}, where half of the reads took {milliseconds:.1} ms or more"
            );
        }
        let all = limit_for(self.tree_peak_bytes);
        let half = self.more_bytes_for_half.map(|more| limit + more).filter(|half| *half < all);
        if let Some(half) = half
            && half <= 2 * limit
        {
            return half_or_all(half, all);
        }
        if self.most_managed > usage::available_cpus() as u64 {
            return format!(
                "fewer workers at once. Up to {} processes shared the limit, on {} CPUs",
                self.most_managed,
                usage::available_cpus()
            );
        }
        if all <= limit {
            return "nothing that its figures show".into();
        }
        match (half, self.more_bytes_for_half) {
            (Some(half), _) if half < all / 4 * 3 => half_or_all(half, all),
            (_, Some(_)) => format!(
                "--memory {}: the program goes through all of its {} again and again, so anything less would help little",
                as_option(all),
                bytes_for_people(self.tree_peak_bytes)
            ),
            // No page came back.
            (_, None) => format!(
                "a faster place for --swap, or --memory {}, where all of its memory would have fitted. No page came back, but it waited \
                 {:.1} s for free memory, and was paused for {:.1} s",
                as_option(all),
                waits.room_seconds,
                waits.stood_seconds
            ),
        }
    }

    fn hardly_waited(&self) -> String {
        format!("nothing. It hardly waited: {:.1} s in {:.1} s", self.waited(), self.seconds)
    }
}

/// Adds what the kernel has measured.
fn add_kernel(kernel: &KernelPaging, lines: &mut Vec<String>) {
    lines.push(kernel.to_string());
    lines.push(match kernel.waited_seconds {
        Some(waited) => format!("for {waited:.1} s, at least one of its threads waited for memory"),
        None => "how long its threads waited for pages was not measured. --rung pool measures it".into(),
    });
}

fn half_or_all(half: u64, all: u64) -> String {
    format!(
        "--memory {}: half of the pages that came back would have stayed. With {} all of its memory would have fitted",
        as_option(half),
        as_option(all)
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::report::summary::{FaultsByKind, Waits};

    const MIB: u64 = 1 << 20;

    fn run(device_seconds: f64) -> Summary {
        Summary {
            budget_bytes: 64 * MIB,
            seconds: 20.0,
            managed_processes: 1,
            tree_peak_bytes: 128 * MIB,
            waits: Waits { device_seconds, ..Waits::default() },
            ..Summary::default()
        }
    }

    fn on_kernel(kernel: KernelPaging) -> Summary {
        Summary { kernel: Some(kernel), waits: Waits::default(), managed_processes: 0, ..run(0.0) }
    }

    fn on_files() -> Summary {
        Summary { files: Some(Files::default()), ..run(0.0) }
    }

    fn advice(summary: &Summary) -> Option<String> {
        let told = summary.explain(None);
        told.lines().find_map(|line| line.strip_prefix("octavo: what would help most: ")).map(str::to_owned)
    }

    fn first(summary: &Summary) -> String {
        advice(summary).unwrap()
    }

    #[test]
    fn the_first_change_follows_from_the_figures() {
        assert_eq!(first(&run(1.0)), "nothing. It hardly waited: 1.0 s in 20.0 s");
        let half = Summary { more_bytes_for_half: Some(20 * MIB), ..run(12.0) };
        let expected = "--memory 88M: half of the pages that came back would have stayed. With 152M all of its memory would have fitted";
        assert_eq!(first(&half), expected);
        let all = Summary { more_bytes_for_half: Some(80 * MIB), ..run(12.0) };
        let told = first(&all);
        assert!(told.starts_with("--memory 152M: the program goes through all of its 128 MiB"), "{told}");
        let far = Summary { tree_peak_bytes: 1024 * MIB, ..all.clone() };
        assert!(
            first(&far)
                .starts_with("--memory 144M: half of the pages that came back would have stayed. With 1176M"),
            "{}",
            first(&far)
        );
        let many = Summary { most_managed: 1000, ..all };
        assert!(first(&many).starts_with("fewer workers at once. Up to 1000"), "{}", first(&many));
        let fits = Summary { tree_peak_bytes: 32 * MIB, ..half.clone() };
        assert_eq!(first(&fits), "nothing that its figures show");
        let locked = Summary { unpaged_bytes: 40 * MIB, ..half.clone() };
        assert_eq!(first(&locked), "--memory 104M, as 40 MiB cannot be paged");
        let refused = Summary { refused: BTreeMap::from([("why".into(), 2)]), ..locked };
        assert!(first(&refused).starts_with("to have all processes managed"), "{}", first(&refused));
        assert!(refused.explain(None).contains("octavo: 2 processes were not managed: why\n"));
        let disk = Summary { slowest: Some(("/old/disk".into(), 8_000_000)), ..half };
        assert!(
            first(&disk).contains("than /old/disk, where half of the reads took 8.0 ms or more"),
            "{}",
            first(&disk)
        );
    }

    #[test]
    fn a_faster_place_is_advised_by_the_waits_for_room() {
        let waits = Waits { room_seconds: 11.5, stood_seconds: 2.5, ..Waits::default() };
        let filled = first(&Summary { waits, ..run(0.0) });
        assert!(
            filled.starts_with("a faster place for --swap, or --memory 152M, where all of its memory would"),
            "{filled}"
        );
        assert!(filled.ends_with("waited 11.5 s for free memory, and was paused for 2.5 s"), "{filled}");
    }

    #[test]
    fn a_rung_that_measures_no_waits_says_so_and_tells_what_it_measures() {
        let paging = KernelPaging {
            swap_peak_bytes: Some(70 * MIB),
            came_back_bytes: Some(300 * MIB),
            disk_faults: Some(4000),
            waited_seconds: None,
        };
        let swapped = on_kernel(paging);
        let told = swapped.explain(None);
        assert!(!told.contains("hardly waited") && !told.contains("packing"), "{told}");
        let words = "octavo: the kernel paged: at most 70 MiB in swap, 300 MiB came back, 4000 faults waited for a disk\n\
                     octavo: how long its threads waited for pages was not measured.";
        assert!(told.contains(words), "{told}");
        assert_eq!(first(&swapped), "--memory 136M: up to 70 MiB of its memory were in swap");
        let counted = on_kernel(KernelPaging { waited_seconds: Some(15.0), ..paging });
        assert!(counted.explain(None).contains("for 15.0 s, at least one of its threads waited"));
        assert!(counted.is_slow() && !swapped.is_slow());
        let few = on_kernel(KernelPaging { waited_seconds: Some(1.0), ..paging });
        assert_eq!(first(&few), "nothing. It hardly waited: 1.0 s in 20.0 s");
        let none = on_kernel(KernelPaging { swap_peak_bytes: Some(0), ..paging });
        assert_eq!(first(&none), "nothing. None of its memory was seen in swap");
        let told = on_kernel(KernelPaging::default()).explain(None);
        assert!(told.contains("this kernel does not tell what it paged"), "{told}");
        assert!(!told.contains("what would help"), "no figure shows it: {told}");

        let told = on_files().explain(None);
        assert!(told.contains("were not measured. --rung pool measures both"), "{told}");
        assert!(!told.contains("swap devices") && !told.contains("packing"), "{told}");
        assert_eq!(first(&on_files()), "nothing. None of its memory went out");
        let written = 300 * MIB;
        let paged = Summary {
            files: Some(Files { disk_faults: 4000, ..Files::default() }),
            swapped_out_bytes: written,
            written_bytes: written,
            ..run(0.0)
        };
        assert_eq!(advice(&paged), None, "no figure shows it");
        let words =
            "octavo: 300 MiB went out, 300 MiB were written to files, and 4000 faults waited for a disk";
        assert!(paged.explain(None).contains(words), "{}", paged.explain(None));
        let waits = Waits { stood_seconds: 11.0, ..Waits::default() };
        let stood = first(&Summary { waits, ..paged });
        assert!(stood.ends_with("it stood still for 11.0 s of 20.0 s while 300 MiB were written"), "{stood}");
    }

    #[test]
    fn a_run_that_was_stopped_names_what_was_not_managed_unless_that_ended_it() {
        let mut stopped = run(12.0);
        stopped.note_refused("it is traced", "sh");
        ["b", "a", "b"].iter().for_each(|program| stopped.note_refused("it has 32 bits", program));
        let told = stopped.explain(Some("sh (7) is not managed: it is traced"));
        assert!(told.contains("octavo: 3 processes (a, b) were not managed: it has 32 bits"), "{told}");
        assert!(!told.contains("it is traced"), "the reason of its end says that: {told}");
        ["c", "d", "e", "f"].iter().for_each(|program| stopped.note_refused("it has 32 bits", program));
        let told = stopped.explain(None);
        assert!(told.contains("7 processes (a, b, c, d, e, others) were"), "{told}");
        assert!(told.contains("a process (sh) was not managed: it is traced"), "{told}");
    }

    #[test]
    fn a_long_run_that_mostly_waited_is_slow() {
        assert!(run(12.0).is_slow() && !run(8.0).is_slow());
        assert!(!Summary { seconds: 5.0, ..run(4.0) }.is_slow(), "it was short");
        assert!(
            !Summary { program_cpu_seconds: 30.0, ..run(12.0) }.is_slow(),
            "its threads worked meanwhile"
        );
        let told = run(12.0).explain(Some("why"));
        let words = "threads and processes together waited 12.0 s, where waits at the same time add up: 12.0 s for swap devices, 0.0 s for";
        assert!(told.contains(words), "{told}");
        assert!(!told.contains("what would help most"), "the reason of its end says that");
        assert!(!told.contains("changed its mappings"), "that took no time");
        let faults = FaultsByKind { changes: 7, changing_seconds: 3.0, ..FaultsByKind::default() };
        let told = Summary { faults, ..run(12.0) }.explain(None);
        assert!(
            told.contains("octavo: it changed its mappings 7 times, which took the runner 3.0 s;"),
            "{told}"
        );
    }
}
