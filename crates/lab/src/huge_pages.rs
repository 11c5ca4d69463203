//! The page sizes of the kernel's side. If transparent huge pages are available, the kernel's side also runs
//! with them. Octavo is then compared with the better of the two runs, which is fair to the kernel.

use std::fs;

use octavo_platform::Backing;
use serde::{Deserialize, Serialize};

const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";

/// The pages with which the kernel backs its side's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KernelPages {
    /// 4 KiB each: MADV_NOHUGEPAGE.
    Base,
    /// 2 MiB where available: MADV_HUGEPAGE.
    Huge,
}

impl KernelPages {
    pub fn backing(self) -> Backing {
        match self {
            Self::Base => Backing::BasePages,
            Self::Huge => Backing::HugePages,
        }
    }
}

/// The setting of this machine's administrator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugePageSetting {
    allowed: bool,
    /// The kernel's name for the setting.
    setting: String,
}

impl HugePageSetting {
    /// Reads the setting of this machine.
    pub fn here() -> Self {
        let read = |file: &str| fs::read_to_string(format!("{FOLDER}/{file}")).ok();
        Self::of(read("enabled").as_deref(), read("hugepages-2048kB/enabled").as_deref())
    }

    /// `enabled` holds for all sizes. Since Linux 6.8, each size has a setting of its own, which may inherit
    /// `enabled`.
    fn of(enabled: Option<&str>, of_2_mib: Option<&str>) -> Self {
        let chosen = |text: &str| text.split(['[', ']']).nth(1).map(str::to_string);
        let own = of_2_mib.and_then(chosen).filter(|own| own != "inherit");
        let Some(setting) = own.or_else(|| enabled.and_then(chosen)) else {
            return Self { allowed: false, setting: "not there".into() };
        };
        Self { allowed: setting != "never", setting }
    }

    /// Returns the runs of the kernel's side.
    pub fn kernel_runs(&self) -> &'static [KernelPages] {
        match self.allowed {
            true => &[KernelPages::Base, KernelPages::Huge],
            false => &[KernelPages::Base],
        }
    }

    /// Says which pages the kernel's side has.
    pub fn note(&self) -> String {
        let setting = &self.setting;
        match self.allowed {
            true => format!(
                "the kernel runs twice, and the better is the one to beat: with 4 KiB pages, and (\"-huge\") with transparent \
                 huge ones, by MADV_HUGEPAGE (they are set to \"{setting}\" here)"
            ),
            false => format!(
                "the kernel runs with 4 KiB pages only, as transparent huge ones are set to \"{setting}\" here; allow them \
                 by echo madvise > {FOLDER}/enabled"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_side_runs_with_huge_pages_wherever_they_can_be_had() {
        let runs = |enabled, of_2_mib| HugePageSetting::of(enabled, of_2_mib).kernel_runs().len();
        assert_eq!(runs(Some("always [madvise] never\n"), None), 2);
        assert_eq!(runs(Some("[always] madvise never\n"), Some("always [inherit] madvise never\n")), 2);
        assert_eq!(runs(Some("always madvise [never]\n"), Some("always [inherit] madvise never\n")), 1);
        assert_eq!(runs(Some("always [madvise] never\n"), Some("always inherit madvise [never]\n")), 1);
        assert_eq!(runs(Some("always madvise [never]\n"), Some("always inherit [madvise] never\n")), 2);
        assert_eq!(runs(None, None), 1);
    }

    #[test]
    fn what_is_not_allowed_is_said_with_the_remedy() {
        let never = HugePageSetting::of(Some("always madvise [never]"), None);
        let remedy = "set to \"never\" here; allow them by echo madvise >";
        assert!(never.note().contains(remedy), "{}", never.note());
        let madvise = HugePageSetting::of(Some("always [madvise] never"), None).note();
        assert!(madvise.contains("by MADV_HUGEPAGE (they are set to \"madvise\" here)"), "{madvise}");
    }
}
