//! The exact model of a space: bytes and permission of each page.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use octavo::{Access, ErrorKind, Protection};

use crate::common::PAGE;

/// The bytes of a page. Its pins refer to the same bytes. Unmapping drops the model's reference, but a pin
/// keeps its own reference, as in the engine.
pub type SharedBytes = Rc<RefCell<Box<[u8]>>>;

/// A mapped page.
#[derive(Clone)]
pub struct MappedPage {
    pub bytes: SharedBytes,
    pub protection: Protection,
    /// Whether it was ever written.
    pub written: bool,
}

/// The mapped pages, by number.
#[derive(Default)]
pub struct MappedPages(BTreeMap<u64, MappedPage>);

impl MappedPages {
    /// Maps pages that read as zeros.
    pub fn map(&mut self, first: u64, count: u64, protection: Protection) {
        for page in first..first + count {
            let bytes = Rc::new(RefCell::new(vec![0; PAGE as usize].into_boxed_slice()));
            let old = self.0.insert(page, MappedPage { bytes, protection, written: false });
            assert!(old.is_none(), "page {page:#x} was mapped twice");
        }
    }

    pub fn unmap(&mut self, first: u64, count: u64) {
        for page in first..first + count {
            self.0.remove(&page);
        }
    }

    /// Protects pages, which must be mapped.
    pub fn protect(&mut self, first: u64, count: u64, protection: Protection) {
        for page in first..first + count {
            self.0.get_mut(&page).unwrap().protection = protection;
        }
    }

    /// Returns a page, which must be mapped.
    pub fn page(&self, page: u64) -> &MappedPage {
        &self.0[&page]
    }

    pub fn mark_written(&mut self, page: u64) {
        self.0.get_mut(&page).unwrap().written = true;
    }

    pub fn numbers(&self) -> Vec<u64> {
        self.0.keys().copied().collect()
    }

    pub fn any_mapped(&self, first: u64, count: u64) -> bool {
        self.0.range(first..first + count).next().is_some()
    }

    pub fn all_mapped(&self, first: u64, count: u64) -> bool {
        (first..first + count).all(|page| self.0.contains_key(&page))
    }

    /// Checks whether a page may be accessed. Returns the kind of error if not.
    pub fn allowed(&self, page: u64, access: Access) -> Result<(), ErrorKind> {
        match self.0.get(&page) {
            None => Err(ErrorKind::NotMapped),
            Some(page) if !page.protection.allows(access) => Err(ErrorKind::Protected),
            Some(_) => Ok(()),
        }
    }

    /// Returns how many bytes from `address` on may be accessed (at most `len`), and the error at the first
    /// byte that may not.
    pub fn reach(&self, address: u64, len: u64, access: Access) -> (u64, Option<ErrorKind>) {
        let mut at = address;
        while at < address + len {
            if let Err(kind) = self.allowed(at / PAGE, access) {
                return (at - address, Some(kind));
            }
            at = (at / PAGE + 1) * PAGE;
        }
        (len, None)
    }

    pub fn read(&self, address: u64, to: &mut [u8]) {
        for (at, byte) in (address..).zip(to) {
            *byte = self.0[&(at / PAGE)].bytes.borrow()[(at % PAGE) as usize];
        }
    }

    pub fn write(&mut self, address: u64, from: &[u8]) {
        for (at, byte) in (address..).zip(from) {
            let page = self.0.get_mut(&(at / PAGE)).unwrap();
            page.bytes.borrow_mut()[(at % PAGE) as usize] = *byte;
            page.written = true;
        }
    }
}
