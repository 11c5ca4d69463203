//! Writes an array in a window that is twice its budget, reads it twice, and reads words at random. Prints
//! the speeds.

use std::time::Instant;

use octavo::{Compression, Manager};
use octavo_window::Windows;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let budget: u64 = std::env::args().nth(1).map_or(Ok(256), |mib| mib.parse())?;
    let manager = Manager::builder().budget_bytes(budget << 20).compression(Compression::Off).build()?;
    let windows = Windows::new(&manager)?;
    let words = ((budget << 20) * 2 / 8) as usize;
    let mut array = windows.vec::<u64>(words)?;
    let bytes = (words * 8) as f64;
    let speed = |what: &str, start: Instant, bytes: f64| {
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{what}: {seconds:.3} s, {:.0} MB/s, {:.2} us a page",
            bytes / 1e6 / seconds,
            seconds * 1e6 / (bytes / 4096.0)
        );
    };
    let start = Instant::now();
    let mut word = 88_172_645_463_325_252_u64;
    for element in array.iter_mut() {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        *element = word;
    }
    speed("write", start, bytes);
    for _ in 0..2 {
        let start = Instant::now();
        let sum = array.iter().fold(0_u64, |sum, element| sum.wrapping_add(*element));
        speed("read", start, bytes);
        assert_ne!(sum, 0);
    }
    let start = Instant::now();
    let (mut sum, count) = (0_u64, 20_000);
    for _ in 0..count {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        sum = sum.wrapping_add(array[word as usize % words]);
    }
    speed("random reads", start, f64::from(count) * 4096.0);
    println!("{sum:x} {:?}", windows.stats()?);
    for (counter, value) in manager.counters().iter().filter(|(_, value)| *value > 0) {
        println!("{} {value}", counter.name());
    }
    Ok(())
}
