//! Pages that the other side of a translation never releases. These pages stay, and the other pages go out.

mod common;

use std::time::Instant;

use common::target::{BUDGET, QuestionKind, pair};
use common::{PAGE, Watchdog, says};
use octavo::translation::Answer;
use octavo::{ErrorKind, HugePolicy};

#[test]
fn what_never_goes_is_seldom_asked_about_and_goes_when_it_can_after_all() {
    const PAGES: u64 = 64;
    let _watchdog = Watchdog::new("the translation lets pages go");
    let pair = pair(HugePolicy::Never, 2 * BUDGET);
    (0..PAGES).for_each(|page| pair.store(page, page + 1));
    pair.target.always(QuestionKind::Remove, Some(Answer::Unsupported));
    let began = Instant::now();
    (0..1000).for_each(|_| assert_eq!(pair.manager.reclaim(512).unwrap(), 0));
    let asked: u64 =
        pair.target.take_asked(QuestionKind::Remove).iter().map(|(_, count)| u64::from(*count)).sum();
    let most = PAGES * (2 + began.elapsed().as_millis() as u64 / 100);
    assert!((PAGES..=most).contains(&asked), "{asked} pages were asked about, and not {most}");
    pair.agree_away(PAGES);
    // A page that is unmapped no longer belongs to reclaim.
    pair.target.always(QuestionKind::Remove, None);
    pair.space.unmap(pair.at, 8 * PAGE).unwrap();
    pair.agree(PAGES - 8, 0);
    while pair.away_pages() > 0 {
        pair.manager.reclaim(512).unwrap();
    }
    (8..PAGES).for_each(|page| assert_eq!(pair.load(page), page + 1));
    pair.end();
}

#[test]
fn an_error_says_how_much_memory_never_goes() {
    let _watchdog = Watchdog::new("memory is full of what never goes");
    let pair = pair(HugePolicy::Never, 2 * BUDGET);
    pair.target.always(QuestionKind::Remove, Some(Answer::Unsupported));
    let store = |page| pair.target.store(&pair.space, pair.page(page), page + 1);
    let full = (0..2 * BUDGET / PAGE).find(|page| store(*page).is_err()).unwrap();
    says(store(full), ErrorKind::OutOfMemory, &["cannot be moved", "MiB", "lock less"]);
    pair.target.always(QuestionKind::Remove, None);
    while store(full).is_err() {}
    (0..=full).for_each(|page| assert_eq!(pair.load(page), page + 1));
    pair.end();
}
