//! Octavo: the data in a space larger than its budget.

use octavo::io::SwapArea;
use octavo::{Manager, RegionOptions, Space};

use super::{DataSet, Loads, PAGE_BYTES, fill};

/// The data in a space.
pub struct SpacePages {
    space: Space,
    address: u64,
}

impl SpacePages {
    /// Writes the data.
    pub fn new(data: &DataSet) -> Result<Self, String> {
        let write = || {
            let area = SwapArea::temporary(&data.folder);
            let manager = Manager::builder().budget_bytes(data.memory_bytes).swap_area(area).build()?;
            let space = manager.space()?;
            let address = space.map(data.pages * PAGE_BYTES as u64, RegionOptions::default())?;
            let mut bytes = vec![0; PAGE_BYTES];
            for page in 0..data.pages {
                fill(&mut bytes, page);
                space.write(address + page * PAGE_BYTES as u64, &bytes)?;
            }
            Ok(Self { space, address })
        };
        write().map_err(|error: octavo::Error| error.to_string())
    }
}

impl Loads for SpacePages {
    type Scratch = ();

    fn scratch(&self) {}

    fn load(&self, _scratch: &mut (), page: u64, index: usize) -> u64 {
        let address = self.address + page * PAGE_BYTES as u64 + index as u64 * 8;
        self.space.load(address).expect("the page is mapped and can be read")
    }
}
