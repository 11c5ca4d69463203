//! An array in a file that is mapped shared, as in databases and readers of large files.
#![expect(unsafe_code, reason = "others could change a file that is mapped")]

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::path::Path;

use memmap2::{Advice, Mmap, MmapMut};

use super::ArrayPattern;

/// The advice that the kernel gets for a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingAdvice {
    /// No advice.
    Nothing,
    /// The kernel is told the order of accesses, and asked to keep arrays that are accessed at random in
    /// memory. The program over guards holds the same arrays.
    Told,
}

/// Words in a file without a name.
#[derive(Debug)]
pub struct FileArray(MmapMut);

impl FileArray {
    /// Makes an array of zeros.
    ///
    /// # Errors
    /// Fails if the kernel does.
    pub fn new(
        folder: &Path,
        words: usize,
        pattern: ArrayPattern,
        tuning: MappingAdvice,
    ) -> io::Result<Self> {
        let file = tempfile::tempfile_in(folder)?;
        file.set_len(8 * words as u64)?;
        // SAFETY: the file has no name, and this is its only mapping. So nobody else changes it.
        let map = unsafe { MmapMut::map_mut(&file)? };
        match (tuning, pattern) {
            (MappingAdvice::Nothing, _) => {}
            (MappingAdvice::Told, ArrayPattern::InOrder) => map.advise(Advice::Sequential)?,
            (MappingAdvice::Told, ArrayPattern::AtRandom) => {
                map.advise(Advice::Random)?;
                map.lock()?;
            }
        }
        Ok(Self(map))
    }
}

impl Deref for FileArray {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        bytemuck::cast_slice(&self.0)
    }
}

impl DerefMut for FileArray {
    fn deref_mut(&mut self) -> &mut [u64] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

/// A file that is there, mapped for reading.
#[derive(Debug)]
pub struct MappedFile(Mmap);

impl MappedFile {
    /// Maps a file that nobody changes, with the best advice for the order of accesses.
    ///
    /// # Errors
    /// Fails if the kernel does.
    pub fn new(file: &File, pattern: ArrayPattern) -> io::Result<Self> {
        // SAFETY: the caller's own file, which it only reads from here on.
        let map = unsafe { Mmap::map(file)? };
        map.advise(if pattern == ArrayPattern::InOrder { Advice::Sequential } else { Advice::Random })?;
        Ok(Self(map))
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
