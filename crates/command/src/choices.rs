//! The choices of the command line, as types that both programs share. Nothing here depends on a command.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use octavo::Compression;

/// The target of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonTarget {
    /// Standard output.
    Stdout,
    /// A file.
    File(PathBuf),
}

impl FromStr for JsonTarget {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(if text == "-" { Self::Stdout } else { Self::File(text.into()) })
    }
}

/// A number of bytes: decimal, optionally with a fraction, or hexadecimal with 0x, and optionally with a
/// suffix k, m, g or t in powers of 1024. `B` or `iB` behind the suffix changes nothing. A message shows the
/// size as the user wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Size {
    /// The number.
    pub bytes: u64,
    written: String,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed =
            || "a size is a number with a suffix k, m, g or t, such as 512M, 1.5G or 0x200000".to_string();
        let too_large = || "a size is less than 2^64 bytes".to_string();
        let (digits, shift) = split_unit(text);
        let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
        let (radix, (whole, fraction)) = match hexadecimal {
            Some(digits) => (16, (digits, "")),
            None => (10, digits.split_once('.').unwrap_or((digits, "0"))),
        };
        // `from_str_radix` would accept a sign.
        let are_digits = |text: &str| !text.is_empty() && text.chars().all(|digit| digit.is_digit(radix));
        if !are_digits(whole) || hexadecimal.is_none() && !are_digits(fraction) {
            return Err(malformed());
        }
        let whole = u64::from_str_radix(whole, radix).map_err(|_| too_large())?;
        let whole = whole.checked_mul(1 << shift).ok_or_else(too_large)?;
        let bytes = whole.checked_add(part_of(1 << shift, fraction)).ok_or_else(too_large)?;
        Ok(Self { bytes, written: text.into() })
    }
}

/// Splits a size into its digits and the power of two of its unit. Without a unit, the whole text is digits.
fn split_unit(text: &str) -> (&str, u32) {
    let split = |text: &str| {
        let place = ['k', 'm', 'g', 't'].iter().position(|unit| text.to_ascii_lowercase().ends_with(*unit));
        place.map(|place| (text.len() - 1, 10 * (place as u32 + 1)))
    };
    // In a hexadecimal number, b is a digit, since no unit stands before it.
    let bare = ["iB", "ib", "IB", "B", "b"].iter().find_map(|end| split(text.strip_suffix(end)?));
    split(text).or(bare).map_or((text, 0), |(len, shift)| (&text[..len], shift))
}

/// Returns the fraction of a unit that the decimal places say, rounded down.
fn part_of(unit: u64, places: &str) -> u64 {
    // More decimal places would add less than a byte, whatever the unit.
    let (numerator, denominator) = places.bytes().take(18).fold((0, 1), |(numerator, denominator), digit| {
        (numerator * 10 + u128::from(digit - b'0'), denominator * 10)
    });
    (u128::from(unit) * numerator / denominator) as u64
}

/// Whether the processor's accessed bits tell which pages of a program are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AccessedBitsChoice {
    /// If the kernel lets a program read them: Linux 6.13 or later, as root
    #[default]
    Auto,
    /// Only faults tell
    Off,
}

/// How pages are compressed in memory before they go to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CompressionChoice {
    /// Not at all
    Off,
    /// By LZ4
    #[default]
    Lz4,
    /// By Zstandard, level -1
    Zstd,
}

impl CompressionChoice {
    /// Returns the engine's value for this choice.
    #[must_use]
    pub fn compression(self) -> Compression {
        match self {
            Self::Off => Compression::Off,
            Self::Lz4 => Compression::Lz4,
            Self::Zstd => Compression::Zstd,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(text: &str) -> Result<u64, String> {
        text.parse().map(|size: Size| size.bytes)
    }

    #[test]
    fn sizes_take_binary_suffixes_fractions_and_hexadecimal() {
        let cases = [
            ("4096", 4096),
            ("1k", 1 << 10),
            ("512M", 512 << 20),
            ("100G", 100 << 30),
            ("2t", 2 << 40),
            ("0x200000", 2 << 20),
            ("0X10k", 16 << 10),
            ("0x2b", 0x2b),
            ("64MB", 64 << 20),
            ("64mib", 64 << 20),
            ("2GiB", 2 << 30),
            ("1.5G", 3 << 29),
            ("0.001k", 1),
            ("1.9", 1),
            ("0.3333333333333333333333333t", 366_503_875_925),
            ("0", 0),
        ];
        for (text, bytes) in cases {
            assert_eq!(bytes_of(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_size_is_shown_as_it_was_given() {
        for text in ["100G", "0x200000", "64m", "0X10k", "1048576"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in [
            "",
            "k",
            "-5",
            "+5",
            "0x",
            "0x+5",
            "0x1.5",
            "1.",
            ".5G",
            "1.5.1",
            "1,5G",
            "12q",
            "5iB",
            "5MBB",
            "ü",
            "5ü",
            "16777216t",
        ] {
            assert!(bytes_of(text).is_err(), "{text}");
        }
        assert!(bytes_of("18446744073709551616").unwrap_err().contains("2^64"));
        assert!(bytes_of("17179869184g").unwrap_err().contains("2^64"));
    }
}
