//! Bytes that start on a page, for I/O past the page cache.

const ALIGN: usize = octavo::PAGE_BYTES;

/// A buffer that starts on a page.
#[derive(Debug)]
pub struct AlignedBytes {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    /// So many zeros.
    pub fn new(len: usize) -> Self {
        let bytes = vec![0; len + ALIGN];
        let start = bytes.as_ptr().align_offset(ALIGN);
        Self { bytes, start, len }
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_on_a_page_and_has_its_length() {
        let mut bytes = AlignedBytes::new(5000);
        assert_eq!(bytes.as_slice().as_ptr() as usize % ALIGN, 0);
        bytes.as_mut_slice()[4999] = 1;
        assert_eq!(bytes.as_slice().len(), 5000);
    }
}
