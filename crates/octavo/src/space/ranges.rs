//! Checks of the ranges that callers give.

use crate::error::{Error, ErrorKind, Result};
use crate::table::{MAX_PAGES, PageNumberRange};
use crate::units::{PAGE_BYTES, PAGE_SHIFT, PageNumber, pages_of};

pub(super) fn page_count(len: u64) -> Result<u64> {
    if len == 0 || len > MAX_PAGES << PAGE_SHIFT {
        let what = if len == 0 { "holds no page" } else { "is larger than an address space" };
        let message = format!("a range of {len} bytes {what}; give a length of up to 256 TiB");
        return Err(Error::new(ErrorKind::InvalidRange, message));
    }
    Ok(len.div_ceil(PAGE_BYTES as u64))
}

pub(super) fn page_range(address: u64, len: u64) -> Result<PageNumberRange> {
    page_count(len)?;
    if !address.is_multiple_of(PAGE_BYTES as u64) {
        let message =
            format!("the address {address:#x} is not at the start of a page; align it to {PAGE_BYTES}");
        return Err(Error::new(ErrorKind::InvalidRange, message));
    }
    let end = address.checked_add(len).filter(|end| *end <= MAX_PAGES << PAGE_SHIFT);
    if end.is_none() {
        let message =
            format!("{len} bytes from {address:#x} run past the end of the address space (256 TiB)");
        return Err(Error::new(ErrorKind::InvalidRange, message));
    }
    let pages = pages_of(address, len);
    Ok(PageNumberRange { start: PageNumber(pages.start), end: PageNumber(pages.end) })
}

/// Refuses a range that ends inside a page, since the call would change the rest of that page unasked.
pub(super) fn whole_pages(address: u64, len: u64, what: &str) -> Result<PageNumberRange> {
    let range = page_range(address, len)?;
    let end = address + len;
    if end.is_multiple_of(PAGE_BYTES as u64) {
        return Ok(range);
    }
    let page = PageNumber::containing(end).address();
    let message = format!(
        "the range ends at {end:#x}, inside the page at {page:#x}, and pages are {what} whole; give a length that is a \
         multiple of {PAGE_BYTES}"
    );
    Err(Error::new(ErrorKind::InvalidRange, message))
}
