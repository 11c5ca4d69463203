//! The options of `octavo-lab udp-stream`.

use std::time::Duration;

use clap::value_parser;
use octavo_measure::statistics::MOST_SAMPLES;

use super::StreamJob;
use crate::choices::{JsonTarget, ModeChoice};

/// Send datagrams over loopback to another process, as netperf's UDP_STREAM does, with each message in
/// Octavo's frames.
///
/// A message lies in a block of the order that Linux would take for its size, or in a part of one. It is
/// allocated on send, and freed by another thread. The figure is the data that is sent, in 10^6 bit/s. The
/// data that was received is printed beside it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
                        octavo-lab udp-stream --json udp.json && octavo-lab compare udp.json --layout mmtests\n  \
                        octavo-lab udp-stream --sizes 8192,16384 --mode all --seconds 1")]
pub struct UdpStreamArgs {
    /// Bytes of a message
    #[arg(long, value_delimiter = ',', value_name = "BYTES[,BYTES...]",
          default_values_t = octavo_experiments::percpu_lists::PUBLISHED.map(|(bytes, ..)| bytes),
          value_parser = value_parser!(u64).range(32..=65_507))]
    sizes: Vec<u64>,
    /// Iterations; their harmonic mean is printed
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(1..=100))]
    iterations: u32,
    /// Runs of an iteration, whose figure is their mean (netperf's -i)
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u32).range(2..=MOST_SAMPLES as i64))]
    runs: u32,
    /// Seconds of a run
    #[arg(long, value_name = "SECONDS", default_value = "0.3", value_parser = seconds)]
    seconds: Duration,
    /// The form of the per-CPU lists: single frames only, orders up to 3, or all orders
    #[arg(long, value_enum, default_value_t = ModeChoice::All)]
    mode: ModeChoice,
    /// Write the results as one JSON object to FILE, or to standard output (-); text then goes to standard
    /// error
    #[arg(long, value_name = "FILE|-", num_args = 0..=1, default_missing_value = "-")]
    json: Option<JsonTarget>,
}

impl UdpStreamArgs {
    pub fn into_job(self) -> StreamJob {
        StreamJob {
            modes: self.mode.modes(),
            sizes: self.sizes,
            iterations: self.iterations,
            runs: self.runs,
            time: self.seconds,
            json: self.json,
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let given: f64 = text.parse().map_err(|_| "seconds are a number, such as 0.5".to_string())?;
    if (0.01..=600.0).contains(&given) {
        return Ok(Duration::from_secs_f64(given));
    }
    Err("a run takes from 0.01 to 600 seconds".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_a_number_within_reason() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "x", "0", "-1", "NaN", "inf", "1e9"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
