//! Explains a run from its figures: how its time was spent, and what would help most.

use octavo::bytes_for_people;
use octavo_platform::usage;

use crate::messages::as_option;
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

impl Summary {
    /// Describes in some lines how the time of the run was spent, what could not be managed and why, and what
    /// would help most. If the run was stopped, the reason already says what would help.
    #[must_use]
    pub fn explain(&self, was_stopped: bool) -> String {
        let waits = &self.waits;
        let mut lines = vec![format!(
            "it ran for {:.1} s. The CPUs worked {:.1} s for the program and {:.1} s for the runner, of which {:.1} s went on packing and \
             writing pages in the background",
            self.seconds, self.program_cpu_seconds, self.own_cpu_seconds, self.background_cpu_seconds
        )];
        if self.waited() > LEAST_WAITED {
            lines.push(format!(
                "its threads waited {:.1} s in all: {:.1} s for swap devices, {:.1} s for pages to be unpacked, {:.1} s for free memory \
                 within the limit; Octavo paused its processes for {:.1} s",
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
        let mut reasons: Vec<_> = self.refused.iter().collect();
        reasons.sort_by_key(|(_, processes)| std::cmp::Reverse(**processes));
        let told = if was_stopped { 0 } else { MOST_REASONS };
        for (why, processes) in reasons.into_iter().take(told) {
            let whom =
                if *processes == 1 { "a process was".into() } else { format!("{processes} processes were") };
            lines.push(format!("{whom} not managed: {why}"));
        }
        if !was_stopped {
            lines.push(format!("what would help most: {}", self.what_would_help()));
        } else if self.managed_bytes > 0 {
            let [managed, swapped, mapped] =
                [self.managed_bytes, self.swapped_bytes, self.mapped_bytes].map(bytes_for_people);
            let is_full =
                self.areas.iter().any(|area| area.used_bytes + area.used_bytes / 16 >= area.capacity_bytes);
            let advice = if is_full { ", and that much room for swap is certain to be enough" } else { "" };
            lines.push(format!(
                "when it was stopped, {managed} of its memory could be paged, and {swapped} of that were in swap. It had asked for {mapped} in all{advice}"
            ));
        }
        lines.iter().map(|line| format!("octavo: {line}")).collect::<Vec<_>>().join("\n")
    }

    /// Returns whether the run did little but wait for most of its time, so that it is explained without a
    /// request. The waits of threads add up. So a program with many threads may have long waits and still
    /// work all the time.
    #[must_use]
    pub fn is_slow(&self) -> bool {
        let part = SLOW * self.seconds;
        self.seconds >= LEAST_SECONDS && self.waited() > part && self.program_cpu_seconds < part
    }

    /// Returns the sum of the waits of the program's threads and processes, in seconds.
    pub(crate) fn waited(&self) -> f64 {
        let waits = &self.waits;
        waits.device_seconds + waits.unpacking_seconds + waits.room_seconds + waits.stood_seconds
    }

    fn what_would_help(&self) -> String {
        let limit = self.budget_bytes;
        let unpaged = self.unpaged_bytes;
        if !self.refused.is_empty() && unpaged > limit / 2 {
            return format!(
                "to have all processes managed (see above). Up to {} could not be paged",
                bytes_for_people(unpaged)
            );
        }
        if unpaged > limit / 2 {
            return format!(
                "--memory {}, as {} cannot be paged",
                as_option(limit + unpaged),
                bytes_for_people(unpaged)
            );
        }
        if self.waited() < LITTLE * self.seconds {
            return "nothing. It hardly waited".into();
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
        if let Some(more) = self.more_bytes_for_half
            && more <= limit
        {
            return half(limit + more);
        }
        if self.most_managed > usage::available_cpus() as u64 {
            return format!(
                "fewer workers at once. Up to {} processes shared the limit, on {} CPUs",
                self.most_managed,
                usage::available_cpus()
            );
        }
        let need = self.managed_peak_bytes + unpaged;
        match self.more_bytes_for_half {
            _ if need <= limit => "nothing that its figures show".into(),
            None => {
                "a faster place for --swap, or more --memory: it fills memory faster than pages go out".into()
            }
            Some(more) if limit + more < need / 4 * 3 => half(limit + more),
            Some(_) => format!(
                "--memory {}: the program goes through all of its memory again and again, so anything less would help little",
                as_option(need)
            ),
        }
    }
}

fn half(bytes: u64) -> String {
    format!("--memory {}: half of the pages that came back would have stayed", as_option(bytes))
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
            managed_peak_bytes: 150 * MIB,
            waits: Waits { device_seconds, ..Waits::default() },
            ..Summary::default()
        }
    }

    fn first(summary: &Summary) -> String {
        let told = summary.explain(false);
        told.lines().last().unwrap().strip_prefix("octavo: what would help most: ").unwrap().into()
    }

    #[test]
    fn the_first_change_follows_from_the_figures() {
        assert_eq!(first(&run(1.0)), "nothing. It hardly waited");
        let half = Summary { more_bytes_for_half: Some(20 * MIB), ..run(12.0) };
        assert_eq!(first(&half), "--memory 88M: half of the pages that came back would have stayed");
        let all = Summary { more_bytes_for_half: Some(80 * MIB), ..run(12.0) };
        assert!(first(&all).starts_with("--memory 152M: the program goes through all"), "{}", first(&all));
        let filled = first(&run(12.0));
        assert!(filled.ends_with("it fills memory faster than pages go out"), "{filled}");
        let far = Summary { managed_peak_bytes: 1024 * MIB, ..all.clone() };
        assert_eq!(first(&far), "--memory 144M: half of the pages that came back would have stayed");
        let many = Summary { most_managed: 1000, ..all };
        assert!(first(&many).starts_with("fewer workers at once. Up to 1000"), "{}", first(&many));
        let locked = Summary { unpaged_bytes: 40 * MIB, ..half.clone() };
        assert_eq!(first(&locked), "--memory 104M, as 40 MiB cannot be paged");
        let refused = Summary { refused: BTreeMap::from([("why".into(), 2)]), ..locked };
        assert!(first(&refused).starts_with("to have all processes managed"), "{}", first(&refused));
        assert!(refused.explain(false).contains("octavo: 2 processes were not managed: why\n"));
        let disk = Summary { slowest: Some(("/old/disk".into(), 8_000_000)), ..half };
        assert!(
            first(&disk).contains("than /old/disk, where half of the reads took 8.0 ms or more"),
            "{}",
            first(&disk)
        );
    }

    #[test]
    fn a_long_run_that_mostly_waited_is_slow() {
        assert!(run(12.0).is_slow() && !run(8.0).is_slow());
        assert!(!Summary { seconds: 5.0, ..run(4.0) }.is_slow(), "it was short");
        assert!(
            !Summary { program_cpu_seconds: 30.0, ..run(12.0) }.is_slow(),
            "its threads worked meanwhile"
        );
        let told = run(12.0).explain(true);
        assert!(told.contains("waited 12.0 s in all: 12.0 s for swap devices, 0.0 s for"), "{told}");
        assert!(!told.contains("what would help most"), "the reason of its end says that");
        assert!(!told.contains("changed its mappings"), "that took no time");
        let faults = FaultsByKind { changes: 7, changing_seconds: 3.0, ..FaultsByKind::default() };
        let told = Summary { faults, ..run(12.0) }.explain(false);
        assert!(
            told.contains("octavo: it changed its mappings 7 times, which took the runner 3.0 s;"),
            "{told}"
        );
    }
}
