//! Victims: the spans whose pages leave the pool first. Their objects were stored longest ago, on average.

use std::collections::BinaryHeap;

use super::spans::Spans;

/// The number of spans that one scan finds cold.
const COLD_SPANS: usize = 64;

/// The coldest spans of the last scan. The coldest of all is the last.
#[derive(Debug, Default)]
pub(super) struct Victims {
    spans: Vec<(u64, u32)>,
}

impl Victims {
    /// Returns the coldest span that is not being emptied.
    pub(super) fn next(&mut self, spans: &Spans) -> Option<u32> {
        if let Some(span) = self.take(spans) {
            return Some(span);
        }
        self.find(spans);
        self.take(spans)
    }

    fn take(&mut self, spans: &Spans) -> Option<u32> {
        // A span may have been emptied or refilled since the scan.
        std::iter::from_fn(|| self.spans.pop())
            .find(|&(age, span)| spans.span(span).age() == age && spans.span(span).is_settled())
            .map(|(_, span)| span)
    }

    fn find(&mut self, spans: &Spans) {
        let mut coldest = BinaryHeap::with_capacity(COLD_SPANS + 1);
        for span in (0..spans.blocks.end()).filter(|&span| spans.span(span).is_settled()) {
            coldest.push((spans.span(span).age(), span));
            if coldest.len() > COLD_SPANS {
                coldest.pop();
            }
        }
        self.spans = coldest.into_sorted_vec();
        self.spans.reverse();
    }
}
